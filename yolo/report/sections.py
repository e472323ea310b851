"""The sections that reports share: how a model did on pictures, what the data are, how the run was started."""

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from yolo.data import Annotated, load_image
from yolo.metrics import Report
from yolo.metrics.pictures import Picture
from yolo.report import plots
from yolo.report.analysis import best_threshold, calibration, class_curves, confusion, judge
from yolo.report.draw import draw_truth_and_found, enlarged
from yolo.report.evaluation import CLASS_COLUMNS, MEANS
from yolo.report.page import Page, Part, Table, Text
from yolo.types import Found

PACKAGES = (
    *("yolo-lightning", "torch", "torchvision", "pytorch-lightning", "numpy", "opencv-python-headless"),
    *("onnx", "onnxruntime", "tensorrt", "tensorrt-rtx"),
)
WORST = 12  # pictures that are shown


@dataclass(frozen=True)
class Started:
    """How a run was started.

    Args:
        command: The words of the command line.
        config: The composed configuration, as YAML.
        seed: Of everything that is drawn; None where nothing is.
    """

    command: Sequence[str]
    config: str = ""
    seed: int | None = None

    @classmethod
    def now(cls, config: str = "", seed: int | None = None) -> "Started":
        """This process."""
        return cls(["python", *sys.argv], config, seed)


def add_scores(page: Page, report: Report) -> None:
    """The means, the classes and the settings that they depend on."""
    page.numbers += [
        ("mAP at IoU .5", number(report["map50"])),
        ("mAP at IoU .5 to .95", number(report["map"])),
        ("pictures", f"{report['pictures']:,}"),
        ("objects", f"{report['truths']:,}"),
    ]
    values: Mapping[str, object] = dict(report)
    means = Table(
        ("mean over classes", "value"), [(text, number(values[key])) for key, text in MEANS.items()]
    )
    settings = [(name, f"{value:g}" if isinstance(value, float) else str(value)) for name, value in
                report["settings"].items()]  # fmt: skip
    notes = [Text(note) for note in report["notes"]]
    page.add("Scores", *notes, means, Table(("setting", "value"), settings))
    rows = []
    for name, one in report["per_class"].items():
        cells: Mapping[str, object] = dict(one)
        rows.append((name, *(number(cells[key]) for key in CLASS_COLUMNS)))
    caption = "TP, FP and FN by VOC's rule at IoU .5, over all scores"
    page.add("Classes", Table(("class", *CLASS_COLUMNS.values()), rows, caption), folded=len(rows) > 20)


def add_evaluation(page: Page, pictures: Sequence[Picture], classes: Sequence[str]) -> None:
    """Curves, mix-ups, calibration and the worst pictures."""
    curves = class_curves(pictures, classes)
    if not curves:
        page.add("Curves", Text("The pictures have no object to find: there are no curves."))
        return
    labels = [list(classes).index(curve.name) for curve in curves]
    threshold, best = best_threshold(curves)
    page.numbers.append((f"best F1, at score {threshold:.2f}", f"{best:.3f}"))
    page.add(
        "Curves",
        page.plot("precision_recall", plots.precision_recall(curves, labels)),
        page.plot("f1", plots.f1(curves, labels, threshold)),
        page.plot(
            "class_ap",
            plots.class_bars(
                {curve.name: curve.ap50 for curve in curves}, "Average precision of classes", "AP at IoU .5"
            ),
        ),
        page.plot("calibration", plots.reliability(calibration(curves)), "Detections that score more than 0.05."),
    )  # fmt: skip
    table = confusion(pictures, len(classes), threshold)
    seen = np.flatnonzero((table.sum(0) + table.sum(1))[:-1]).tolist()  # the classes that occur
    kept = [*seen, len(classes)]
    names = [classes[label] for label in seen]
    caption = "Matched by overlap alone (IoU .5). Last row: false alarms; last column: missed objects."
    page.add(
        "Confusion",
        page.plot("confusion", plots.confusion_matrix(table[np.ix_(kept, kept)], names, threshold), caption),
    )
    add_worst(page, pictures, classes, threshold)


def add_worst(page: Page, pictures: Sequence[Picture], classes: Sequence[str], threshold: float) -> None:
    """The pictures with the lowest F1, truth on the left and detections on the right."""
    parts: list[Part] = []
    for index, row in enumerate(judge(pictures, threshold)[:WORST]):
        if row.f1 == 1.0:
            break
        one = row.picture
        image, factor = enlarged(load_image(one.path))
        truth = replace(one.truth, boxes=one.truth.boxes * factor)
        kept = one.scores > threshold
        boxes = (one.boxes[kept] * factor).astype(np.float32)
        found = Found(boxes, one.scores[kept].astype(np.float32), one.labels[kept])
        drawn = draw_truth_and_found(image, truth, found, classes)
        caption = (
            f"{Path(one.path).name}: {row.hits} found, {row.misses} missed, {row.false_alarms} false alarms"
        )
        parts.append(page.photo(f"worst_{index:02d}", drawn, caption))
    page.add(
        "Worst pictures",
        Text(f"Truth left, detections that score more than {threshold:.2f} right; lowest F1 first."),
        *(parts or [Text("Every object is found and there is no false alarm.")]),
    )


def add_data(page: Page, splits: Mapping[str, Annotated]) -> None:
    """Pictures, objects and problems of each split."""
    rows, per_picture = [], {}
    totals: dict[str, dict[str, int]] = {}
    for split, one in splits.items():
        counts = np.array([len(record.truth.labels) for record in one.records], np.int64)
        per_picture[split] = counts
        labels = np.concatenate([np.empty(0, np.int64), *(record.truth.labels for record in one.records)])
        of_class = np.bincount(labels, minlength=len(one.classes)).tolist()
        totals[split] = dict(zip(one.classes, of_class, strict=True))
        empty, lost = int((counts == 0).sum()), len(one.lost)
        rows.append((split, f"{len(counts):,}", f"{counts.sum():,}", f"{empty:,}", f"{lost:,}"))
    names = [name for split in totals for name in totals[split]]
    by_class = [
        (name, *(f"{totals[split].get(name, 0):,}" for split in totals)) for name in dict.fromkeys(names)
    ]
    first = next(iter(totals))
    page.add(
        "Data",
        Table(("split", "pictures", "objects", "without object", "problems"), rows),
        page.plot("data_classes", plots.class_bars(totals[first], f"Objects of each class, {first}", "objects")),
        page.plot("data_objects", plots.objects_per_picture(per_picture)),
        Table(("class", *totals), by_class, "objects") if len(by_class) <= 40 else None,
    )  # fmt: skip
    problems = [f"{split}: {one.summary()}" for split, one in splits.items() if one.problems]
    page.add("Problems in the data", *(Text(text, literal=True) for text in problems), folded=True)


def add_start(page: Page, started: Started) -> None:
    """The exact command, versions, machine and seed; the whole configuration folded."""
    rows = [("finished", datetime.now().astimezone().isoformat(" ", "seconds")), ("folder", str(page.folder))]
    if started.seed is not None:
        rows.append(("seed", str(started.seed)))
    rows += [("python", platform.python_version()), ("system", platform.platform())]
    rows += [(name, version) for name in PACKAGES if (version := _version(name))]
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    rows.append(("CPU", f"{os.cpu_count()} cores, {platform.machine()}"))
    rows += [("GPU", f"{', '.join(devices)}, CUDA {torch.version.cuda}")] if devices else [("GPU", "none")]
    page.add(
        "How it was run", Text(shlex.join(started.command), literal=True), Table(("what", "value"), rows)
    )
    if started.config:
        page.add("Configuration", Text(started.config.rstrip(), literal=True), folded=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def maybe(page: Page, name: str, figure: Figure | None, caption: str = "") -> Part | None:
    """A plot where there was something to plot."""
    return None if figure is None else page.plot(name, figure, caption)


def number(value: object) -> str:
    """As a person reads it; what is not available is a dash."""
    if value is None:
        return "\u2013"
    return (
        f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )
