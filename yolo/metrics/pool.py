"""The detections and objects of all pictures in flat arrays, and which of them meet: what every rule starts from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yolo.metrics.pictures import Picture

IOU = 0.5  # no rule lets less than this be a hit
PAIRS = 1 << 13  # looked at in one go: they fit the processor's cache

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Pool:
    """D detections, T objects and the P pairs of them that may match: of one picture, of one class, overlapping."""

    classes: list[
        slice
    ]  # [C], the detections of each class; they stand by falling score, equal ones by picture
    scores: Floats  # [D]
    area: Floats  # [D], of the boxes, square pixels
    group: Ints  # [D], one number for each picture and class

    labels: Ints  # [T]
    crowd: Bools  # [T]
    optional: Bools  # [T], difficult or crowd: to VOC and Darknet no miss
    truth_area: Floats  # [T], as annotated

    found: Ints  # [P], index of the detection; pairs stand by it, then by falling IoU, then by object
    truth: Ints  # [P], index of the object
    iou: Floats  # [P]
    overlap: Floats  # [P], COCO's: for a crowd the part of the detection that is inside it, else the IoU


def shared_area(a: Floats, b: Floats) -> Floats:
    """What boxes ``[..., 4]`` have in common; double precision as in the references."""
    width = np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0])
    height = np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1])
    return width.clip(0) * height.clip(0)


def pool(pictures: Sequence[Picture], num_classes: int) -> Pool:
    """Flatten pictures and find the pairs that overlap by at least .5, in COCO's sense, which is the widest."""
    scores = _joined([one.scores for one in pictures])
    labels = _joined([one.labels for one in pictures], np.int64)
    ranked = np.lexsort((-scores, labels))
    boxes = _joined([one.boxes for one in pictures]).reshape(-1, 4)[ranked]
    group = (_picture([one.labels for one in pictures]) * num_classes + labels)[ranked]
    ends = np.cumsum(np.bincount(labels, minlength=num_classes)).tolist()
    area = _area(boxes)

    truths = [one.truth for one in pictures]
    labels = _joined([one.labels for one in truths], np.int64)
    of_group = _picture([one.labels for one in truths]) * num_classes + labels
    by_group = np.argsort(of_group, kind="stable")
    objects = _joined([one.boxes for one in truths]).reshape(-1, 4)[by_group]
    object_area = _area(objects)
    crowd = _joined([one.crowd for one in truths], np.bool_)[by_group]
    optional = _joined([one.difficult for one in truths], np.bool_)[by_group] | crowd

    kept: list[tuple[Ints, Ints, Floats, Floats]] = []
    for found, truth in _same(group, of_group[by_group]):
        shared = shared_area(boxes.take(found, 0), objects.take(truth, 0))
        meet = np.flatnonzero(shared)
        found, truth, shared = found[meet], truth[meet], shared[meet]
        iou = shared / (area[found] + object_area[truth] - shared)
        overlap = np.where(crowd[truth], shared / area[found], iou)
        meet = np.flatnonzero(overlap >= IOU)
        kept.append((found[meet], truth[meet], iou[meet], overlap[meet]))
    found, truth, iou, overlap = (np.concatenate(column) for column in zip(*kept, strict=True))
    best_first = np.lexsort((-iou, found))
    return Pool(
        classes=[slice(first, last) for first, last in zip([0, *ends], ends, strict=False)],
        scores=scores[ranked],
        area=area,
        group=group,
        labels=labels[by_group],
        crowd=crowd,
        optional=optional,
        truth_area=_joined([one.area for one in truths])[by_group],
        found=found[best_first],
        truth=truth[best_first],
        iou=iou[best_first],
        overlap=overlap[best_first],
    )


def _area(boxes: Floats) -> Floats:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _joined(parts: Sequence[NDArray[Any]], kind: type = np.float64) -> NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *(np.asarray(part, kind).reshape(-1) for part in parts)])


def _picture(parts: Sequence[NDArray[Any]]) -> Ints:
    return np.repeat(np.arange(len(parts)), [np.size(part) for part in parts])


def _same(group: Ints, of_group: Ints) -> Iterator[tuple[Ints, Ints]]:
    """All pairs of a detection and an object, sorted by group, of one group, some at a time."""
    first = np.searchsorted(of_group, group)
    count = np.searchsorted(of_group, group, side="right") - first
    parts = int(count.sum()) // PAIRS + 1
    for rows in np.array_split(np.arange(len(group)), parts):
        found = np.repeat(rows, count[rows])
        nth = np.arange(len(found)) - np.repeat(np.cumsum(count[rows]) - count[rows], count[rows])
        yield found, first[found] + nth
