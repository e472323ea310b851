"""The reports of a training run, an evaluation and an export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.table import Table as RichTable

from yolo.anchors import Assignment, Study, measure
from yolo.data import Annotated, Preprocess
from yolo.metrics import DetectionMetric, Report
from yolo.metrics.pictures import Picture, picture
from yolo.ops.heads import HeadSpec
from yolo.report import plots
from yolo.report.anchors import plot_cloud
from yolo.report.curves import Series, read_metrics
from yolo.report.page import Page, Part, Table, Text
from yolo.report.sections import Started, add_data, add_evaluation, add_scores, add_start, maybe, number
from yolo.types import Found, Record

MEASURED = 2000  # pictures whose sizes are read for the anchors


@dataclass(frozen=True)
class Validated:
    """What the best validation of a run saw."""

    pictures: Sequence[Picture]
    epoch: int  # counted from 1
    share: str = ""  # what they are of the split, where they are not all of it


@dataclass(frozen=True)
class Priors:
    """What it takes to show anchors over the boxes of a data set."""

    preprocess: Preprocess
    specs: Sequence[HeadSpec]
    assignment: Assignment
    factors: Sequence[float] = (1.0,)  # of multi-scale training


def training_report(
    folder: Path,
    classes: Sequence[str],
    splits: Mapping[str, Annotated],
    started: Started,
    validated: Validated | None = None,
    priors: Priors | None = None,
) -> Path:
    """Write the report of a training run from what lies in its folder and what the trainer still holds.

    Args:
        folder: With ``metrics.csv`` and, from the first batches, ``report/batch_*.jpg``.
        classes: Names in label order.
        splits: The data, by name of the split.
        started: How the run was started.
        validated: None: the parts about the validation are left out.
        priors: None: the parts about anchors are left out.

    Returns:
        The file.
    """
    page = Page(folder, f"Training: {folder.name}", f"{len(classes)} classes: {', '.join(classes[:20])}")
    curves = read_metrics(folder / "metrics.csv")
    if validated is not None and validated.pictures:
        add_scores(page, _scored(validated.pictures, classes))
        page.about += f". Scores and pictures are those of epoch {validated.epoch}, the best{validated.share}"
    page.add(
        "Training",
        maybe(page, "losses", plots.losses(curves)),
        maybe(page, "scores", plots.scores(curves)),
        maybe(page, "learning_rate", plots.learning_rate(curves)),
        maybe(page, "speed", plots.speed(curves)),
    )
    _speed(page, curves.get("speed/images_per_second"))
    if validated is not None and validated.pictures:
        add_evaluation(page, validated.pictures, classes)
    batches = sorted((folder / "report").glob("batch_*.jpg"))
    page.add(
        "First batches",
        *(page.file(path, f"batch {index + 1} as the network sees it") for index, path in enumerate(batches)),
    )
    if priors is not None and priors.specs[0].all_anchors:
        page.add("Anchors", *_anchors(page, splits["train"], priors, started.seed or 0))
    add_data(page, splits)
    add_start(page, started)
    return page.write()


def evaluation_report(
    folder: Path,
    report: Report,
    found: Sequence[Found],
    records: Sequence[Record],
    classes: Sequence[str],
    split: Mapping[str, Annotated],
    started: Started,
    seconds: float,
) -> Path:
    """Write the report of an evaluation.

    Args:
        folder: The run folder.
        report: Of :func:`yolo.evaluate.evaluate`, as the two that follow.
        found: Detections.
        records: Pictures, labels numbered as in the model.
        classes: Of the model.
        split: The data, under the name of the split.
        started: How the evaluation was started.
        seconds: It took, from the first file to the numbers.

    Returns:
        The file.
    """
    settings = report["settings"]
    page = Page(folder, f"Evaluation: {folder.name}", f"{settings['weights']} on {settings['split']}")
    add_scores(page, report)
    page.numbers.append(("pictures a second, all counted", f"{report['pictures'] / max(seconds, 1e-9):,.1f}"))
    floor = float(settings["score_threshold"])
    pictures = [picture(one, record, len(classes), floor) for one, record in zip(found, records, strict=True)]
    add_evaluation(page, pictures, classes)
    add_data(page, split)
    add_start(page, started)
    return page.write()


def export_report(
    folder: Path, path: Path, passed: bool, tables: Sequence[RichTable], started: Started
) -> Path:
    """Write the report of an export: its tables, as the tool prints them.

    Args:
        folder: The run folder.
        path: What was written.
        passed: The verdict of the comparison with PyTorch.
        tables: Parity, sensitivity, scores.
        started: How the export was started.

    Returns:
        The file.
    """
    page = Page(folder, f"Export: {path.name}", str(path))
    size = sum(one.stat().st_size for one in ([path] if path.is_file() else path.rglob("*")) if one.is_file())
    page.numbers += [("against PyTorch", "passed" if passed else "failed"), ("MB", f"{size / 1e6:,.1f}")]
    for index, table in enumerate(tables):
        page.add(str(table.title or f"Table {index + 1}").capitalize(), from_rich(table))
    add_start(page, started)
    return page.write()


def from_rich(table: RichTable) -> Table:
    """A table of the terminal for the page."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return Table([str(column.header) for column in table.columns], list(zip(*columns, strict=True)))


def _scored(pictures: Sequence[Picture], classes: Sequence[str]) -> Report:
    metric = DetectionMetric(classes)
    metric.sync_on_compute = False  # the other processes of the run have left already
    metric.pictures = list(pictures)
    metric.update([], [])  # torchmetrics warns of a metric that saw nothing
    return metric.compute()


def _speed(page: Page, series: Series | None) -> None:
    if series is not None:
        page.numbers.append(("training pictures a second", f"{float(np.median(series.values)):,.0f}"))


def _anchors(page: Page, annotated: Annotated, priors: Priors, seed: int) -> list[Part]:
    """The model's anchors over the boxes as the network sees them, and how well they fit."""
    step = max(1, len(annotated.records) // MEASURED)
    some = replace(annotated, records=annotated.records[::step])
    boxes = measure(some, priors.preprocess)
    if not boxes.all.boxes:
        return [Text("The training split has no boxes.")]
    study = Study(boxes, priors.specs, priors.assignment, priors.factors, seed)
    fit = next(iter(study.fits.values()))
    path = page.folder / "report" / "anchors.png"
    plot_cloud(study.seen, {"anchors of the model": fit}, path, seed)
    heads = [(f"stride {spec.stride:g}", f"{share:.1%}") for spec, share in
             zip(fit.specs, fit.heads, strict=True)]  # fmt: skip
    rows = [
        ("average IoU", number(fit.average_iou)),
        (f"recall: {fit.assignment.served}", f"{fit.recall:.1%}"),
    ]
    rows += [("boxes that train no head", f"{fit.lost:.1%}"), *heads]
    every = "" if step == 1 else f" (every {step}th picture)"
    return [
        page.file(path, f"Box sizes of the training split as the network sees them{every}."),
        Table(("fit", "value"), rows, f"an object trains {fit.assignment}"),
    ]
