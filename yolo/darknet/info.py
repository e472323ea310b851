"""What is in a cfg, as a table like the one that Darknet prints while it builds a network."""

from collections.abc import Sequence
from pathlib import Path

from yolo.darknet.cfg import parse_cfg, read_cfg
from yolo.darknet.plan import Layer, Plan, plan
from yolo.darknet.weights import check_count, read_header

HEADER = ("", "layer", "filters", "size/strd(dil)", "input", "output", "weights", "BF")
SHORT = {"convolutional": "conv", "maxpool": "max", "avgpool": "avg", "connected": "conn"}


def rows(network: Plan) -> list[tuple[str, ...]]:
    """One row of texts per layer, in the columns of ``HEADER``; BF as Darknet counts it (plan.Layer)."""
    return [_row(layer) for layer in network.layers]


def table(network: Plan) -> str:
    """The rows under a heading, then the totals: BFLOPs, mean outputs of a layer, floats and bytes."""
    lines = [HEADER, *rows(network)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    text = [_aligned(line, widths) for line in lines]
    maps = [layer for layer in network.layers if layer.inputs[1] > 1 and layer.inputs[2] > 1]
    outputs = sum(c * h * w for c, h, w in (layer.shape for layer in maps))
    text += [
        f"Total BFLOPS {bflops(network):.3f}",
        f"avg_outputs = {outputs // max(1, len(maps))}",
        f"{network.floats:,} floats, {20 + 4 * network.floats:,} bytes in a weights file of version 0.2",
    ]
    return "\n".join(text)


def describe_weights(network: Plan, path: Path, cutoff: int | None = None) -> str:
    """A sentence on a weights file that fits the plan.

    Raises:
        ValueError: It does not fit.
    """
    header = read_header(path)
    counts = [(layer.index, layer.name, layer.floats) for layer in network.layers if layer.floats]
    count = check_count(path, header, counts, cutoff)
    version = f"{header.major}.{header.minor}.{header.revision}"
    return (
        f"{path.name}: version {version}, {header.seen:,} images seen, {count:,} floats as the cfg needs them"
    )


def survey(folder: Path) -> str:
    """A row for every cfg file below a folder: floats and BFLOPs of what can be built, else why it cannot."""
    rows, refused = [], 0
    for path in sorted(folder.rglob("*.cfg")):
        name = path.relative_to(folder).as_posix()
        try:
            found = plan(parse_cfg(read_cfg(path), name))
        except ValueError as error:
            refused += 1
            rows.append((name, "refused", str(error).removeprefix(f"{name}:").partition(" ")[2]))
            continue
        kind = "detector" if found.heads else "classifier"
        rows.append((name, kind, f"{found.floats:,} floats, {bflops(found):.3f} BFLOPs"))
    if not rows:
        raise ValueError(f"{folder}: no cfg file in it")
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    text = [f"{name:{widths[0]}}  {kind:{widths[1]}}  {what}" for name, kind, what in rows]
    return "\n".join(
        [*text, f"{len(rows)} cfg files, {len(rows) - refused} can be built, {refused} are refused"]
    )


def bflops(network: Plan) -> float:
    """Billions of operations for one picture."""
    return sum(layer.operations for layer in network.layers) / 1e9


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    left = ("layer", "size/strd(dil)", "input", "output")
    cells = [
        cell.ljust(width) if name in left else cell.rjust(width)
        for name, cell, width in zip(HEADER, line, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()


def _row(layer: Layer) -> tuple[str, ...]:
    section = layer.section
    filters = str(layer.shape[0]) if layer.kind in ("convolutional", "local", "connected") else ""
    size = ""
    if layer.kind in ("convolutional", "maxpool", "local"):
        stride = section.integer("stride", 1)
        side = section.integer("size", stride if layer.kind == "maxpool" else 1)
        dilation = section.integer("dilation", 1)
        size = f"{side}x{side}/{stride}" + (f"({dilation})" if dilation > 1 else "")
        size += f" g{section.integer('groups', 1)}" if section.integer("groups", 1) > 1 else ""
    elif layer.kind in ("reorg", "reorg3d", "upsample"):
        size = f"/{section.integer('stride', 2 if layer.kind == 'upsample' else 1)}"
    elif layer.kind == "route" or len(layer.sources) > 1:
        read = layer.sources if layer.kind == "route" else layer.sources[1:]
        size = ",".join(map(str, read))
        groups = section.integer("groups", 1)
        size += f" {section.integer('group_id', 0)}/{groups}" if groups > 1 else ""
    return (
        str(layer.index),
        SHORT.get(layer.kind, layer.kind),
        filters,
        size,
        _shape(layer.inputs),
        _shape(layer.shape),
        f"{layer.floats:,}" if layer.floats else "",
        f"{layer.operations / 1e9:.3f}" if layer.operations else "",
    )


def _shape(shape: tuple[int, int, int]) -> str:
    """Width, height and channels, Darknet's order."""
    channels, height, width = shape
    return f"{width} x {height} x {channels}"
