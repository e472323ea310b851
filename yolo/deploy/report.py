"""What an export says at its end: tables, and the same as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from yolo.deploy.export import Exported
from yolo.deploy.parity import Row
from yolo.metrics import Report

SHOWN_LAYERS = 10
NUMBERS = ("map50", "map", "darknet_map50")


def parity_table(done: Exported) -> Table:
    """Every artifact against PyTorch in float32, one column each."""
    table = Table(title="against PyTorch fp32")
    table.add_column("")
    for row in done.rows:
        table.add_column(row.artifact)
    columns = [_column(row) for row in done.rows]
    for index, name in enumerate(_ROWS):
        table.add_row(name, *(column[index] for column in columns))
    return table


_ROWS = (
    *("verdict", "images", "pictures", "detections", "matched", "least IoU of a pair"),
    *("largest difference of a box, px", "of a score", "of a raw box, px", "of a raw score"),
)


def _column(row: Row) -> list[str]:
    if row.not_run:
        return [row.verdict, *[""] * (len(_ROWS) - 1)]
    raw = ["in the graph" if one is None else f"{one:.2g}" for one in (row.raw_box_px, row.raw_score)]
    numbers = [f"{row.min_iou:.4f}", f"{row.box_px:.2g}", f"{row.score:.2g}"]
    matched = f"{row.matched:.4f}" if row.detections else "none to match"
    return [row.verdict, row.shape, str(row.pictures), str(row.detections), matched, *numbers, *raw]


def sensitivity_table(done: Exported) -> Table:
    """The layers that suffer most from int8."""
    table = Table(title="int8, one layer at a time: change of the raw outputs")
    for name in ("layer", "error", "stays wide"):
        table.add_column(name)
    for row in done.sensitivity[:SHOWN_LAYERS]:
        table.add_row(row.name, f"{row.error:.4f}", done.about.kept.get(row.name, ""))
    rest = len(done.sensitivity) - SHOWN_LAYERS
    if rest > 0:
        table.add_row(f"... {rest} more", f"below {done.sensitivity[SHOWN_LAYERS - 1].error:.4f}", "")
    return table


def score_table(scores: Mapping[str, Report]) -> Table:
    """Scores side by side."""
    table = Table(title="on pictures that calibration did not see")
    for name in ("", *NUMBERS):
        table.add_column(name)
    for name, report in scores.items():
        table.add_row(name, *("none" if value is None else f"{value:.4f}" for value in _numbers(report)))
    return table


def _numbers(report: Report) -> list[float | None]:
    return [report["map50"], report["map"], report["darknet_map50"]]


def write_report(done: Exported, scores: Mapping[str, Report], path: Path) -> None:
    """All of it as JSON."""
    content = {
        "file": str(done.path),
        "passed": done.passed,
        "rows": [{**asdict(row), "verdict": row.verdict} for row in done.rows],
        "sensitivity": [row._asdict() for row in done.sensitivity],
        "kept": done.about.kept,
        "scores": {
            name: dict(zip(NUMBERS, _numbers(report), strict=True)) for name, report in scores.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), "utf-8")
