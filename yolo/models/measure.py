"""What a network costs and which of its parameters belong to which part."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from yolo.models.classifier import Classifier
from yolo.models.detector import Detector
from yolo.models.layers import Local

Network = Detector | Classifier


class Parts(NamedTuple):
    """The parameters of a detector by what transfer learning does to them."""

    backbone: list[nn.Parameter]
    neck: list[nn.Parameter]  # everything between backbone and predictors
    predictors: list[nn.Parameter]


def parts(detector: Detector) -> Parts:
    """Backbone, neck and last layers; every parameter is in exactly one."""
    last = [parameter for predictor in detector.predictors for parameter in predictor.parameters()]
    known = {id(parameter) for parameter in last}
    neck = [parameter for parameter in detector.head.parameters() if id(parameter) not in known]
    return Parts(list(detector.backbone.parameters()), neck, last)


def count_floats(network: nn.Module) -> int:
    """Numbers in a Darknet weights file of this network: parameters, running means and running variances."""
    running = [
        buffer for name, buffer in network.named_buffers() if name.endswith(("running_mean", "running_var"))
    ]
    return sum(tensor.numel() for tensor in [*network.parameters(), *running])


def flops(network: Network, height: int, width: int) -> float:
    """Twice the multiply-adds of all convolutions, local and linear layers for one picture.

    Nothing is computed: the network runs on the meta device. Batch norms, activations and pools are left out;
    Darknet prints a little more, since it counts its max-pools and shortcuts.
    """
    total = 0

    def count(layer: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer, nn.Conv2d | nn.Linear | Local)
        kernel = layer.weight[0, 0] if isinstance(layer, Local) else layer.weight[0]
        total += 2 * kernel.numel() * output[0].numel()

    hooks = [
        layer.register_forward_hook(count)
        for layer in network.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear | Local)
    ]
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    # two pictures: a batch norm in training refuses one value per channel
    images = torch.empty(2, 3, height, width, device="meta")
    try:
        functional_call(network, {name: tensor.to("meta") for name, tensor in tensors.items()}, (images,))
    finally:
        for hook in hooks:
            hook.remove()
    return float(total)
