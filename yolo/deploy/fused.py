"""Convolution, bias, activation and residual in one kernel: cuDNN compiles it for each layer and shape.

PyTorch's compiler leaves convolutions to cuDNN as they are, and gives what follows them a kernel of its own, which
reads and writes every map once more.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from yolo.deploy.extras import require
from yolo.deploy.precision import frozen, replace_module
from yolo.models.layers import ConvBnAct

log = logging.getLogger(__name__)

Run = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # image, weight, bias, residual
ACTIVATIONS: dict[type[nn.Module], str] = {nn.LeakyReLU: "leaky", nn.Mish: "mish", nn.Identity: "linear"}
EIGHT = 8  # half-precision numbers that tensor cores take at once
RUNS = 5  # of a kernel, timed together


class Shape(NamedTuple):
    """What a kernel is made for."""

    device: torch.device
    dtype: torch.dtype
    image: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    act: str
    slope: float
    residual: bool


@dataclass(frozen=True)
class Kernel:
    """A graph of cuDNN's, its places for tensors, and the plan that was fastest."""

    graph: Any
    places: tuple[Any, ...]  # image, weight, bias, output, residual
    out: tuple[int, ...]
    plan: int
    workspace: int
    handle: int

    def __call__(self, image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None) -> Tensor:
        cudnn = require("cudnn")
        y = torch.empty(self.out, dtype=image.dtype, device=image.device, memory_format=torch.channels_last)
        given = (image, weight, bias, y) if residual is None else (image, weight, bias, y, residual)
        workspace = torch.empty(max(self.workspace, 1), dtype=torch.uint8, device=image.device)
        with torch.cuda.device(image.device):
            cudnn.set_stream(self.handle, torch.cuda.current_stream().cuda_stream)
            self.graph.execute_plan_at_index(
                dict(zip(self.places, given, strict=True)), workspace, self.plan, handle=self.handle
            )
        return y


def one_by_one(shape: Shape, image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None) -> Tensor:
    """The same by PyTorch, a kernel for each part."""
    y = F.conv2d(image, weight, bias, shape.stride, shape.padding)
    if shape.act == "leaky":
        y = F.leaky_relu(y, shape.slope)
    elif shape.act == "mish":
        y = F.mish(y)
    return y if residual is None else y + residual


class Kernels:
    """Makes a kernel for a shape once; where cuDNN has none (before Ampere), one that works part by part.

    Args:
        choices: Kernels that are tried and timed for a shape, the most promising first; each takes a moment to
            compile.
    """

    def __init__(self, choices: int) -> None:
        self.choices = choices
        self.handles: dict[torch.device, int] = {}
        self.made: dict[Shape, Run] = {}

    def __call__(self, shape: Shape) -> Run:
        if shape not in self.made:
            refused = require("cudnn").cudnnGraphNotSupportedError
            try:
                with torch.cuda.device(shape.device):
                    self.made[shape] = self._make(shape)
            except (RuntimeError, refused) as error:
                log.warning("cuDNN does not fuse %s (%s): slower", shape, str(error).partition("\n")[0])
                self.made[shape] = partial(one_by_one, shape)
        return self.made[shape]

    def _make(self, shape: Shape) -> Kernel:
        cudnn = require("cudnn")
        if shape.device not in self.handles:
            self.handles[shape.device] = cudnn.create_handle()
        handle = self.handles[shape.device]
        number = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}[shape.dtype]
        exact = cudnn.data_type.FLOAT
        graph = cudnn.pygraph(
            handle=handle, io_data_type=number, intermediate_data_type=exact, compute_data_type=exact
        )
        n, _, height, width = shape.image
        channels, _, rows, columns = shape.weight
        out = (
            n,
            channels,
            (height + 2 * shape.padding[0] - rows) // shape.stride[0] + 1,
            (width + 2 * shape.padding[1] - columns) // shape.stride[1] + 1,
        )

        def place(name: str, size: tuple[int, ...]) -> Any:
            return graph.tensor(name=name, dim=list(size), stride=channels_last(size), data_type=number)

        image, weight = place("image", shape.image), place("weight", shape.weight)
        bias = place("bias", (1, channels, 1, 1))
        y = graph.conv_fprop(
            image=image,
            weight=weight,
            padding=list(shape.padding),
            stride=list(shape.stride),
            dilation=[1, 1],
        )
        y = graph.bias(input=y, bias=bias)
        if shape.act == "leaky":
            y = graph.relu(input=y, negative_slope=shape.slope)
        elif shape.act == "mish":
            y = graph.mul(a=y, b=graph.tanh(input=graph.softplus(input=y)))
        places = [image, weight, bias]
        if shape.residual:
            residual = place("residual", out)
            y = graph.add(a=y, b=residual)
        y.set_output(True).set_data_type(number).set_dim(list(out)).set_stride(channels_last(out))
        places += [y, residual] if shape.residual else [y]
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        return self._fastest(shape, graph, tuple(places), out, handle)

    def _fastest(
        self, shape: Shape, graph: Any, places: tuple[Any, ...], out: tuple[int, ...], handle: int
    ) -> Kernel:
        found: list[tuple[float, Kernel]] = []
        refused = require("cudnn").cudnnGraphNotSupportedError
        tensors = [
            torch.zeros(size, dtype=shape.dtype, device=shape.device)
            for size in (shape.image, shape.weight, out)
        ]
        image, weight, residual = (x.to(memory_format=torch.channels_last) for x in tensors)
        bias = torch.zeros(out[1], dtype=shape.dtype, device=shape.device)
        for plan in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(plan)
                kernel = Kernel(
                    graph, places, out, plan, graph.get_workspace_size_plan_at_index(plan), handle
                )
                given = (image, weight, bias, residual if shape.residual else None)
                kernel(*given)
            except (RuntimeError, refused):  # cuDNN lists plans that it then cannot build
                continue
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(RUNS):
                kernel(*given)
            stop.record()
            stop.synchronize()
            found.append((start.elapsed_time(stop), kernel))
            if len(found) == self.choices:
                break
        if not found:
            raise RuntimeError(f"cuDNN has no kernel for {shape}")
        return min(found, key=lambda pair: pair[0])[1]


def channels_last(size: tuple[int, ...]) -> list[int]:
    """Strides of ``[N, C, H, W]`` in memory order N, H, W, C."""
    _, c, h, w = size
    return [h * w * c, 1, w * c, c]


class FusedConvolution(nn.Module):
    """A convolution with bias and what follows it; channels are filled up to multiples of eight by zeros.

    Args:
        conv: With its batch norm folded into it.
        act: The activation.
        kernels: Shared by the network.
    """

    def __init__(self, conv: nn.Conv2d, act: nn.Module, kernels: Kernels) -> None:
        super().__init__()
        assert not isinstance(conv.padding, str)
        self.taken, self.kept = conv.in_channels, conv.out_channels
        more = -self.kept % EIGHT
        weight = F.pad(conv.weight, (0, 0, 0, 0, 0, -conv.in_channels % EIGHT, 0, more))
        bias = torch.zeros(self.kept) if conv.bias is None else conv.bias
        self.weight, self.bias = frozen(weight), frozen(F.pad(bias.to(weight), (0, more)))
        self.stride, self.padding = conv.stride, conv.padding
        self.act = ACTIVATIONS[type(act)]
        self.slope = act.negative_slope if isinstance(act, nn.LeakyReLU) else 0.0
        self.kernels = kernels

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        spare = self.weight.shape[1] - x.shape[1]
        x = F.pad(x, (0, 0, 0, 0, 0, spare)) if spare else x
        x = x.contiguous(memory_format=torch.channels_last)
        shape = Shape(
            x.device, x.dtype, tuple(x.shape), tuple(self.weight.shape), self.stride, self.padding,
            self.act, self.slope, residual is not None,
        )  # fmt: skip
        if residual is not None:
            more = len(self.weight) - self.kept
            residual = F.pad(residual, (0, 0, 0, 0, 0, more)) if more else residual
            residual = residual.contiguous(memory_format=torch.channels_last)
        y = self.kernels(shape)(x, self.weight, self.bias, residual)
        return y if self.kept == y.shape[1] else y[:, : self.kept]


def begins_fused(network: nn.Module) -> bool:
    """Whether the first convolution of ``network`` is a fused one of pictures, which takes them in eight channels."""
    kinds = nn.Conv2d | FusedConvolution
    first = next((module for module in network.modules() if isinstance(module, kinds)), None)
    return isinstance(first, FusedConvolution) and first.taken == 3


def fuse_convolutions(network: nn.Module, kernels: Kernels) -> None:
    """Put fused kernels in the place of ``network``'s layers, whose batch norms are folded (inference only).

    Layers with an activation that is not there, groups or dilation stay as they are.
    """
    for layer in [module for module in network.modules() if isinstance(module, ConvBnAct)]:
        if isinstance(layer.norm, nn.Identity) and type(layer.act) in ACTIVATIONS:
            replace_module(network, layer, FusedConvolution(layer.conv, layer.act, kernels))
    inner = {id(module.conv) for module in network.modules() if isinstance(module, ConvBnAct)}
    for conv in [module for module in network.modules() if isinstance(module, nn.Conv2d)]:
        plain = conv.groups == 1 and conv.dilation == (1, 1) and not isinstance(conv.padding, str)
        if plain and id(conv) not in inner:
            replace_module(network, conv, FusedConvolution(conv, nn.Identity(), kernels))
