"""Anchor sets side by side: tables, and the three pictures of tools/anchors.py."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter
from rich import box
from rich.table import Table

from yolo.anchors import Boxes, Fit, Sizes

HEAD_COLORS = ("#d1495b", "#00798c", "#edae49", "#66a182")
CLOUD = 20_000  # boxes that are drawn


def sets_table(fits: Mapping[str, Fit]) -> Table:
    """One row per set: fit, recall, and what each head would train on."""
    some = next(iter(fits.values()))
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"an object trains {some.assignment}",
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    headings = [
        "average IoU",
        "mean of classes",
        f"recall: {some.assignment.served}",
        "IoU > 0.5",
        "nearest pair",
        "trained a box",
        "lost",
    ]
    table.add_column("anchors", no_wrap=True)
    for heading in [*headings, *(f"stride {spec.stride:g}" for spec in some.specs)]:
        table.add_column(heading, justify="right")
    for name, fit in fits.items():
        numbers = [fit.average_iou, fit.mean_class_iou, fit.recall, fit.recall50, fit.closest]
        shares = [fit.lost, *fit.heads]
        table.add_row(
            name,
            *(f"{x:.3f}" for x in numbers),
            f"{fit.positives:.2f}",
            *(f"{share:.1%}" for share in shares),
        )
    return table


def anchors_table(name: str, fit: Fit) -> Table:
    """One row per anchor: pixels of the network input, cells of its head, boxes that it fits best."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{name}: {len(fit.anchors)} anchors",
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    for heading in ("stride", "width px", "height px", "width cells", "height cells", "fits best"):
        table.add_column(heading, justify="right")
    for spec in sorted(fit.specs, key=lambda spec: spec.stride):
        for index in spec.mask:
            w, h = fit.anchors[index]
            table.add_row(
                f"{spec.stride:g}",
                *(f"{side:.2f}" for side in (w, h)),
                *(f"{side / spec.stride:.3f}" for side in (w, h)),
                f"{fit.best[index]:.1%}",
            )
    return table


def cfg_line(fit: Fit) -> str:
    """The ``anchors=`` of a Darknet cfg: cells of the last map in ``[region]``, pixels in ``[yolo]``."""
    spec = fit.specs[0]
    unit = spec.stride if spec.kind == "region" else 1.0
    return "anchors=" + ", ".join(f"{w / unit:.6g},{h / unit:.6g}" for w, h in fit.anchors)


def plot_curve(averages: Mapping[int, float], fits: Mapping[str, Fit], path: Path) -> None:
    """Average IoU over the number of clusters (arXiv:1612.08242, fig. 2), with the sets as points."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(list(averages), list(averages.values()), "o-", color="#30475e", markersize=4, label="k-means")
    for color, (name, fit) in zip(HEAD_COLORS, fits.items(), strict=False):
        axes.plot(len(fit.anchors), fit.average_iou, "D", color=color, markersize=8, label=name)
    axes.set(
        xlabel="anchors", ylabel="average IoU with the best anchor", title="How much another anchor adds"
    )
    axes.set_xticks([k for k in averages if k == 1 or len(averages) <= 15 or k % 2 == 0])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    _save(figure, path)


def plot_cloud(boxes: Boxes, fits: Mapping[str, Fit], path: Path, seed: int = 0) -> None:
    """Box sizes as the network sees them, one panel per set, its anchors coloured by head."""
    sample = _sample(boxes.all, seed)
    figure = Figure(figsize=(5 * len(fits), 5.3), layout="constrained")
    every = np.concatenate([sample, *(fit.anchors for fit in fits.values())])
    low, high = every.min() / 1.3, every.max() * 1.3
    panels = figure.subplots(1, len(fits), squeeze=False)[0]
    for axes, (name, fit) in zip(panels, fits.items(), strict=True):
        axes.scatter(
            sample[:, 0], sample[:, 1], s=3, alpha=0.15, color="#30475e", linewidths=0, rasterized=True
        )
        for color, spec in zip(HEAD_COLORS, sorted(fit.specs, key=lambda spec: spec.stride), strict=False):
            of_head = np.array(spec.anchors)
            axes.scatter(
                of_head[:, 0],
                of_head[:, 1],
                s=90,
                marker="X",
                color=color,
                edgecolors="white",
                label=f"stride {spec.stride:g}",
            )
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_formatter(NullFormatter())
        axes.set(
            xlabel="width, pixels of the input",
            ylabel="height",
            title=f"{name}: average IoU {fit.average_iou:.3f}",
        )
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper left")
    _save(figure, path)


def plot_heads(fits: Mapping[str, Fit], path: Path) -> None:
    """Share of the boxes that each head trains on, per set."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    strides = sorted({spec.stride for fit in fits.values() for spec in fit.specs})
    width = 0.8 / len(strides)
    for index, (stride, color) in enumerate(zip(strides, HEAD_COLORS, strict=False)):
        shares = [_share(fit, stride) for fit in fits.values()]
        places = np.arange(len(fits)) + (index - (len(strides) - 1) / 2) * width
        bars = axes.bar(places, shares, width * 0.92, color=color, label=f"stride {stride:g}")
        axes.bar_label(bars, [f"{share:.0%}" for share in shares], fontsize=8, padding=2)
    axes.set_xticks(range(len(fits)), list(fits))
    some = next(iter(fits.values()))
    axes.set(
        ylim=(0, 1.25), ylabel="share of the boxes", title=f"What each head would train on: {some.assignment}"
    )
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.legend(frameon=False, ncols=len(strides), loc="upper right")
    _save(figure, path)


def _share(fit: Fit, stride: float) -> float:
    return sum(share for spec, share in zip(fit.specs, fit.heads, strict=True) if spec.stride == stride)


def _sample(sizes: Sizes, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Sizes ``[.., 2]``, drawn by how often they occur where there are too many."""
    if sizes.boxes <= CLOUD:
        return np.repeat(sizes.wh, sizes.count, axis=0)
    chosen = np.random.default_rng(seed).choice(len(sizes.wh), CLOUD, p=sizes.count / sizes.boxes)
    return sizes.wh[chosen]


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)  # no window, and no global state of pyplot
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
