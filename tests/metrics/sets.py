"""Small evaluation sets: written by hand, or read from COCO files in the plainest way."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from yolo.metrics import DetectionMetric, Report
from yolo.types import Found, Record, Truth


def truth(
    boxes: Any = (), labels: Any = None, crowd: Any = None, difficult: Any = None, area: Any = None
) -> Truth:
    boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
    count = len(boxes)
    size = boxes[:, 2:] - boxes[:, :2]
    return Truth(
        boxes,
        np.zeros(count, np.int64) if labels is None else np.asarray(labels, np.int64),
        np.zeros(count, bool) if crowd is None else np.asarray(crowd, bool),
        np.zeros(count, bool) if difficult is None else np.asarray(difficult, bool),
        size.prod(1) if area is None else np.asarray(area, np.float32),
    )


def found(boxes: Any = (), scores: Any = (), labels: Any = None) -> Found:
    boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
    names = np.zeros(len(boxes), np.int64) if labels is None else np.asarray(labels, np.int64)
    return Found(boxes, np.asarray(scores, np.float32), names)


def record(image_id: str, of: Truth, coco_id: int | None = None) -> Record:
    return Record(image_id, f"{image_id}.png", of, coco_id)


def score(
    classes: Sequence[str], found: Sequence[Found], records: Sequence[Record], **options: Any
) -> Report:
    metric = DetectionMetric(classes, **options)
    metric.update(found, records)
    return metric.compute()


def read_set(truths: Path, detections: Path) -> tuple[list[str], list[Found], list[Record]]:
    """Class names, detections and records of a COCO annotation file and a result file."""
    annotated, results = json.loads(truths.read_text()), json.loads(detections.read_text())
    categories = sorted(annotated["categories"], key=lambda row: row["id"])
    label = {row["id"]: index for index, row in enumerate(categories)}
    wanted, got = defaultdict(list), defaultdict(list)
    for row in annotated["annotations"]:
        wanted[row["image_id"]].append(row)
    for row in results:
        got[row["image_id"]].append(row)
    founds, records = [], []
    for image in annotated["images"]:
        rows, hits = wanted[image["id"]], got[image["id"]]
        of = truth(
            [xyxy(row["bbox"]) for row in rows],
            [label[row["category_id"]] for row in rows],
            [row.get("iscrowd", 0) for row in rows],
            [row.get("ignore", 0) for row in rows],
            [row["area"] for row in rows],
        )
        records.append(Record(str(image["id"]), image["file_name"], of, image["id"]))
        founds.append(
            found(
                [xyxy(row["bbox"]) for row in hits],
                [row["score"] for row in hits],
                [label[row["category_id"]] for row in hits],
            )
        )
    return [str(row["name"]) for row in categories], founds, records


def xyxy(box: Sequence[float]) -> list[float]:
    x, y, width, height = box
    return [x, y, x + width, y + height]
