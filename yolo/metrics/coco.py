"""The twelve COCO numbers, by faster-coco-eval (Apache-2.0), a compiled evaluator that equals pycocotools."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from numpy.typing import NDArray

from yolo.metrics.pictures import Picture

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CocoNumbers:
    """Precision and recall per class; -1 where a class has no object in the area range."""

    precision: NDArray[np.float64]  # [10 IoUs .5 to .95, 101 recalls, C, 4 areas: all small medium large]
    recall: NDArray[np.float64]  # [10, C, 4 areas, 3 limits: 1, 10, max_detections]

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


def _mean(values: NDArray[np.float64], absent_as_zero: bool) -> float | None:
    known = values[values > -1]
    if len(known) == 0:
        return None
    return float(known.sum() / values.size) if absent_as_zero else float(known.mean())


def coco_numbers(pictures: Sequence[Picture], num_classes: int, max_detections: int) -> CocoNumbers:
    """Evaluate by the rules of pycocotools.

    Crowd regions absorb any number of detections (by intersection over the detection's area). VOC's
    ``difficult`` and the ``ignore`` field of a COCO file are not honoured: such objects count, as in
    pycocotools. Objects are numbered anew from 1: an annotation id of 0 cannot turn a hit into a miss.

    Args:
        pictures: In the order in which equal scores are ranked.
        num_classes: C.
        max_detections: Best detections used, per picture and class.
    """
    images = [{"id": index} for index in range(len(pictures))]
    categories = [{"id": label} for label in range(num_classes)]
    truth = COCO({"images": images, "categories": categories, "annotations": _truths(pictures)})
    found = COCO({"images": images, "categories": categories, "annotations": _founds(pictures)})
    evaluation = COCOeval_faster(truth, found, iouType="bbox", print_function=log.debug)
    limits = [min(limit, max_detections) for limit in (1, 10, max_detections)]
    evaluation.params.maxDets = sorted(set(limits))
    columns = [evaluation.params.maxDets.index(limit) for limit in limits]
    evaluation.evaluate()
    evaluation.accumulate()
    return CocoNumbers(evaluation.eval["precision"][..., -1], evaluation.eval["recall"][..., columns])


def _truths(pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index, one in enumerate(pictures):
        boxes = _xywh(np.asarray(one.truth.boxes, np.float64).reshape(-1, 4))
        columns = (boxes, one.truth.labels.tolist(), one.truth.crowd.tolist(), one.truth.area.tolist())
        for box, label, crowd, area in zip(*columns, strict=True):
            row = {"id": len(rows) + 1, "image_id": index, "category_id": label, "bbox": box}
            rows.append(row | {"iscrowd": int(crowd), "area": area})
    return rows


def _founds(pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index, one in enumerate(pictures):
        columns = (_xywh(one.boxes), one.labels.tolist(), one.scores.tolist())
        for box, label, score in zip(*columns, strict=True):
            row = {"id": len(rows) + 1, "image_id": index, "category_id": label, "bbox": box}
            rows.append(row | {"score": score, "area": box[2] * box[3], "iscrowd": 0})
    return rows


def _xywh(boxes: NDArray[np.float64]) -> list[list[float]]:
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1).tolist()
