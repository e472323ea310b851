"""The plots of a report, each a matplotlib figure; nothing here reads or writes files."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from yolo.report.analysis import THRESHOLDS, Calibration, ClassCurve
from yolo.report.curves import Curves, Series
from yolo.report.draw import color

INK, ACCENT, SECOND, PALE = "#30475e", "#d1495b", "#00798c", "#b8c4ce"
NAMED = 10  # more classes than that are drawn pale, with their mean in front
TERMS = ("#d1495b", "#00798c", "#edae49", "#66a182", "#8d6cab", "#4c78a8", "#9c755f")


def _axes(width: float = 7.0, height: float = 4.2) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _hue(label: int) -> tuple[float, float, float]:
    red, green, blue = (channel / 255 * 0.85 for channel in color(label))
    return red, green, blue


def losses(curves: Curves) -> Figure | None:
    """Every loss term and their sum: epochs in front, single steps pale behind."""
    figure, axes = _axes()
    names = sorted({name.removesuffix("_step").removesuffix("_epoch") for name in _of(curves, "train/")})
    names.sort(key=lambda name: name != "train/loss")
    for name, tint in zip(names, (INK, *TERMS), strict=False):
        steps, epochs = curves.get(f"{name}_step"), curves.get(f"{name}_epoch", curves.get(name))
        if steps is not None:
            axes.plot(steps.steps, steps.values, color=tint, alpha=0.25, linewidth=0.8)
        shown = epochs or steps
        if shown is not None:
            style = "-" if len(shown.values) > 1 else "o"
            axes.plot(shown.steps, shown.values, style, color=tint, linewidth=2, label=name[6:])
    if not names:
        return None
    axes.set(xlabel="optimiser step", ylabel="loss per picture", yscale="log", title="Losses")
    figure.legend(loc="outside lower center", frameon=False, ncols=min(5, len(names)))
    return figure


def scores(curves: Curves) -> Figure | None:
    """MAP on the validation split after each epoch that was scored."""
    found = {name[4:]: curves[name] for name in _of(curves, "val/map")}
    if not found:
        return None
    figure, axes = _axes()
    order = sorted(found, key=lambda name: -max(found[name].values))
    for name, tint in zip(order, (SECOND, INK, ACCENT), strict=False):
        axes.plot(_epochs(found[name]), found[name].values, "o-", color=tint, markersize=4, label=name)
    best = found.get("map", next(iter(found.values())))
    at = int(np.argmax(best.values))
    axes.axvline(_epochs(best)[at], color=PALE, linestyle="--", zorder=0)
    axes.set(
        xlabel="epoch", ylabel="average precision", ylim=(0, 1.02), title="Scores on the validation split"
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", frameon=False, ncols=len(found))
    return figure


def learning_rate(curves: Curves) -> Figure | None:
    """The learning rate of each parameter group."""
    found = {name: curves[name] for name in _of(curves, "lr")}
    if not found:
        return None
    figure, axes = _axes(height=3.2)
    distinct: dict[tuple[float, ...], tuple[list[str], Series]] = {}
    for name, series in found.items():  # groups that differ in weight decay alone are one line
        distinct.setdefault(tuple(series.values), ([], series))[0].append(name)
    for (names, series), tint in zip(distinct.values(), (INK, *TERMS), strict=False):
        axes.plot(series.steps, series.values, color=tint, label=", ".join(names))
    axes.set(xlabel="optimiser step", ylabel="learning rate", ylim=(0, None), title="Learning rate")
    if len(distinct) > 1:
        axes.legend(frameon=False)
    return figure


def speed(curves: Curves) -> Figure | None:
    """Training pictures a second, epoch by epoch."""
    series = curves.get("speed/images_per_second")
    if series is None:
        return None
    figure, axes = _axes(height=3.2)
    axes.plot(_epochs(series), series.values, "o-", color=INK, markersize=3)
    axes.set(xlabel="epoch", ylabel="pictures a second", ylim=(0, None), title="Training speed")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def overlaid(runs: Mapping[str, Series], title: str, unit: str, log: bool = False) -> Figure:
    """The same number of several runs, over their epochs."""
    figure, axes = _axes()
    for (name, series), tint in zip(runs.items(), cycle((INK, *TERMS)), strict=False):
        style = "o-" if len(series.values) <= 40 else "-"
        axes.plot(_epochs(series), series.values, style, color=tint, markersize=4, label=name)
    axes.set(xlabel="epoch", ylabel=unit, title=title, yscale="log" if log else "linear")
    if not log:
        axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", frameon=False, ncols=min(3, len(runs)))
    return figure


def precision_recall(curves: Sequence[ClassCurve], labels: Sequence[int]) -> Figure:
    """Precision over recall of each class, and the mean over classes of the best precision at each recall."""
    figure, axes = _axes()
    recalls = np.linspace(0, 1, 101)
    every = []
    for curve, label in zip(curves, labels, strict=True):
        best = np.maximum.accumulate(curve.precision[::-1])[::-1]
        at = np.searchsorted(curve.recall, recalls)
        every.append(np.append(best, 0.0)[at])
        few = len(curves) <= NAMED
        axes.plot(
            np.concatenate([[0.0], curve.recall]),
            np.concatenate([best[:1], best]) if len(best) else [0.0],
            color=_hue(label) if few else PALE,
            linewidth=1.4 if few else 0.8,
            label=f"{curve.name} {curve.ap50:.3f}" if few else None,
        )
    mean = np.mean([curve.ap50 for curve in curves])
    axes.plot(recalls, np.mean(every, 0), color=INK, linewidth=2.5, label=f"mean of classes {mean:.3f}")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    axes.set_title("Precision and recall at IoU .5 (area under the curve)")
    _legend(axes)
    return figure


def f1(curves: Sequence[ClassCurve], labels: Sequence[int], threshold: float) -> Figure:
    """F1 of each class over the score threshold."""
    figure, axes = _axes()
    few = len(curves) <= NAMED
    for curve, label in zip(curves, labels, strict=True):
        axes.plot(
            THRESHOLDS,
            curve.f1(),
            color=_hue(label) if few else PALE,
            linewidth=1.4 if few else 0.8,
            label=curve.name if few else None,
        )
    mean = np.mean([curve.f1() for curve in curves], 0)
    axes.plot(THRESHOLDS, mean, color=INK, linewidth=2.5, label="mean of classes")
    axes.axvline(threshold, color=ACCENT, linestyle="--", label=f"best threshold {threshold:.2f}")
    axes.set(xlabel="score threshold", ylabel="F1", xlim=(0, 1), ylim=(0, 1.02))
    axes.set_title(f"F1 at IoU .5; best mean {mean.max():.3f}")
    _legend(axes)
    return figure


def class_bars(values: Mapping[str, float], title: str, unit: str, most: int = 60) -> Figure:
    """A bar a class, the longest first; of very many the two ends are drawn."""
    ranked = sorted(values.items(), key=lambda item: -item[1])
    if len(ranked) > most:
        ranked = [*ranked[: most // 2], *ranked[-most // 2 :]]
        title = f"{title} (the {most // 2} highest and lowest of {len(values)})"
    figure, axes = _axes(height=1.3 + 0.27 * len(ranked))
    places = np.arange(len(ranked))[::-1]
    bars = axes.barh(places, [value for _, value in ranked], color=SECOND, height=0.72)
    whole = all(float(value).is_integer() for _, value in ranked) and max(values.values()) > 1
    shown = [f"{value:,.0f}" if whole else f"{value:.3f}" for _, value in ranked]
    axes.bar_label(bars, shown, padding=3, fontsize=8)
    axes.set_yticks(places, [_short(name) for name, _ in ranked])
    axes.set(xlabel=unit, title=title, ylim=(-0.7, len(ranked) - 0.3))
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    return figure


def confusion_matrix(table: NDArray[np.int64], classes: Sequence[str], threshold: float) -> Figure:
    """Shares of each row: what the objects of a class were found as."""
    names = [_short(name) for name in classes]
    side = min(12.0, max(5.0, 2.4 + 0.45 * len(table)))
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.add_subplot()
    share = table / np.maximum(1, table.sum(1, keepdims=True))
    share[-1] = table[-1] / max(1, table[-1].max())  # false alarms have no total to be a share of
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    if len(table) <= 26:
        for row, column in zip(*np.nonzero(table), strict=True):
            ink = "white" if share[row, column] > 0.55 else "black"
            size = 9 if len(table) <= 14 else 7
            axes.text(
                column, row, f"{table[row, column]}", ha="center", va="center", color=ink, fontsize=size
            )
    small = 9 if len(table) <= 26 else 5
    axes.set_xticks(range(len(table)), [*names, "missed"], rotation=90, fontsize=small)
    axes.set_yticks(range(len(table)), [*names, "background"], fontsize=small)
    axes.axhline(len(classes) - 0.5, color=INK, linewidth=0.8)
    axes.axvline(len(classes) - 0.5, color=INK, linewidth=0.8)
    axes.set(xlabel="found as", ylabel="is")
    axes.set_title(f"What is taken for what, scores above {threshold:.2f}")
    figure.colorbar(image, shrink=0.7, label="share of the row")
    return figure


def reliability(table: Calibration) -> Figure:
    """Mean score against the share that found an object; on the diagonal a score is a probability."""
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    full = table.count > 0
    axes.plot([0, 1], [0, 1], color=PALE, linestyle="--", label="a score is a probability")
    axes.plot(table.score[full], table.precision[full], "o-", color=ACCENT, label="found an object")
    axes.set(ylabel="precision of the bin", ylim=(0, 1.02), xlim=(0, 1))
    axes.set_title(f"Calibration of scores: off by {table.error:.3f} on average")
    axes.legend(frameon=False, loc="upper left")
    below.bar(np.arange(10) / 10 + 0.05, table.count, width=0.09, color=INK)
    below.set(xlabel="score", ylabel="detections", yscale="log" if full.any() else "linear")
    for one in (axes, below):
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure


def objects_per_picture(counts: Mapping[str, NDArray[np.int64]]) -> Figure:
    """How many objects the pictures of each split hold."""
    figure, axes = _axes(height=3.4)
    most = max((int(count.max()) for count in counts.values() if len(count)), default=0)
    bins = np.arange(most + 2) - 0.5 if most <= 40 else np.linspace(-0.5, most + 0.5, 41)
    for (name, count), tint in zip(counts.items(), (INK, ACCENT, SECOND), strict=False):
        weights = np.full(len(count), 1 / max(1, len(count)))
        axes.hist(count, bins.tolist(), weights=weights, histtype="step", linewidth=2, color=tint, label=name)
    axes.set(xlabel="objects in a picture", ylabel="share of the pictures", title="Objects per picture")
    axes.legend(frameon=False)
    return figure


def _of(curves: Curves, prefix: str) -> list[str]:
    return [name for name in curves if name.startswith(prefix)]


def _epochs(series: Series) -> list[float]:
    """Epochs counted from 1; by steps where the log has no epochs."""
    if np.isnan(series.epochs).any():
        return [float(step) for step in series.steps]
    return [epoch + 1 for epoch in series.epochs]


def _short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}\u2026"


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
