"""Which detection finds which object at one IoU threshold: the rules of the VOC devkit and of Darknet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from yolo.metrics.pictures import Picture

Rule = Literal["voc", "darknet"]


@dataclass(frozen=True)
class Ranking:
    """The detections of one class over all pictures, by falling score, without the neutral ones."""

    hits: NDArray[np.bool_]  # [K], found an object that no better detection had found
    scores: NDArray[np.float64]  # [K]
    positives: int  # objects that were to be found
    neutral: int  # detections that count neither way

    @property
    def true_positives(self) -> int:
        return int(self.hits.sum())

    @property
    def false_positives(self) -> int:
        return len(self.hits) - self.true_positives


def pairwise_iou(found: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    """IoU ``[K, T]`` of boxes ``[K, 4]`` and ``[T, 4]``, in double precision as in the references."""
    corner = np.minimum(found[:, None, 2:], truth[None, :, 2:]) - np.maximum(
        found[:, None, :2], truth[None, :, :2]
    )
    shared = corner.clip(0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1) for boxes in (found, truth)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def rank(
    pictures: Sequence[Picture], num_classes: int, rule: Rule, iou_threshold: float = 0.5
) -> list[Ranking]:
    """Match detections to objects, class by class.

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
    targets, neutral, positive_labels = _targets(pictures, rule, iou_threshold)
    labels = np.concatenate([np.empty(0, np.int64), *(one.labels for one in pictures)])
    scores = np.concatenate([np.empty(0), *(one.scores for one in pictures)])
    positives = np.bincount(positive_labels, minlength=num_classes)
    rankings = []
    for label in range(num_classes):
        of_class = labels == label
        chosen = np.flatnonzero(of_class & ~neutral)
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
        hits = _first_claims(targets[chosen])
        rankings.append(
            Ranking(hits, scores[chosen], int(positives[label]), int(of_class.sum()) - len(chosen))
        )
    return rankings


def _targets(
    pictures: Sequence[Picture], rule: Rule, iou_threshold: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """Which object each detection claims (-1: none) and whether it is neutral, picture after picture.

    The third array holds the labels of all objects that are to be found.
    """
    targets, neutrals, positives = [np.empty(0, np.int64)], [np.empty(0, np.bool_)], [np.empty(0, np.int64)]
    first = 0
    for one in pictures:
        boxes = np.asarray(one.truth.boxes, np.float64).reshape(-1, 4)
        labels = np.asarray(one.truth.labels, np.int64).reshape(-1)
        optional = np.asarray(one.truth.difficult | one.truth.crowd, np.bool_).reshape(-1)
        positives.append(labels[~optional])
        target, neutral = np.full(len(one.labels), -1), np.zeros(len(one.labels), np.bool_)
        if len(labels) and len(target):
            iou = np.where(one.labels[:, None] == labels, pairwise_iou(one.boxes, boxes), -1.0)
            if rule == "voc":
                best = iou.argmax(1)
                claims = iou.max(1) >= iou_threshold
                neutral = claims & optional[best]
            else:
                plain = np.where(optional, -1.0, iou)
                best = plain.argmax(1)
                claims = plain.max(1) > iou_threshold
                neutral = ~claims & (np.where(optional, iou, -1.0).max(1) > iou_threshold)
            target = np.where(claims, best + first, -1)
        targets.append(target)
        neutrals.append(neutral)
        first += len(labels)
    return np.concatenate(targets), np.concatenate(neutrals), np.concatenate(positives)


def _first_claims(targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True where a target (not -1) stands for the first time."""
    hits = np.zeros(len(targets), np.bool_)
    hits[np.unique(targets, return_index=True)[1]] = True
    return hits & (targets >= 0)
