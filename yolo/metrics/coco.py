"""The twelve COCO numbers, by the rules of pycocotools."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from yolo.metrics.pool import Bools, Floats, Ints, Pool

Bits = NDArray[np.uint64]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
LEAST = np.array([0, 0, 32**2, 96**2])  # square pixels of all, small, medium, large; both ends belong to them
MOST = np.array([1e10, 32**2, 96**2, 1e10])
# The 40 settings, an area range and a threshold each, are matched side by side: bit 10 * area + threshold is for one.
OF_AREA = np.array([0x3FF << 10 * area for area in range(4)], np.uint64)
UP_TO = np.array(
    [((1 << reached) - 1) * sum(1 << 10 * area for area in range(4)) for reached in range(11)], np.uint64
)


@dataclass(frozen=True)
class CocoNumbers:
    """Precision and recall per class; -1 where a class has no object in the area range."""

    precision: Floats  # [10 IoUs .5 to .95, 101 recalls, C, 4 areas: all small medium large]
    recall: Floats  # [10, C, 4 areas, 3 limits: 1, 10, max_detections]

    def class_ap(self, iou: int | None = None) -> list[float | None]:
        """Average precision of each class over all ten IoU thresholds, or at one of them (0: .5, 5: .75)."""
        values = self.precision[:, :, :, 0] if iou is None else self.precision[iou : iou + 1, :, :, 0]
        return [None if column.min() < 0 else float(column.mean()) for column in np.moveaxis(values, 2, 0)]

    def twelve(self, *, absent_as_zero: bool) -> list[float | None]:
        """The numbers in the order in which pycocotools prints them.

        Args:
            absent_as_zero: Classes without an object count as 0; otherwise they are left out.
        """
        precision, recall = self.precision, self.recall
        values = [precision[..., 0], precision[0, ..., 0], precision[5, ..., 0]]
        values += [precision[..., area] for area in (1, 2, 3)]
        values += [recall[..., 0, limit] for limit in (0, 1, 2)]
        values += [recall[..., area, 2] for area in (1, 2, 3)]
        return [_mean(value, absent_as_zero) for value in values]


def _mean(values: Floats, absent_as_zero: bool) -> float | None:
    known = values[values > -1]
    if len(known) == 0:
        return None
    return float(known.sum() / values.size) if absent_as_zero else float(known.mean())


def coco_numbers(pool: Pool, max_detections: int) -> CocoNumbers:
    """Evaluate by the rules of pycocotools.

    Crowd regions absorb any number of detections (by intersection over the detection's area). VOC's
    ``difficult`` and the ``ignore`` field of a COCO file are not honoured: such objects count, as in
    pycocotools.

    Args:
        pool: The pictures.
        max_detections: Best detections used, per picture and class.
    """
    place = _places(pool.group)
    ignored = _outside(pool.truth_area) | pool.crowd[:, None]
    hits, neutral = _match(pool, place < max_detections, ignored)
    neutral |= ~hits & _settings(_outside(pool.area))
    limits = [min(limit, max_detections) for limit in (1, 10, max_detections)]
    precision = np.full((len(pool.classes), 4, 10, 101), -1.0)
    recall = np.full((len(pool.classes), 4, 10, 3), -1.0)
    for label, rows in enumerate(pool.classes):
        positives = (~ignored[pool.labels == label]).sum(0)
        rows = rows.start + np.flatnonzero(place[rows] < max_detections)
        some = np.flatnonzero(hits[rows])  # have a hit in one of the settings; curves bend at these only
        seen = np.cumsum(_bits(~neutral[rows]), 0, np.int32)[some]
        hit, places = _bits(hits[rows[some]]), place[rows[some]]
        within = np.stack([hit[places < limit].sum(0) for limit in limits], 1)
        for area in np.flatnonzero(positives):
            recall[label, area] = within[10 * area : 10 * area + 10] / positives[area]
            for threshold in range(10):
                setting = 10 * area + threshold
                found = np.flatnonzero(hit[:, setting])
                precision[label, area, threshold] = _at_recalls(seen[found, setting], positives[area])
    return CocoNumbers(precision.transpose(2, 3, 0, 1).copy(), recall.transpose(2, 0, 1, 3).copy())


def _match(pool: Pool, used: Bools, ignored: Bools) -> tuple[Bits, Bits]:
    """The settings ``[D]`` in which each detection finds an object, and those in which it meets an ignored one.

    The detections choose in the order of their scores: of the objects that are free the one of the largest overlap,
    of equal ones the last, and an ignored one only where there is no other.

    Args:
        pool: The pictures.
        used: ``[D]``, which detections take part.
        ignored: ``[T, 4]``, which objects are not to be found.
    """
    order = np.lexsort((-pool.truth, -pool.overlap, pool.found))
    order = order[used[pool.found[order]]]
    found, truth = pool.found[order], pool.truth[order]
    reached = UP_TO[np.searchsorted(THRESHOLDS, pool.overlap[order], side="right")]
    second = _settings(ignored)[truth]
    target = np.where(
        pool.crowd[truth], len(ignored) + np.arange(len(truth)), truth
    )  # a crowd is never taken
    turns = np.argsort(np.tile(found, 2), kind="stable")
    found, target = np.tile(found, 2)[turns], np.tile(target, 2)[turns]
    offers = np.concatenate([reached & ~second, reached & second])[turns]

    done, taken, won = [0] * len(used), [0] * (len(ignored) + len(truth)), []
    for one, other, offer in zip(found.tolist(), target.tolist(), offers.tolist(), strict=True):
        got = offer & ~(done[one] | taken[other])
        done[one] |= got
        taken[other] |= got
        won.append(got)
    result = np.zeros((2, len(used)), np.uint64)
    np.bitwise_or.at(result, (turns // max(1, len(truth)), found), np.array(won, np.uint64))
    return result[0], result[1]


def _places(group: Ints) -> Ints:
    """Where each detection stands in its group."""
    order = np.argsort(group, kind="stable")
    places = np.empty_like(group)
    places[order] = np.arange(len(group)) - np.searchsorted(group[order], group[order])
    return places


def _outside(area: Floats) -> Bools:
    """``[K, 4]``, which area ranges the areas ``[K]`` are not in."""
    return (area[:, None] < LEAST) | (area[:, None] > MOST)


def _settings(areas: Bools) -> Bits:
    """The settings of area ranges ``[K, 4]``."""
    return np.where(areas, OF_AREA, np.uint64(0)).sum(1, dtype=np.uint64)


def _bits(settings: Bits) -> Bools:
    """``[K, 40]``, one column for each setting."""
    octets = settings.astype("<u8").view(np.uint8).reshape(-1, 8)
    return np.unpackbits(octets, axis=1, count=40, bitorder="little").view(np.bool_)


def _at_recalls(seen: NDArray[np.int32], positives: int) -> Floats:
    """The best precision at each of the 101 recalls or above.

    Args:
        seen: How many detections there are down to each hit, itself included.
        positives: Objects that were to be found.
    """
    hits = np.arange(1, len(seen) + 1)
    best = np.maximum.accumulate((hits / seen)[::-1])[::-1]
    return np.append(best, 0.0)[np.searchsorted(hits / positives, RECALLS)]
