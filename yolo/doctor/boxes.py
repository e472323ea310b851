"""What the boxes of single pictures tell: doubled, contradicting, tiny where training sees them, crowded."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from yolo.data import Preprocess, place
from yolo.doctor.findings import Box, Finding
from yolo.doctor.pictures import Look
from yolo.types import Record

SAME = 0.9  # IoU from which two boxes are taken for one place


def check_boxes(
    split: str,
    records: Sequence[Record],
    classes: Sequence[str],
    looks: Mapping[str, Look],
    preprocess: Preprocess,
    *,
    tiny: float,
    crowded: int,
) -> Iterator[Finding]:
    """Judge the boxes that were kept, picture by picture.

    Args:
        split: Name of the split.
        records: Its pictures.
        classes: Names.
        looks: What is known of the pictures.
        preprocess: How training sees them.
        tiny: Pixels of the network input that the shorter side must have.
        crowded: Objects from which a picture counts as crowded.
    """
    for record in records:
        truth, path = record.truth, record.path
        count = len(truth.labels)
        if not count:
            yield Finding("empty", split, "no objects", path, picture=path)
            continue
        if count > crowded:
            yield Finding("crowded", split, f"{count} objects", path, picture=path)
        yield from _overlaps(split, record, classes)
        if all(looks[path].size):
            placed = place(truth.boxes, preprocess.placement(*looks[path].size))
            sides = (placed[:, 2:] - placed[:, :2]).min(axis=1)
            small = np.flatnonzero((sides < tiny) & ~truth.crowd)
            if len(small):
                least = int(small[sides[small].argmin()])
                text = f"{len(small)} of {count} boxes; the smallest is {sides[least]:.2g} pixels across"
                yield Finding("tiny", split, text, path, picture=path, box=corners(truth.boxes[least]))


def _overlaps(split: str, record: Record, classes: Sequence[str]) -> Iterator[Finding]:
    """Pairs of boxes that cover the same place, each box told once."""
    truth = record.truth
    objects = np.flatnonzero(~truth.crowd)
    iou = np.triu(iou_of(truth.boxes[objects]), k=1)
    for second in np.flatnonzero((iou >= SAME).any(axis=0)).tolist():
        first = int(iou[:, second].argmax())
        a, b = int(objects[first]), int(objects[second])
        names = [classes[int(truth.labels[index])] for index in (a, b)]
        code = "doubled" if names[0] == names[1] else "contradiction"
        what = f"two boxes {names[0]!r}" if code == "doubled" else f"{names[0]!r} and {names[1]!r}"
        text = f"{what} with an IoU of {iou[first, second]:.3f}"
        yield Finding(code, split, text, record.path, picture=record.path, box=corners(truth.boxes[b]))


def iou_of(boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """``[T, 4]`` to ``[T, T]``: IoU of every pair."""
    wide = boxes.astype(np.float64)
    low = np.maximum(wide[:, None, :2], wide[None, :, :2])
    high = np.minimum(wide[:, None, 2:], wide[None, :, 2:])
    overlap = (high - low).clip(0).prod(axis=2)
    area = (wide[:, 2:] - wide[:, :2]).prod(axis=1)
    return np.asarray(overlap / (area[:, None] + area[None, :] - overlap), np.float64)


def corners(box: NDArray[np.float32]) -> Box:
    """A row as plain numbers."""
    x1, y1, x2, y2 = box.tolist()
    return x1, y1, x2, y2
