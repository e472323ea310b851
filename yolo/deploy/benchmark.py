"""What a user waits for, stage by stage: decode, preprocess, upload, network, suppression, download."""

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from yolo.checkpoint import Model
from yolo.data import load_image
from yolo.deploy.graph import Suppression
from yolo.deploy.pictures import prepare
from yolo.deploy.run_torch import TorchRuntime
from yolo.deploy.runtime import Runtime

STAGES = ("decode", "preprocess", "upload", "network", "suppression", "download")
POINTS = (50, 90, 99)
MIB = 1 << 20


@dataclass(frozen=True)
class Timing:
    """One runtime at one batch size; times in milliseconds for a whole batch.

    Args:
        stages: Percentiles 50, 90 and 99 of every stage, each waited for.
        total: Of a batch from files to detections, waited for only at its end.
        images_per_second: Pictures over the sum of all those totals: what a user gets.
        device: Percentiles of network and suppression together, input on the device already.
        back_to_back: Mean of the same without waiting between batches; None on a CPU.
        peak_mib: Most memory taken: by PyTorch's allocator for PyTorch on a GPU; for other runtimes there what the
            device has in use, by anybody, since they do not tell; on a CPU by the whole process.
    """

    runtime: str
    batch: int
    size: tuple[int, int]
    runs: int
    stages: dict[str, list[float]]
    total: list[float]
    images_per_second: float
    device: list[float]
    back_to_back: float | None
    peak_mib: float


def measure(
    runtime: Runtime, paths: Sequence[str | Path], batch: int, *, runs: int = 50, warm_up: int = 10
) -> Timing:
    """Time a runtime on pictures.

    Args:
        runtime: At the size of its Preprocess.
        paths: Pictures; taken round and round.
        batch: Pictures at a time.
        runs: Batches that are timed.
        warm_up: Batches before that, which are not.
    """
    if runs < 1 or not paths:
        raise ValueError(f"a benchmark needs at least one run and one picture, got {runs} and {len(paths)}")
    takes = (batch, 3, *runtime.preprocess.size)
    if not runtime.takes(takes):
        raise ValueError(f"{runtime.name} takes {runtime.limits}; got {'x'.join(map(str, takes))}")
    with _peak(runtime) as peak:
        groups = _groups(paths, batch)
        for _ in range(warm_up):
            _one(runtime, next(groups), lambda: None)
        rows = [_staged(runtime, next(groups)) for _ in range(runs)]
        totals = [_one(runtime, next(groups), lambda: None) for _ in range(runs)]
        images = prepare([load_image(path) for path in next(groups)], runtime.preprocess)
        alone, back_to_back = _device(runtime, images, runs)
    return Timing(
        runtime=runtime.name,
        batch=batch,
        size=runtime.preprocess.size,
        runs=runs,
        stages={name: _percentiles([row[name] for row in rows]) for name in STAGES},
        total=_percentiles(totals),
        images_per_second=batch * runs / (sum(totals) / 1e3),
        device=_percentiles(alone),
        back_to_back=back_to_back,
        peak_mib=peak(),
    )


def busy_rule(model: Model, images: Tensor, candidates: int) -> Suppression:
    """A score threshold that about so many predictions a picture pass: untrained weights would give none.

    Args:
        model: The detector.
        images: ``[N, 3, H, W]`` uint8.
        candidates: Per picture.
    """
    every = TorchRuntime(model).every(images)
    best = every[1].amax(dim=-1).mean(dim=0)  # [M]
    if not 0 < candidates < len(best):
        raise ValueError(
            f"candidates must lie between 1 and {len(best) - 1}, the predictions, got {candidates}"
        )
    return Suppression(score_threshold=float(best.sort(descending=True).values[candidates]))


def _groups(paths: Sequence[str | Path], batch: int) -> Iterator[list[str | Path]]:
    at = 0
    while True:
        yield [paths[(at + index) % len(paths)] for index in range(batch)]
        at = (at + batch) % len(paths)


def _one(runtime: Runtime, paths: Sequence[str | Path], lap: Callable[[], None]) -> float:
    """From files to detections on the CPU, milliseconds; ``lap`` is called after every stage."""
    start = time.perf_counter()
    images = [load_image(path) for path in paths]
    lap()
    canvases = prepare(images, runtime.preprocess)
    lap()
    uploaded = runtime.upload(canvases)
    lap()
    outputs = runtime.network(uploaded)
    lap()
    detections = runtime.suppress(outputs)
    lap()
    runtime.download(detections)
    lap()
    return (time.perf_counter() - start) * 1e3


def _staged(runtime: Runtime, paths: Sequence[str | Path]) -> dict[str, float]:
    marks = [time.perf_counter()]

    def lap() -> None:
        runtime.synchronize()
        marks.append(time.perf_counter())

    _one(runtime, paths, lap)
    return {name: (b - a) * 1e3 for name, a, b in zip(STAGES, marks, marks[1:], strict=False)}


def _device(runtime: Runtime, images: Tensor, runs: int) -> tuple[list[float], float | None]:
    """Network and suppression alone: each waited for, and the mean of all in a row."""
    uploaded = runtime.upload(images)
    runtime.suppress(runtime.network(uploaded))
    times = []
    for _ in range(runs):
        runtime.synchronize()
        start = time.perf_counter()
        runtime.suppress(runtime.network(uploaded))
        runtime.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    if runtime.device.type != "cuda":
        return times, None
    start = time.perf_counter()
    for _ in range(runs):
        runtime.suppress(runtime.network(uploaded))
    runtime.synchronize()
    return times, (time.perf_counter() - start) * 1e3 / runs


@contextmanager
def _peak(runtime: Runtime) -> Iterator[Callable[[], float]]:
    device = runtime.device
    if device.type == "cuda" and not isinstance(runtime, TorchRuntime):

        def in_use() -> float:
            free, total = torch.cuda.mem_get_info(device)
            return (total - free) / MIB

        yield in_use
    elif device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device) / MIB
    else:
        yield lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux


def _percentiles(values: Sequence[float]) -> list[float]:
    return [float(value) for value in np.percentile(values, POINTS)]


def timing_table(timings: Sequence[Timing]) -> Table:
    """A column per runtime and batch size: p50 / p90 / p99 in milliseconds per batch."""
    table = Table(title="milliseconds per batch: p50 / p90 / p99")
    table.add_column("")
    for one in timings:
        table.add_column(f"{one.runtime}, batch {one.batch}")
    table.add_row("size", *(f"{one.size[0]}x{one.size[1]}" for one in timings))
    for name in STAGES:
        table.add_row(name, *(_shown(one.stages[name]) for one in timings))
    table.add_row("files to detections", *(_shown(one.total) for one in timings))
    table.add_row("images per second, all counted", *(f"{one.images_per_second:.1f}" for one in timings))
    table.add_row("network and suppression", *(_shown(one.device) for one in timings))
    table.add_row(
        "the same back to back, mean",
        *("" if one.back_to_back is None else f"{one.back_to_back:.3f}" for one in timings),
    )
    table.add_row("peak memory, MiB", *(f"{one.peak_mib:.0f}" for one in timings))
    return table


def _shown(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def to_json(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """The same as plain values."""
    return [asdict(one) for one in timings]
