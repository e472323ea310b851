"""Networks made ready for inference: batch norms folded away, layers in half precision where they fit."""

import logging
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from yolo.deploy.graph import deployable
from yolo.models import darknet_layers
from yolo.models.detector import Detector

log = logging.getLogger(__name__)

HALF_LIMIT = 65504.0  # the largest float16


def folded(detector: Detector) -> Detector:
    """A copy for inference (CPU, float32) whose batch norms are part of the layers before them."""
    detector = deployable(detector)
    if _shares_weights(detector):
        return detector  # one kernel under two batch norms cannot hold both
    for layer, norm in darknet_layers(detector):
        if norm is None:
            continue
        mean, var = norm.running_mean, norm.running_var
        if mean is None or var is None:
            raise ValueError("a batch norm without running statistics cannot be folded into its layer")
        fold = fuse_linear_bn_weights if isinstance(layer, nn.Linear) else fuse_conv_bn_weights
        weight, bias = fold(layer.weight, layer.bias, mean, var, norm.eps, norm.weight, norm.bias)
        layer.weight, layer.bias = frozen(weight), frozen(bias)
        replace_module(detector, norm, nn.Identity())
    return detector


def _shares_weights(detector: Detector) -> bool:
    layers = [layer.weight for layer, _ in darknet_layers(detector)]
    return len({id(weight) for weight in layers}) < len(layers)


def frozen(values: Tensor) -> nn.Parameter:
    """A parameter that is not trained."""
    return nn.Parameter(values.detach(), requires_grad=False)


def replace_module(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` wherever ``old`` is registered below ``root``."""
    places = [
        (parent, name) for parent in root.modules() for name, child in parent._modules.items() if child is old
    ]
    assert places, "the module to be replaced is not below this root"
    for parent, name in places:
        parent._modules[name] = new


class Wide(nn.Module):
    """A layer that stays in float32 inside a float16 network; its output is held within float16's range."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.float()).clamp(-HALF_LIMIT, HALF_LIMIT).to(x.dtype)


def halve(detector: Detector, keep: dict[str, str] | None = None) -> dict[str, str]:
    """Turn a folded detector to float16 in place.

    Args:
        detector: As :func:`folded` gives it.
        keep: Layers that must stay in float32, and why.

    Returns:
        The layers that stayed in float32, with the reason; those beyond float16's range among them.
    """
    keep = dict(keep or {})
    for name, layer in weighted(detector):
        largest = max(float(p.abs().max()) for p in layer.parameters(recurse=False))
        if largest > HALF_LIMIT:
            keep[name] = f"weights up to {largest:.6g}, float16 ends at {HALF_LIMIT:.0f}"
            log.warning("%s stays in float32: %s", name, keep[name])
    layers = dict(weighted(detector))
    unknown = sorted(set(keep) - set(layers))
    if unknown:
        raise ValueError(f"no layer is called {', '.join(unknown)}; there are {', '.join(layers)}")
    wide = {layers[name] for name in keep}
    for module in detector.modules():
        if module not in wide:
            _halve_own(module)
    for layer in wide:
        replace_module(detector, layer, Wide(layer))
    return keep


def _halve_own(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.half()
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            module.register_buffer(name, buffer.half())


def weighted(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module that owns parameters itself, with its dotted name."""
    for name, module in root.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            yield name, module


def layer_names(detector: Detector) -> list[str]:
    """Dotted names of the layers with weights, in the order of the cfg."""
    names = {module: name for name, module in detector.named_modules()}
    return [names[layer] for layer, _ in darknet_layers(detector)]


def dtype_of(precision: str) -> torch.dtype:
    """Of the layers of an exported network; int8 is decided layer by layer on top of it."""
    return torch.float16 if precision == "fp16" else torch.float32
