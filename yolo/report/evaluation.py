"""An evaluation for people (tables) and for programs (metrics.json)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from yolo.data.image import load_image
from yolo.report.draw import draw_truth_and_found
from yolo.report.predictions import write_image
from yolo.types import Found, Record

if TYPE_CHECKING:  # torchmetrics takes a quarter of a GB, and drawings are wanted without it
    from yolo.metrics import Report

MEANS = {
    "voc07_map50": "VOC 2007, 11 points, IoU .5",
    "voc_map50": "VOC area, IoU .5",
    "darknet_map50": "Darknet map, IoU .5",
    "map": "COCO AP, IoU .5 to .95",
    "map50": "COCO AP, IoU .5",
    "map75": "COCO AP, IoU .75",
    "map_small": "COCO AP, small (area < 32 x 32 pixels)",
    "map_medium": "COCO AP, medium",
    "map_large": "COCO AP, large (area > 96 x 96 pixels)",
    "mar_1": "COCO AR, 1 detection",
    "mar_10": "COCO AR, 10 detections",
    "mar_max": "COCO AR, max_detections",
    "mar_small": "COCO AR, small",
    "mar_medium": "COCO AR, medium",
    "mar_large": "COCO AR, large",
}
CLASS_COLUMNS = {
    "voc07_ap50": "VOC07",
    "voc_ap50": "VOC area",
    "darknet_ap50": "Darknet",
    "ap": "COCO",
    "ap50": "AP50",
    "ap75": "AP75",
    "truths": "objects",
    "detections": "found",
    "true_positives": "TP",
    "false_positives": "FP",
    "false_negatives": "FN",
}


def evaluation_tables(report: "Report") -> list[Table]:
    """Per class, then the means, then the settings that the numbers depend on."""
    values: dict[str, Any] = dict(report)
    classes = _table(
        "per class; TP, FP and FN by VOC's rule at IoU .5, over all scores", "class", *CLASS_COLUMNS.values()
    )
    for name, row in report["per_class"].items():
        cells: dict[str, Any] = dict(row)
        classes.add_row(_literal(name), *(_cell(cells[key]) for key in CLASS_COLUMNS))
    means = _table(f"{report['pictures']} pictures, {report['truths']} objects", "mean", "value")
    for key, meaning in MEANS.items():
        means.add_row(meaning, _cell(values[key]))
    settings = _table("settings", "setting", "value")
    for key, value in report["settings"].items():
        settings.add_row(key, _literal(f"{value:g}" if isinstance(value, float) else str(value)))
    return [classes, settings, means]


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cell(value: float | int | None) -> str:
    if value is None:
        return "n/a"
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def _literal(text: str) -> str:
    return text.replace("[", r"\[")  # rich would take brackets for styles


def write_metrics(report: "Report", path: Path) -> None:
    """Write metrics.json; what is not available is null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def write_results(
    found: Sequence[Found],
    records: Sequence[Record],
    classes: Sequence[str],
    path: Path,
    category_ids: Mapping[str, int] | None = None,
) -> None:
    """Write detections as COCO results, one a line, under the ids that the ground truth has.

    Args:
        found: As the evaluation used them.
        records: The pictures.
        classes: Names in the order of the labels.
        path: The file.
        category_ids: Ids of the names in the COCO file of the ground truth, -1 stands for a name that it lacks; None
            or empty: the labels.
    """
    rows = []
    for one, record in zip(found, records, strict=True):
        image_id = record.image_id if record.coco_id is None else record.coco_id
        for corners, score, label in zip(
            one.boxes.tolist(), one.scores.tolist(), one.labels.tolist(), strict=True
        ):
            x1, y1, x2, y2 = corners
            xywh = [round(value, 3) for value in (x1, y1, x2 - x1, y2 - y1)]
            row = {
                "image_id": image_id,
                "category_id": category_ids.get(classes[label], -1) if category_ids else label,
                "category": classes[label],
                "label": label,
                "bbox": xywh,
                "score": round(score, 6),
            }
            rows.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n", "utf-8")


def draw_results(
    found: Sequence[Found],
    records: Sequence[Record],
    classes: Sequence[str],
    folder: Path,
    *,
    count: int,
    score_threshold: float,
) -> None:
    """Draw truth and detections of the first pictures side by side.

    Args:
        found: As the evaluation used them.
        records: The pictures.
        classes: Names.
        folder: For the drawings, which are numbered.
        count: How many pictures.
        score_threshold: Of the detections that are drawn.
    """
    for index, (one, record) in enumerate(zip(found[:count], records[:count], strict=True)):
        strong = one.scores > score_threshold
        kept = Found(one.boxes[strong], one.scores[strong], one.labels[strong])
        drawn = draw_truth_and_found(load_image(record.path), record.truth, kept, classes)
        write_image(folder / f"{index:04d}_{Path(record.path).stem}.png", drawn)
