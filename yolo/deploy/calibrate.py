"""Ranges of activations for int8, measured on pictures, and how much each layer would suffer."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from yolo.models.detector import Detector
from yolo.models.quantize import quantizable, rounded_input, rounded_weight

log = logging.getLogger(__name__)

Method = Literal["entropy", "percentile", "max"]
BINS = 2048
_FIRST_LEVELS = 128  # bins of the smallest range that entropy calibration considers


class Histogram:
    """Counts of absolute values in ``BINS`` bins up to ``limit``, which doubles when a value is beyond it."""

    def __init__(self) -> None:
        self.counts = torch.zeros(BINS, dtype=torch.float64)
        self.limit = 0.0
        self.largest = 0.0

    def add(self, values: Tensor) -> None:
        values = values.detach().abs().flatten().float()
        largest = float(values.max()) if values.numel() else 0.0
        if largest == 0.0:
            return
        self.largest = max(self.largest, largest)
        if self.limit == 0.0:
            self.limit = largest
        while self.limit < largest:
            merged = self.counts.reshape(-1, 2).sum(dim=1)
            self.counts = torch.cat((merged, torch.zeros_like(merged)))
            self.limit *= 2
        self.counts += torch.histc(values, BINS, 0.0, self.limit).double().cpu()

    def range(self, method: Method, percentile: float) -> float:
        """The absolute value that becomes 127.

        Args:
            method: ``max``; ``percentile``: that share of the values, in percent, lies within; ``entropy``:
                the range whose quantised distribution is nearest to the measured one (Kullback-Leibler).
            percentile: See ``method``.
        """
        if self.largest == 0.0 or method == "max":
            return max(self.largest, 1e-6)
        if method == "percentile":
            share = self.counts.cumsum(0) / self.counts.sum()
            index = int((share < percentile / 100.0).sum())
            return min(self.limit * (index + 1) / BINS, self.largest)
        return min(self.limit * _best_cut(self.counts) / BINS, self.largest)


def _best_cut(counts: Tensor) -> int:
    """How many bins to keep so that 128 levels say most of what the distribution says."""
    counts = counts.clone()
    counts[0] = 0.0  # zeros are exact at any range and would drown the rest
    best, least = BINS, float("inf")
    for cut in range(_FIRST_LEVELS, BINS + 1, 16):
        clipped = counts[:cut].clone()
        clipped[-1] += counts[cut:].sum()
        level = torch.arange(cut) * _FIRST_LEVELS // cut
        used = (counts[:cut] > 0).double()
        mass = torch.zeros(_FIRST_LEVELS, dtype=torch.float64).index_add_(0, level, counts[:cut])
        bins = torch.zeros(_FIRST_LEVELS, dtype=torch.float64).index_add_(0, level, used)
        spread = (mass / bins.clamp(min=1.0))[level] * used
        p, q = clipped / clipped.sum(), spread / spread.sum().clamp(min=1e-30)
        filled = p > 0
        divergence = float((p[filled] * (p[filled] / q[filled].clamp(min=1e-12)).log()).sum())
        if divergence < least:
            best, least = cut, divergence
    return best


@torch.no_grad()
def measure(
    detector: Detector, batches: Iterable[Tensor], method: Method = "entropy", percentile: float = 99.99
) -> dict[str, float]:
    """The range of every quantisable layer's input.

    Args:
        detector: Folded, in evaluation mode.
        batches: Images ``[N, 3, H, W]`` float32, RGB, 0 to 1, on the detector's device.
        method: See :meth:`Histogram.range`.
        percentile: See :meth:`Histogram.range`.
    """
    if method not in get_args(Method):
        raise ValueError(f"calibration must be one of {', '.join(get_args(Method))}, got {method!r}")
    if not 0.0 < percentile <= 100.0:
        raise ValueError(f"percentile must lie between 0 and 100, got {percentile}")
    histograms = {name: Histogram() for name in quantizable(detector)}
    with ExitStack() as hooks:
        for name, layer in quantizable(detector).items():
            hooks.enter_context(_before(layer, histograms[name]))
        count = 0
        for images in batches:
            detector(images)
            count += len(images)
    if not count:
        raise ValueError("calibration needs at least one picture, got none")
    log.info("ranges of %d layers measured on %d pictures (%s)", len(histograms), count, method)
    return {name: histogram.range(method, percentile) for name, histogram in histograms.items()}


@contextmanager
def _before(layer: nn.Module, histogram: Histogram) -> Iterator[None]:
    handle = layer.register_forward_pre_hook(lambda _, inputs: histogram.add(inputs[0]))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def simulated(layer: nn.Conv2d | nn.Linear, limit: float) -> Iterator[None]:
    """Let ``layer`` compute with int8 input and weights as long as the context lasts."""
    weight = layer.weight.data
    handle = layer.register_forward_pre_hook(lambda _, inputs: (rounded_input(inputs[0], limit),))
    layer.weight.data = rounded_weight(weight)
    try:
        yield
    finally:
        handle.remove()
        layer.weight.data = weight


class Sensitivity(NamedTuple):
    """What int8 does to one layer alone."""

    name: str
    error: float  # of the raw outputs, relative: root of the squared error over the squared outputs


@torch.no_grad()
def sensitivities(
    detector: Detector, ranges: dict[str, float], batches: Sequence[Tensor]
) -> list[Sensitivity]:
    """Quantise each layer alone and compare the outputs of the network; the worst layer first.

    Args:
        detector: Folded, in evaluation mode.
        ranges: From :func:`measure`.
        batches: A few images, as for :func:`measure`.
    """
    wanted = [detector(images) for images in batches]
    rows = []
    layers = quantizable(detector)
    for name in ranges:
        layer = layers[name]
        noise = signal = 0.0
        with simulated(layer, ranges[name]):
            for images, clean in zip(batches, wanted, strict=True):
                for got, right in zip(detector(images), clean, strict=True):
                    noise += float((got - right).double().square().sum())
                    signal += float(right.double().square().sum())
        rows.append(Sensitivity(name, (noise / max(signal, 1e-30)) ** 0.5))
    return sorted(rows, key=lambda row: row.error, reverse=True)
