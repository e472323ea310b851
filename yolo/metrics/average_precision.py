"""Average precision of one ranked list, in every published form."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Points = Literal["area"] | int


def average_precision(hits: NDArray[np.bool_], positives: int, points: Points = "area") -> float | None:
    """Average precision of detections in order of falling score.

    Precision at a recall is the best precision at that or any higher recall. ``"area"`` integrates it over
    recall (VOC devkit from 2010 on, and Darknet's ``map -points 0``); a number takes its mean at that many
    evenly spaced recalls: 11 is VOC 2007, 101 is COCO.

    Args:
        hits: ``[K]``, whether each detection found an object of its own.
        positives: Objects that were to be found.
        points: ``"area"``, or how many recalls from 0 to 1 to sample.

    Returns:
        0 to 1; None where there was nothing to find.
    """
    if positives == 0:
        return None
    if len(hits) == 0:
        return 0.0
    found = np.cumsum(hits)
    recall = found / positives
    precision = found / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    if points == "area":
        return float(np.sum(np.diff(recall, prepend=0.0) * best))
    # k / (points - 1) and found / positives are both correctly rounded: equal fractions compare equal
    wanted = np.arange(points) / (points - 1)
    return float(np.append(best, 0.0)[np.searchsorted(recall, wanted)].mean())


def check_points(points: Points) -> Points:
    """Raise ValueError unless these are ``"area"`` or at least two recalls."""
    if points == "area" or (isinstance(points, int) and points >= 2):
        return points
    raise ValueError(f'points must be "area" or a number of recalls such as 11 or 101, got {points!r}')
