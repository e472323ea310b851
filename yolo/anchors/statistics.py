"""What a set of anchors means for a data set: fit, recall, and which head would train on what."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from yolo.anchors.assignment import FOUND, Assignment, Switches
from yolo.anchors.sizes import CHUNK, Boxes, Floats, by_area, nearest, shape_iou
from yolo.models.recipe import share_anchors
from yolo.ops.heads import HeadSpec

SLACK = 1.5  # how far an anchor may stand beyond the middle between two heads
TIE = 0.05  # IoU: two anchors this close could swap an object after a small change of scale


@dataclass(frozen=True)
class Fit:
    """How well anchors serve a data set; shares are of all boxes, 0 to 1.

    Args:
        specs: The heads, with these anchors.
        assignment: How objects find them.
        average_iou: Mean over the boxes of the best shape IoU.
        class_iou: The same for the boxes of each class.
        recall: Share of boxes that an anchor serves as the assignment understands it: the best possible.
        recall50: Share of boxes with a shape IoU above 0.5.
        best: ``[A]`` share of boxes that each anchor fits best.
        heads: Share of boxes that each head trains on, in the order of ``specs``; in all above 1 where
            several anchors may answer for one box.
        lost: Share of boxes that no head trains on.
        positives: Predictions that are trained per box and cell.
        closest: Largest shape IoU between two anchors.
        misplaced: Anchors (index) of a size that belongs to another head: see :func:`reach`.
        floating: Share of boxes whose best anchor leads the best one of any other head by less than 0.05 IoU,
            where the best one alone is trained: a small change of scale moves such a box to another head.
    """

    specs: tuple[HeadSpec, ...]
    assignment: Assignment
    average_iou: float
    class_iou: dict[str, float]
    recall: float
    recall50: float
    best: tuple[float, ...]
    heads: tuple[float, ...]
    lost: float
    positives: float
    closest: float
    misplaced: tuple[int, ...]
    floating: float

    @property
    def anchors(self) -> Floats:
        """``[A, 2]`` pixels of the network input."""
        return np.array(self.specs[0].all_anchors, dtype=np.float64)

    @property
    def mean_class_iou(self) -> float:
        """Mean over the classes of their average IoU."""
        return sum(self.class_iou.values()) / len(self.class_iou)


def specs_with(specs: Sequence[HeadSpec], anchors: Floats) -> tuple[HeadSpec, ...]:
    """The heads of a model with other anchors, shared out as the model itself does it."""
    masks, strides = [spec.mask for spec in specs], [int(spec.stride) for spec in specs]
    every, shares = share_anchors(anchors.tolist(), specs[0].all_anchors, masks, strides)
    return tuple(
        replace(spec, all_anchors=every, mask=mask) for spec, mask in zip(specs, shares, strict=True)
    )


def ownership(specs: Sequence[HeadSpec]) -> Switches:
    """``[heads, A]``: which head has which anchor."""
    owner = np.zeros((len(specs), len(specs[0].all_anchors)), dtype=bool)
    for row, spec in zip(owner, specs, strict=True):
        row[list(spec.mask)] = True
    return owner


def owned_anchors(specs: Sequence[HeadSpec]) -> Switches:
    """``[A]``: whether some head has this anchor; in yolov4-tiny.cfg one is of no head."""
    return np.asarray(ownership(specs).any(axis=0))


def reach(specs: Sequence[HeadSpec]) -> list[tuple[float, float]]:
    """For each head the smallest and largest anchor, as the root of its area, pixels, that suits its stride.

    The limit between two heads is the geometric mean of the sizes of the published anchors on both sides of
    it, with some slack; the finest head has no lower and the coarsest no upper limit.

    Args:
        specs: The heads with their published anchors.
    """
    order = sorted(range(len(specs)), key=lambda index: specs[index].stride)
    sides = [sorted(float(np.sqrt(w * h)) for w, h in specs[index].anchors) for index in order]
    limits = [float(np.sqrt(fine[-1] * coarse[0])) for fine, coarse in pairwise(sides)]
    lows, highs = [0.0, *(limit / SLACK for limit in limits)], [*(limit * SLACK for limit in limits), np.inf]
    return [(lows[order.index(index)], highs[order.index(index)]) for index in range(len(specs))]


def misplaced(specs: Sequence[HeadSpec], limits: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Indices of the anchors that are too small or too large for every head that has them."""
    side = [float(np.sqrt(w * h)) for w, h in specs[0].all_anchors]
    fits = {
        index
        for spec, (low, high) in zip(specs, limits, strict=True)
        for index in spec.mask
        if low <= side[index] <= high
    }
    return tuple(sorted({index for spec in specs for index in spec.mask} - fits))


class _Tally:
    """Adds up what :func:`describe` counts."""

    def __init__(self, anchors: Floats, specs: Sequence[HeadSpec], assignment: Assignment) -> None:
        self.anchors, self.assignment = anchors, assignment
        self.owner = ownership(specs)
        self.owned = owned_anchors(specs)
        self.best, self.heads = np.zeros(len(anchors)), np.zeros(len(specs))
        self.recalled = self.found = self.lost = self.positives = self.floating = 0

    def add(self, wh: Floats, count: NDArray[np.int64]) -> None:
        """Count boxes of sizes ``wh``."""
        iou = np.where(self.owned, shape_iou(wh, self.anchors), 0.0)
        score = np.where(self.owned, self.assignment.score(wh, self.anchors), 0.0)
        answers = self.assignment.answers(wh, self.anchors, self.owned)
        by_head = np.stack([(answers & row).sum(axis=1) for row in self.owner], axis=1)  # [D, heads]
        top = iou.max(axis=1)
        self.found += int(count[top > FOUND].sum())
        self.recalled += int(count[score.max(axis=1) > self.assignment.limit].sum())
        self.best += np.bincount(iou.argmax(axis=1), count, minlength=len(self.anchors))
        self.heads += (count[:, None] * (by_head > 0)).sum(axis=0)
        self.lost += int(count[by_head.sum(axis=1) == 0].sum())
        self.positives += int((count * by_head.sum(axis=1)).sum())
        if len(self.owner) > 1 and self.assignment.match == "best":
            per_head = np.sort(
                np.stack([np.where(row, iou, 0).max(axis=1) for row in self.owner], axis=1), axis=1
            )
            self.floating += int(count[per_head[:, -1] - per_head[:, -2] < TIE].sum())


def describe(
    boxes: Boxes,
    specs: Sequence[HeadSpec],
    assignment: Assignment | None = None,
    limits: Sequence[tuple[float, float]] | None = None,
) -> Fit:
    """Measure how the anchors of ``specs`` serve ``boxes``.

    Args:
        boxes: In pixels of the network input.
        specs: All heads of a model.
        assignment: How objects find anchors; the best one alone by default.
        limits: Of :func:`reach`, for ``misplaced``.

    Raises:
        ValueError: There are no boxes, or the model has no anchors.
    """
    n = sum(part.boxes for part in boxes.by_class.values())
    if not n:
        raise ValueError("there are no boxes to judge anchors by")
    check_anchors(specs)
    anchors = np.array(specs[0].all_anchors, dtype=np.float64)
    tally = _Tally(anchors, specs, assignment or Assignment())
    pooled = boxes.pooled  # classes share most sizes: counted one by one a large set takes ten times as long
    for start in range(0, len(pooled.wh), CHUNK):
        tally.add(pooled.wh[start : start + CHUNK], pooled.count[start : start + CHUNK])
    sums = {
        name: float((nearest(part.wh, anchors[tally.owned])[0] * part.count).sum())
        for name, part in boxes.by_class.items()
        if part.boxes
    }
    return Fit(
        specs=tuple(specs),
        assignment=tally.assignment,
        average_iou=sum(sums.values()) / n,
        class_iou={name: total / boxes.by_class[name].boxes for name, total in sums.items()},
        recall=tally.recalled / n,
        recall50=tally.found / n,
        best=tuple((tally.best / n).tolist()),
        heads=tuple((tally.heads / n).tolist()),
        lost=tally.lost / n,
        positives=tally.positives / n,
        closest=closest(anchors),
        misplaced=misplaced(specs, limits) if limits is not None else (),
        floating=tally.floating / n,
    )


def check_anchors(specs: Sequence[HeadSpec]) -> None:
    """Raise ValueError if the model is one without anchors."""
    if not specs:
        raise ValueError("anchors are chosen for YOLOv2 to v4; this model is of another kind")
    if not specs[0].all_anchors:
        raise ValueError(f"a {specs[0].kind} head (YOLOv1) has no anchors: it predicts sizes directly")


def closest(anchors: Floats) -> float:
    """Largest shape IoU between two of ``[A, 2]`` anchors; 0 for a single one."""
    iou = shape_iou(anchors, anchors)
    np.fill_diagonal(iou, 0.0)
    return float(iou.max())


def tidy(anchors: Floats) -> Floats:
    """As they are printed and written: hundredths of a pixel, smallest area first."""
    return by_area(np.maximum(np.round(anchors, 2), 0.01))
