"""Better anchors from given ones, by what the assignment asks for."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from yolo.anchors.assignment import Assignment
from yolo.anchors.sizes import Boxes, Floats, by_area, fold
from yolo.anchors.statistics import check_anchors, closest, misplaced, owned_anchors, specs_with
from yolo.ops.heads import HeadSpec

APART = 0.6  # shape IoU that two anchors may have; of the published sets none has more than 0.5
FEW, BINS = 2000, 12  # more sizes than FEW are folded to BINS an octave
PRIOR = 0.01  # of all boxes: how many each anchor brings along
CROWD = 1.4  # factor by which the anchors that answer for a box may become more
STEPS = (1.3, 1.15, 1.07, 1.03, 1.015)
MOVES = np.array([move for move in product((-1, 0, 1), repeat=2) if move != (0, 0)], dtype=np.float64)


def refine(
    boxes: Boxes,
    specs: Sequence[HeadSpec],
    *,
    assignment: Assignment | None = None,
    limits: Sequence[tuple[float, float]] | None = None,
    prior: float = PRIOR,
    apart: float = APART,
    rounds: int = 6,
    seed: int = 0,
) -> Floats:
    """Move the anchors of ``specs`` to where they serve the boxes best, but no further than the data carry.

    The measure is the mean over the boxes of the best score that the assignment thresholds (the shape IoU, or
    how near the sides are to those of the anchor), 0 below the threshold. A class counts by the root of its
    boxes: an average over boxes alone gives up the rare class that mAP counts in full.

    Four things hold the anchors back, since a better average alone can train worse (pjreddie/darknet#1033:
    the average IoU rose to 0.77 and mAP fell from 53 to 40): each anchor counts as so many boxes of its own
    size, so that one that serves few boxes stays where it was published; no two become nearly the same; not
    many more of them answer for each box; and each keeps to the sizes that suit the stride of its head.

    Args:
        boxes: In pixels of the network input.
        specs: The heads of the model with the anchors to start from.
        assignment: How objects find anchors.
        limits: Of :func:`yolo.anchors.reach`; None sets none.
        prior: Weight of each anchor's own size, as a share of all boxes; 0 follows the data alone.
        apart: Shape IoU that no two anchors may exceed, if they do not from the start.
        rounds: Restarts from a randomly shifted best set.
        seed: Equal seeds give equal anchors.

    Returns:
        ``[A, 2]`` pixels, smallest area first.
    """
    if not any(part.boxes for part in boxes.by_class.values()):
        raise ValueError("there are no boxes to fit anchors to")
    if prior < 0 or not 0 < apart <= 1 or rounds < 0:
        raise ValueError(
            f"refine needs prior >= 0, 0 < apart <= 1, rounds >= 0, got {prior}, {apart}, {rounds}"
        )
    check_anchors(specs)
    assignment = assignment or Assignment()
    start = np.array(specs[0].all_anchors, dtype=np.float64)
    wh, weight = boxes.balanced()
    if len(wh) > FEW:
        wh, weight = fold(wh, weight, BINS)
    wh, weight = np.concatenate([wh, start]), np.concatenate([weight, np.full(len(start), prior)])
    guard = _Guard(specs, assignment, limits, apart, wh, weight)
    climb = _Climb(wh, weight, assignment, guard)
    value, best = climb(start)
    generator = np.random.default_rng(seed)
    for _ in range(rounds):
        shifted = best.copy()
        shifted[guard.owned] *= np.exp(generator.normal(0, 0.15, shifted[guard.owned].shape))
        if not guard.allows(shifted):
            continue
        again, anchors = climb(shifted)
        if again > value + 1e-6:
            value, best = again, anchors
    return by_area(best)


class _Guard:
    """What anchors must not become, whatever they gain."""

    def __init__(
        self,
        specs: Sequence[HeadSpec],
        assignment: Assignment,
        limits: Sequence[tuple[float, float]] | None,
        apart: float,
        wh: Floats,
        weight: Floats,
    ) -> None:
        self.specs, self.assignment, self.limits, self.wh, self.weight = specs, assignment, limits, wh, weight
        start = np.array(specs[0].all_anchors, dtype=np.float64)
        self.owned = owned_anchors(specs)
        self.near = max(apart, closest(start))
        self.strays = self._strays(start)
        self.most = self._positives(start) * CROWD

    def allows(self, anchors: Floats) -> bool:
        if closest(anchors) > self.near:
            return False
        if not self.owned.all():  # the model goes by rank: an anchor that no head has must keep its own
            rank = np.argsort(anchors.prod(axis=1), kind="stable")
            if not np.array_equal(self.owned[rank], self.owned):
                return False
        if self.limits is not None and self._strays(by_area(anchors)) > self.strays:
            return False
        return self.assignment.match == "best" or self._positives(anchors) <= self.most

    def _strays(self, anchors: Floats) -> int:
        """Anchors of a size that belongs to another head."""
        return 0 if self.limits is None else len(misplaced(specs_with(self.specs, anchors), self.limits))

    def _positives(self, anchors: Floats) -> float:
        """Anchors that answer for a box."""
        answers = self.assignment.answers(self.wh, anchors, self.owned).sum(axis=1)
        return float((answers * self.weight).sum() / self.weight.sum())


class _Climb:
    """Move one anchor at a time, in steps that shrink, as long as the measure grows."""

    def __init__(self, wh: Floats, weight: Floats, assignment: Assignment, guard: _Guard) -> None:
        self.wh, self.weight, self.guard = wh, weight, guard
        self.score, self.movable = assignment.score, [int(index) for index in np.flatnonzero(guard.owned)]
        self.floor = np.full((len(wh), 1), 0.0 if assignment.match == "best" else assignment.limit)
        self.idle = assignment.every and assignment.match == "best" and not guard.owned.all()

    def __call__(self, anchors: Floats) -> tuple[float, Floats]:
        anchors = anchors.copy()
        if self.idle:  # what an anchor without a head fits best is lost
            self.floor = self.score(self.wh, anchors[~self.guard.owned]).max(axis=1)[:, None]
        value = float(self._value(self.score(self.wh, anchors[self.movable]).max(axis=1)[:, None])[0])
        for step in STEPS:
            moved = True
            while moved:
                moved = False
                for index in self.movable:
                    better, place = self._move(anchors, index, step, value)
                    if place is not None:
                        anchors[index], value, moved = place, better, True
        return value, anchors

    def _move(self, anchors: Floats, index: int, step: float, value: float) -> tuple[float, Floats | None]:
        """The best of the eight steps of one anchor that is allowed and gains something."""
        places = anchors[index] * step**MOVES
        others = anchors[[other for other in self.movable if other != index]]
        rest = self.score(self.wh, others).max(axis=1) if len(others) else np.zeros(len(self.wh))
        values = self._value(np.maximum(self.score(self.wh, places), rest[:, None]))
        for choice in np.argsort(-values, kind="stable"):
            if values[choice] <= value + 1e-9:
                break
            trial = anchors.copy()
            trial[index] = places[choice]
            if self.guard.allows(trial):
                return float(values[choice]), places[choice]
        return value, None

    def _value(self, best: Floats) -> Floats:
        """``[D, M]`` best score to ``[M]`` mean of what counts."""
        served = np.where(best > self.floor, best, 0.0)
        return (served * self.weight[:, None]).sum(axis=0) / self.weight.sum()
