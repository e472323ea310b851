"""What an evaluation tells besides average precision: curves, thresholds, mix-ups, calibration, worst pictures.

All of it at IoU .5. Curves and calibration match detections to objects by VOC's rule (:mod:`yolo.metrics`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from yolo.metrics.average_precision import average_precision
from yolo.metrics.matching import pairwise_iou, rank
from yolo.metrics.pictures import Picture
from yolo.metrics.pool import IOU, pool

THRESHOLDS = np.linspace(0.0, 1.0, 101)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClassCurve:
    """One class over all score thresholds.

    Args:
        name: Of the class.
        positives: Objects that were to be found.
        scores: ``[K]`` of the detections, falling.
        hits: ``[K]`` whether each found an object of its own.
    """

    name: str
    positives: int
    scores: Floats
    hits: NDArray[np.bool_]

    @property
    def precision(self) -> Floats:
        """``[K]`` of the detections down to each one."""
        return np.cumsum(self.hits) / np.arange(1, len(self.hits) + 1)

    @property
    def recall(self) -> Floats:
        """``[K]`` of the detections down to each one."""
        return np.cumsum(self.hits) / max(1, self.positives)

    @property
    def ap50(self) -> float:
        """Area under the curve, 0 to 1."""
        return average_precision(self.hits, self.positives) or 0.0

    def f1(self, thresholds: Floats = THRESHOLDS) -> Floats:
        """F1 of the detections that score strictly more than each threshold."""
        kept = np.searchsorted(-self.scores, -thresholds, side="left")
        hits = np.concatenate([[0], np.cumsum(self.hits)])[kept]
        return 2 * hits / np.maximum(1, kept + self.positives)


def class_curves(pictures: Sequence[Picture], classes: Sequence[str]) -> list[ClassCurve]:
    """The curves of the classes that have an object to find."""
    rankings = rank(pool(pictures, len(classes)), "voc")
    return [
        ClassCurve(name, one.positives, one.scores, one.hits)
        for name, one in zip(classes, rankings, strict=True)
        if one.positives
    ]


def best_threshold(curves: Sequence[ClassCurve]) -> tuple[float, float]:
    """The score threshold with the best F1, averaged over classes, and that F1."""
    if not curves:
        return 0.25, 0.0
    mean = np.mean([curve.f1() for curve in curves], 0)
    best = int(mean.argmax())
    return float(THRESHOLDS[best]), float(mean[best])


@dataclass(frozen=True)
class Calibration:
    """Do scores mean what they say? Detections by score, in ten bins."""

    score: Floats  # [10] mean score, NaN where a bin is empty
    precision: Floats  # [10] share that found an object
    count: NDArray[np.int64]  # [10]
    error: float  # expected calibration error: mean |score - precision|, weighted by count


def calibration(curves: Sequence[ClassCurve], floor: float = 0.05) -> Calibration:
    """Bin the detections of all classes that score more than ``floor`` (below are too many to matter)."""
    scores = np.concatenate([np.empty(0), *(curve.scores for curve in curves)])
    hits = np.concatenate([np.empty(0, bool), *(curve.hits for curve in curves)])
    scores, hits = scores[scores > floor], hits[scores > floor]
    bins = np.minimum((scores * 10).astype(int), 9)
    count = np.bincount(bins, minlength=10)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(bins, scores, 10) / count
        precision = np.bincount(bins, hits, 10) / count
    error = float(np.nansum(np.abs(mean - precision) * count) / max(1, count.sum()))
    return Calibration(mean, precision, count, error)


def _pairs(iou: Floats) -> list[tuple[int, int]]:
    """Detections (best score first) take the free object they overlap most, at least IoU .5."""
    pairs, free = [], np.ones(iou.shape[1], bool)
    for row in range(len(iou)):
        overlap = np.where(free, iou[row], -1.0)
        best = int(overlap.argmax())
        if overlap[best] >= IOU:
            pairs.append((row, best))
            free[best] = False
    return pairs


def _strong(picture: Picture, threshold: float) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Boxes and labels of the detections above a threshold, and their IoU ``[K, T]`` with the objects."""
    kept = picture.scores > threshold
    truth = np.asarray(picture.truth.boxes, np.float64).reshape(-1, 4)
    boxes = picture.boxes[kept]
    return boxes, picture.labels[kept], pairwise_iou(boxes, truth)


def confusion(pictures: Sequence[Picture], num_classes: int, threshold: float) -> NDArray[np.int64]:
    """Which class is taken for which.

    Detections are matched to objects by overlap alone, whatever their class; VOC's difficult objects and
    crowds count only where one is found as what it is not.

    Returns:
        ``[C + 1, C + 1]``: rows are what an object is, the last row is background (false alarms); columns
        are what it was found as, the last column is not at all (misses).
    """
    table = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for one in pictures:
        _, labels, iou = _strong(one, threshold)
        optional = one.truth.difficult | one.truth.crowd
        pairs = _pairs(iou) if iou.size else []
        taken, found = {column for _, column in pairs}, {row for row, _ in pairs}
        for row, column in pairs:
            if not optional[column]:
                table[one.truth.labels[column], labels[row]] += 1
        for row in set(range(len(labels))) - found:
            if not (iou.shape[1] and (iou[row][optional] >= IOU).any()):
                table[num_classes, labels[row]] += 1
        for column in set(range(len(optional))) - taken:
            if not optional[column]:
                table[one.truth.labels[column], num_classes] += 1
    return table


class Judged(NamedTuple):
    """One picture and how it went."""

    picture: Picture
    hits: int
    false_alarms: int
    misses: int

    @property
    def f1(self) -> float:
        """1 where there was nothing to find and nothing was found."""
        wrong = self.false_alarms + self.misses
        return 1.0 if self.hits + wrong == 0 else 2 * self.hits / (2 * self.hits + wrong)


def judge(pictures: Sequence[Picture], threshold: float) -> list[Judged]:
    """All pictures, the worst first: by F1, then by the number of errors."""
    rows = []
    for one in pictures:
        _, labels, iou = _strong(one, threshold)
        optional = one.truth.difficult | one.truth.crowd
        same = np.where(labels[:, None] == one.truth.labels, iou, 0.0)
        pairs = _pairs(same) if same.size else []
        hits = sum(not optional[column] for _, column in pairs)
        taken = {row for row, _ in pairs}
        neutral = sum(
            bool((same[row][optional] >= IOU).any()) for row in range(len(labels)) if row not in taken
        )
        false_alarms = len(labels) - len(pairs) - neutral
        rows.append(Judged(one, hits, false_alarms, int((~optional).sum()) - hits))
    return sorted(rows, key=lambda row: (row.f1, -row.false_alarms - row.misses, row.picture.image_id))
