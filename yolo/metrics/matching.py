"""Which detection finds which object at one IoU threshold: the rules of the VOC devkit and of Darknet."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from yolo.metrics.pool import IOU, Bools, Floats, Ints, Pool, shared_area

Rule = Literal["voc", "darknet"]


@dataclass(frozen=True)
class Ranking:
    """The detections of one class over all pictures, by falling score, without the neutral ones."""

    hits: Bools  # [K], found an object that no better detection had found
    scores: Floats  # [K]
    positives: int  # objects that were to be found
    neutral: int  # detections that count neither way

    @property
    def true_positives(self) -> int:
        return int(self.hits.sum())

    @property
    def false_positives(self) -> int:
        return len(self.hits) - self.true_positives


def pairwise_iou(found: Floats, truth: Floats) -> Floats:
    """IoU ``[K, T]`` of boxes ``[K, 4]`` and ``[T, 4]``."""
    shared = shared_area(found[:, None], truth[None])
    areas = [(boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1) for boxes in (found, truth)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def rank(pool: Pool, rule: Rule) -> list[Ranking]:
    """Match detections to objects, class by class, at IoU .5.

    Each detection looks at the object of its class that it overlaps most. The best-scored detection of an
    object finds it, every further one is a false alarm. Equal scores keep the order of the pictures.

    * ``voc`` (devkit, ``VOCevaldet.m``): IoU of at least the threshold; a detection of a difficult object is
      neutral.
    * ``darknet`` (``detector.c``, ``validate_detector_map``): IoU above the threshold; a detection that
      finds no plain object but overlaps a difficult one is neutral.

    Crowd regions are treated as difficult objects by both.

    Returns:
        One ranking per class.
    """
    targets, neutral = _targets(pool, rule)
    positives = np.bincount(pool.labels[~pool.optional], minlength=len(pool.classes))
    rankings = []
    for rows, count in zip(pool.classes, positives.tolist(), strict=True):
        chosen = rows.start + np.flatnonzero(~neutral[rows])
        hits = _first_claims(targets[chosen])
        rankings.append(Ranking(hits, pool.scores[chosen], count, rows.stop - rows.start - len(chosen)))
    return rankings


def _targets(pool: Pool, rule: Rule) -> tuple[Ints, Bools]:
    """Which object each detection claims (-1: none) and whether it is neutral."""
    meet = pool.iou >= IOU if rule == "voc" else pool.iou > IOU  # a crowd meets what lies in it, too
    found, truth = pool.found[meet], pool.truth[meet]
    optional = pool.optional[truth]
    targets = np.full(len(pool.scores), -1)
    if rule == "voc":
        targets[found[::-1]] = truth[::-1]  # the first object of each detection is written last
        return targets, (targets >= 0) & np.append(pool.optional, False)[targets]
    targets[found[~optional][::-1]] = truth[~optional][::-1]
    neutral = np.zeros(len(targets), np.bool_)
    neutral[found[optional]] = True
    return targets, neutral & (targets < 0)


def _first_claims(targets: Ints) -> Bools:
    """True where a target (not -1) stands for the first time."""
    hits = np.zeros(len(targets), np.bool_)
    hits[np.unique(targets, return_index=True)[1]] = True
    return hits & (targets >= 0)
