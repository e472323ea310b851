"""The one evaluator: VOC 2007, VOC area, Darknet's map and the twelve COCO numbers, in one pass."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, cast

import torch.distributed as dist
import torchmetrics
from torch.nn import Module

from yolo.metrics.average_precision import Points, average_precision, check_points
from yolo.metrics.coco import coco_numbers
from yolo.metrics.matching import Ranking, rank
from yolo.metrics.pictures import Picture, distinct, picture
from yolo.metrics.pool import pool
from yolo.types import Found, Record

ClassSet = Literal["present", "all"]
Number = float | None  # None (null in JSON): there was nothing to find

COCO_NAMES = (
    *("map", "map50", "map75", "map_small", "map_medium", "map_large"),
    *("mar_1", "mar_10", "mar_max", "mar_small", "mar_medium", "mar_large"),
)
SCALARS = (*COCO_NAMES, "voc07_map50", "voc_map50", "darknet_map50")


class ClassReport(TypedDict):
    """One class; the average precisions are None where the class has no object."""

    ap: Number  # COCO, mean over IoU .5 to .95
    ap50: Number  # COCO, 101 points
    ap75: Number
    voc07_ap50: Number  # 11 points
    voc_ap50: Number  # area
    darknet_ap50: Number
    truths: int  # objects that are to be found: neither difficult nor crowd
    detections: int
    true_positives: int  # VOC's rule at IoU .5, over all detections above the score threshold
    false_positives: int
    false_negatives: int


class Report(TypedDict):
    """What an evaluation says; every value is a JSON type."""

    map: Number  # COCO, and the eleven that follow in the order of pycocotools
    map50: Number
    map75: Number
    map_small: Number
    map_medium: Number
    map_large: Number
    mar_1: Number
    mar_10: Number
    mar_max: Number  # at max_detections
    mar_small: Number
    mar_medium: Number
    mar_large: Number
    voc07_map50: Number
    voc_map50: Number
    darknet_map50: Number
    per_class: dict[str, ClassReport]
    pictures: int
    truths: int
    detections: int
    settings: dict[str, Any]
    notes: list[str]


class DetectionMetric(torchmetrics.Metric):
    """Mean average precision of detections against the objects of a data set.

    The numbers depend on the set of pictures only: not on batches, order or the number of processes, and a
    picture that comes twice (distributed samplers pad with copies) counts once, by its ``image_id``.

    Args:
        classes: Names, in label order.
        score_threshold: Only scores strictly above it take part.
        max_detections: COCO's maxDets: best detections used per picture and class, by the COCO numbers only.
        class_set: ``present``: means run over the classes with an object (VOC, COCO); ``all``: the others
            count as 0 (Darknet's ``map``).
        points: How Darknet's map averages: ``area``, 11 or 101 recalls.
    """

    full_state_update = False
    higher_is_better = True
    pictures: list[Picture]

    def __init__(
        self,
        classes: Sequence[str],
        score_threshold: float = 0.0,
        max_detections: int = 100,
        class_set: ClassSet = "present",
        points: Points = "area",
    ) -> None:
        super().__init__()
        if not classes or len(set(classes)) != len(classes):
            raise ValueError(f"classes must be distinct names, at least one, got {list(classes)}")
        if class_set not in ("present", "all"):
            raise ValueError(f"class_set must be present or all, got {class_set!r}")
        if max_detections < 1:
            raise ValueError(f"max_detections must be at least 1, got {max_detections}")
        if not 0 <= score_threshold < 1:
            raise ValueError(f"score_threshold must be at least 0 and below 1, got {score_threshold}")
        self.classes = tuple(classes)
        self.score_threshold = score_threshold
        self.max_detections = max_detections
        self.class_set: ClassSet = class_set
        self.points = check_points(points)
        self.add_state("pictures", default=[], dist_reduce_fx=None)

    def update(self, found: Sequence[Found], records: Sequence[Record]) -> None:
        """Add pictures: what was found in each, in its own pixels, and its record."""
        if len(found) != len(records):
            raise ValueError(f"every picture needs one Found, got {len(found)} for {len(records)} pictures")
        for one, record in zip(found, records, strict=True):
            self.pictures.append(picture(one, record, len(self.classes), self.score_threshold))

    def compute(self) -> Report:
        """Evaluate everything that was added since the last reset."""
        pictures = distinct(self.pictures)
        flat = pool(pictures, len(self.classes))
        coco = coco_numbers(flat, self.max_detections)
        voc, darknet = rank(flat, "voc"), rank(flat, "darknet")
        columns = {
            "ap": coco.class_ap(),
            "ap50": coco.class_ap(0),
            "ap75": coco.class_ap(5),
            "voc07_ap50": [average_precision(one.hits, one.positives, 11) for one in voc],
            "voc_ap50": [average_precision(one.hits, one.positives) for one in voc],
            "darknet_ap50": [average_precision(one.hits, one.positives, self.points) for one in darknet],
        }
        per_class = {
            name: cast(
                ClassReport, {key: column[label] for key, column in columns.items()} | _counts(voc[label])
            )
            for label, name in enumerate(self.classes)
        }
        means = dict(zip(COCO_NAMES, coco.twelve(absent_as_zero=self.class_set == "all"), strict=True))
        for key in ("voc07", "voc", "darknet"):
            means[f"{key}_map50"] = self._mean(columns[f"{key}_ap50"])
        rest = {
            "per_class": per_class,
            "pictures": len(pictures),
            "truths": sum(one.positives for one in voc),
            "detections": sum(len(one.labels) for one in pictures),
            "settings": self.settings(),
            "notes": self._notes(pictures, voc),
        }
        return cast(Report, means | rest)

    def settings(self) -> dict[str, Any]:
        """The options that the numbers depend on."""
        return {
            "score_threshold": self.score_threshold,
            "max_detections": self.max_detections,
            "classes": self.class_set,
            "points": self.points,
        }

    def _mean(self, values: Sequence[Number]) -> Number:
        known = [value for value in values if value is not None]
        if not known:
            return None
        return sum(known) / (len(values) if self.class_set == "all" else len(known))

    def _notes(self, pictures: Sequence[Picture], rankings: Sequence[Ranking]) -> list[str]:
        notes = []
        if not any(one.positives for one in rankings):
            notes.append("no labels: the pictures have no object to find, so there is no average precision")
        if not any(len(one.labels) for one in pictures):
            notes.append(f"no detections above the score threshold {self.score_threshold:g}")
        dropped = sum(one.dropped for one in pictures)
        if dropped:
            notes.append(f"{dropped} detections left out: a coordinate or score is not a finite number")
        fullest = max((len(one.truth.labels) for one in pictures), default=0)
        if fullest > self.max_detections:
            notes.append(
                f"a picture holds {fullest} objects: COCO numbers at max_detections={self.max_detections}"
            )
        return notes

    def _apply(self, fn: Callable[..., Any], exclude_state: Sequence[str] = ()) -> Module:
        return super()._apply(fn, exclude_state=(*exclude_state, "pictures"))  # they stay in main memory

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] | None = None, process_group: Any = None) -> None:
        group = process_group or self.process_group
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, self.pictures, group=group)
        self.pictures = [one for rank_pictures in gathered for one in rank_pictures]


def _counts(ranking: Ranking) -> dict[str, Any]:
    return {
        "truths": ranking.positives,
        "detections": len(ranking.hits) + ranking.neutral,
        "true_positives": ranking.true_positives,
        "false_positives": ranking.false_positives,
        "false_negatives": ranking.positives - ranking.true_positives,
    }


def scalars(report: Report) -> dict[str, float]:
    """The means of a report for loggers and monitors, which need numbers: what is not available is 0."""
    values: dict[str, Any] = dict(report)
    return {name: 0.0 if values[name] is None else float(values[name]) for name in SCALARS}
