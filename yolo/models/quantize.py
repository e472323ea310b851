"""A network computed as its int8 form would: what calibration measures and quantisation-aware training trains.

Symmetric int8 as in exported graphs (:mod:`yolo.deploy.quantize`): 127 levels to either side of zero, weights with
one step per output channel, inputs of layers with one step each. A step per output channel commutes with the batch
norm behind the layer, so the weights may be rounded before or after the norm is folded into them.
"""

from collections.abc import Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from yolo.models.detector import Detector
from yolo.models.layers import darknet_layers

LEVELS = 127.0  # of a symmetric int8 value, to either side of zero
QUANTIZABLE = (nn.Conv2d, nn.Linear)


def quantizable(detector: Detector) -> dict[str, nn.Conv2d | nn.Linear]:
    """Layers that int8 can compute, by name, in the order of the cfg."""
    names = {module: name for name, module in detector.named_modules()}
    return {names[layer]: layer for layer, _ in darknet_layers(detector) if isinstance(layer, QUANTIZABLE)}


def weight_scale(weight: Tensor) -> Tensor:
    """The step of every output channel ``[O]``: its largest weight becomes 127."""
    return weight.detach().float().flatten(1).abs().amax(dim=1).clamp(min=1e-12) / LEVELS


def rounded(x: Tensor) -> Tensor:
    """``x.round()`` with the gradient of ``x``: the straight-through estimator (arXiv:1308.3432)."""
    return x.round().detach() + (x - x.detach())


def rounded_weight(weight: Tensor) -> Tensor:
    """``weight``, ``[O, ...]``, as int8 holds it."""
    scale = weight_scale(weight).reshape(-1, *(1,) * (weight.dim() - 1))
    return rounded(weight / scale) * scale


def rounded_input(x: Tensor, limit: Tensor | float) -> Tensor:
    """``x`` as int8 holds it when ``limit`` becomes 127; differentiable in both (arXiv:1902.08153, eq. 3)."""
    step = limit / LEVELS
    return rounded((x.float() / step).clamp(-LEVELS - 1, LEVELS)) * step


class FakeQuant(nn.Module):
    """Runs a detector with the weights and inputs of its layers rounded to int8, and learns the ranges.

    The detector is lent to every call and keeps its parameters, so that its weights are saved as ever. Ranges are
    learned as logarithms: they stay positive, a step of an optimiser is the same share of each, and their gradients are
    of the size of a batch norm's gains', so that they need no learning rate of their own.

    Args:
        detector: Whose layers they are.
        ranges: The absolute input value that becomes 127, by layer, to begin with; other layers stay as they are.
            Layers of equal range read the same tensor and go on sharing one.

    Raises:
        ValueError: A layer of ``ranges`` is not in the detector.
    """

    def __init__(self, detector: Detector, ranges: Mapping[str, float]) -> None:
        super().__init__()
        known = quantizable(detector)
        unknown = [name for name in ranges if name not in known]
        if unknown:
            raise ValueError(
                f"ranges are given for {', '.join(unknown)}; the layers are called {', '.join(known)}"
            )
        self.names = [name for name in known if name in ranges]
        limits = list(dict.fromkeys(ranges[name] for name in self.names))
        self.log_limits = nn.Parameter(torch.tensor(limits).log())
        group = torch.tensor([limits.index(ranges[name]) for name in self.names], dtype=torch.int64)
        self.group: Tensor
        self.register_buffer("group", group, persistent=False)

    def forward(self, detector: Detector, images: Tensor) -> list[Tensor]:
        layers = quantizable(detector)
        weights = {f"{name}.weight": rounded_weight(layers[name].weight) for name in self.names}
        limits = self.log_limits.exp()[self.group].unbind()
        with ExitStack() as hooks:
            for name, limit in zip(self.names, limits, strict=True):
                hooks.callback(_round_input(layers[name], limit).remove)
            return functional_call(detector, weights, (images,))

    def ranges(self, log_limits: Tensor | None = None) -> dict[str, float]:
        """The ranges by layer, as learned so far or as in ``log_limits`` (an average of them)."""
        limits = (self.log_limits if log_limits is None else log_limits).detach().exp()
        return dict(zip(self.names, limits[self.group.to(limits.device)].tolist(), strict=True))


def _round_input(layer: nn.Module, limit: Tensor) -> RemovableHandle:
    return layer.register_forward_pre_hook(lambda _, inputs: (rounded_input(inputs[0], limit),))
