"""COCO: a JSON file per split."""

import json
from functools import partial
from typing import Any

from yolo.data.formats.annotated import Annotated
from yolo.data.formats.coco import read_coco
from yolo.data.writers.plan import Entry, Plan, shortest


def write_coco(plan: Plan) -> dict[str, partial[Annotated]]:
    """``annotations/SPLIT.json`` and the pictures in ``SPLIT``."""
    ids = plan.category_ids
    if len(ids) != len(plan.classes) or list(ids) != sorted({number for number in ids if number >= 0}):
        ids = tuple(range(1, len(plan.classes) + 1))
    categories = [{"id": number, "name": name} for number, name in zip(ids, plan.classes, strict=True)]
    (plan.root / "annotations").mkdir(parents=True)
    readers = {}
    for split, entries in plan.splits.items():
        known = [entry.record.coco_id for entry in entries]
        numbers = known if None not in known and len(set(known)) == len(known) else range(1, len(known) + 1)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number, entry in zip(numbers, entries, strict=True):
            plan.place(entry, plan.root / split)
            height, width = entry.size
            images.append({"id": number, "file_name": entry.name, "width": width, "height": height})
            for row in _rows(entry, ids):
                annotations.append({"id": len(annotations) + 1, "image_id": number, **row})
        data = {"images": images, "annotations": annotations, "categories": categories}
        path = plan.root / "annotations" / f"{split}.json"
        path.write_text(json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
        readers[split] = partial(read_coco, annotations=path, images=plan.root / split, classes=plan.classes)
    return readers


def _rows(entry: Entry, ids: tuple[int, ...]) -> list[dict[str, Any]]:
    truth, rows = entry.truth, []
    for index, box in enumerate(truth.boxes):
        x1, y1, x2, y2 = (float(shortest(value)) for value in box)
        row: dict[str, Any] = {
            "category_id": ids[int(truth.labels[index])],
            "bbox": [x1, y1, *(float(f"{side:.10g}") for side in (x2 - x1, y2 - y1))],
            "area": float(shortest(truth.area[index])),
            "iscrowd": int(truth.crowd[index]),
        }
        if truth.difficult[index]:
            row["ignore"] = 1
        rows.append(row)
    return rows
