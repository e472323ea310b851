"""Runs side by side: what they scored, where they differ, and their curves."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table as RichTable

from yolo.report import plots
from yolo.report.curves import Series, read_metrics
from yolo.report.page import Page, Plot, Table
from yolo.report.sections import number

VALIDATION = {"val/map": "mAP, IoU .5 to .95", "val/map50": "mAP, IoU .5", "val/map75": "mAP, IoU .75"}
EVALUATION = {"map": "mAP, IoU .5 to .95", "map50": "mAP, IoU .5", "map75": "mAP, IoU .75"}
EVALUATION |= {"voc_map50": "VOC area", "darknet_map50": "Darknet map"}
ABSENT = "\u2013"


@dataclass(frozen=True)
class Run:
    """One run folder.

    Args:
        name: As the tables call it.
        numbers: What it came to.
        options: Its configuration, flat: ``data.batch_size`` to ``16``.
        curves: What it logged, by column of ``metrics.csv``.
    """

    name: str
    numbers: Mapping[str, str]
    options: Mapping[str, str]
    curves: Mapping[str, Series]


def read_run(folder: Path, config: Mapping[str, Any], name: str | None = None) -> Run:
    """Read what a training run (``metrics.csv``) or an evaluation (``metrics.json``) left.

    Args:
        folder: The run folder.
        config: Its ``.hydra/config.yaml``, nested; empty if there is none.
        name: Of the run; None: that of the folder.

    Raises:
        ValueError: It is no folder with the results of a run.
    """
    curves = read_metrics(folder / "metrics.csv")
    numbers = _trained(curves)
    path = folder / "metrics.json"
    if path.is_file():
        try:
            report = json.loads(path.read_text("utf-8"))
            numbers |= {f"evaluation: {words}": number(report[key]) for key, words in EVALUATION.items()}
            numbers["evaluation: pictures"] = number(report["pictures"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not the metrics of an evaluation ({error!r})") from error
    if not numbers:
        raise ValueError(f"{folder}: no run folder: neither metrics.csv nor metrics.json is in it")
    return Run(name or folder.name, numbers, dict(_flat(config)), curves)


def _trained(curves: Mapping[str, Series]) -> dict[str, str]:
    """The best validation, the last loss, and the speed of a training run."""
    numbers = {}
    best = curves.get("val/map")
    if best is not None:
        at = int(np.argmax(best.values))
        numbers["best epoch"] = ABSENT if math.isnan(best.epochs[at]) else f"{best.epochs[at] + 1:.0f}"
        for key, words in VALIDATION.items():
            series = curves.get(key)
            if series is not None and best.steps[at] in series.steps:
                numbers[f"best epoch: {words}"] = number(series.values[series.steps.index(best.steps[at])])
    loss = curves.get("train/loss_epoch", curves.get("train/loss_step"))
    if loss is not None:
        numbers["last loss"] = number(loss.values[-1])
        numbers["steps"] = number(loss.steps[-1] + 1)
    speed = curves.get("speed/images_per_second")
    if speed is not None:
        numbers["pictures a second, median"] = f"{float(np.median(speed.values)):,.1f}"
    return numbers


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", str(value)))
    return rows


def number_rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for every number that one of the runs has."""
    names = dict.fromkeys(name for run in runs for name in run.numbers)
    return [(name, *(run.numbers.get(name, ABSENT) for run in runs)) for name in names]


def option_rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for every option in which runs of one kind (trainings, evaluations) differ, apart from their names."""
    kinds = [[run for run in runs if bool(run.curves) == trained] for trained in (True, False)]
    differ = {
        name: None
        for kind in kinds
        for name in dict.fromkeys(name for run in kind for name in run.options)
        if name != "name" and len({run.options.get(name, ABSENT) for run in kind}) > 1
    }
    return [(name, *(run.options.get(name, ABSENT) for run in runs)) for name in differ]


def compare_tables(runs: Sequence[Run]) -> list[RichTable]:
    """The same for the terminal."""
    tables = []
    for title, rows in (("results", number_rows(runs)), ("options that differ", option_rows(runs))):
        table = RichTable(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
        table.add_column("", overflow="fold")
        for run in runs:
            table.add_column(run.name, justify="right", overflow="fold")
        for row in rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))  # rich would take brackets for styles
        tables.append(table)
    return tables


def compare_report(runs: Sequence[Run], output: Path) -> Path:
    """Write one self-contained page; its plots lie in ``report/`` beside it."""
    page = Page(output.parent, "Runs side by side", ", ".join(run.name for run in runs))
    names = ["", *(run.name for run in runs)]
    page.add("Results", Table(names, number_rows(runs)))
    shown = {**VALIDATION, "train/loss_epoch": "loss", "speed/images_per_second": "pictures a second"}
    page.add("Curves", *(_curve(page, runs, key, words) for key, words in shown.items()))
    differ = option_rows(runs)
    page.add("Options that differ", Table(names, differ) if differ else None)
    return page.write(output.name)


def _curve(page: Page, runs: Sequence[Run], key: str, words: str) -> Plot | None:
    found = {run.name: run.curves[key] for run in runs if key in run.curves}
    if not found:
        return None
    figure = plots.overlaid(found, words, words, log=key.startswith("train/"))
    return page.plot(f"compare_{key.replace('/', '_')}", figure)
