"""The first block of a network in one operator, for training: 3x3 convolution of a picture, batch norm, activation.

Three channels give its convolution little to compute and its output is the largest tensor of the network. So the
output of the convolution is never written: each pass computes it again from the picture. Every pass is a step of its
own, with room for an all-reduce of several processes behind the sums.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_weight

from yolo.ops import norm_reference as reference
from yolo.ops.library import (
    below_autograd,
    computed_type,
    has_kernel,
    register,
    register_without_gradient,
)
from yolo.ops.norm import follow, means_of_all, of_all
from yolo.ops.norm_reference import Activation

KERNEL = (3, 3, 3)  # channels, height, width; one pixel of zeros around the picture
TILE = (16, 32)  # the compiled kernels divide a picture into such tiles, height and width
FILTERS = (16, 32)  # and have as many output channels
BEHIND = ("linear", "leaky", "mish")  # the norm
CAPABILITY = (8, 0)  # of the device: matrix units that take 16 x 8 x 16


def fits(x: Tensor, act: Activation, kernel: Tensor, *parameters: Tensor | None) -> bool:
    """Whether the compiled kernels take ``x`` and float32 ``kernel`` and ``parameters``; no: use the plain modules.

    They take pictures whose gradient nobody wants, channels last, computed in half precision.
    """
    return (
        x.is_cuda
        and computed_type(x) in (torch.float16, torch.bfloat16)
        and not x.requires_grad
        and x.numel() > 0
        and x.shape[2] % TILE[0] == 0
        and x.shape[3] % TILE[1] == 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and act in BEHIND
        and kernel.shape[0] in FILTERS
        and kernel.shape[1:] == KERNEL
        and all(
            p is not None and p.dtype == torch.float32 and p.device == x.device for p in (kernel, *parameters)
        )
        and not torch.compiler.is_compiling()
        and _COMPILED
        and torch.cuda.get_device_capability(x.device) >= CAPABILITY
    )


def stem_norm_act(
    x: Tensor,
    kernel: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    *,
    act: Activation = "linear",
    slope: float = 0.0,
    momentum: float = 0.1,
    eps: float = 1e-5,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """``act(batch_norm(conv2d(x, kernel, padding=1)))`` with the statistics of the batch; differentiable but for ``x``.

    Args:
        x: ``[N, 3, H, W]``, under autocast read in its type.
        kernel: ``[O, 3, 3, 3]``, read in the type of x.
        weight: ``[O]``, of the norm; see :func:`yolo.ops.batch_norm_act` for it and all that follows.

    Returns:
        ``[N, O, H, W]``, channels last, of the type that x is read in; arithmetic is float32.

    Raises:
        ValueError: The activation is none of :data:`yolo.ops.norm_reference.ACTIVATIONS`.
    """
    number = reference.index_of(act)
    x = x.to(computed_type(x))
    y, statistics = cast(
        "tuple[Tensor, Tensor]",
        _Stem.apply(x, kernel, weight, bias, number, slope, eps, group),
    )
    follow(statistics, running_mean, running_var, momentum)
    return y


class _Stem(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kernel: Tensor,
        weight: Tensor,
        bias: Tensor,
        act: int,
        slope: float,
        eps: float,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        ops = torch.ops.yolo
        with below_autograd():
            sums, count = of_all(ops.stem_sums.default(x, kernel), x.numel() / x.shape[1], group)
            statistics = reference.make_statistics(sums, count, eps).to(reference.table_type(x))
            y = ops.stem_norm_act.default(x, kernel, weight, bias, statistics, act, slope)
        ctx.save_for_backward(x, kernel, weight, bias, statistics, count)
        ctx.act, ctx.slope, ctx.group = act, slope, group
        ctx.mark_non_differentiable(statistics)
        return y, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *common, count = ctx.saved_tensors
        common = (grad.contiguous(memory_format=torch.channels_last), *common)
        ops = torch.ops.yolo
        with below_autograd():
            sums = ops.stem_grad_sums.default(*common, ctx.act, ctx.slope)
            means = means_of_all(sums, count, ctx.group)
            d_kernel = ops.stem_grad.default(*common, means, ctx.act, ctx.slope)
        d_bias, d_weight = sums.unbind()  # of this process alone: DDP averages parameters' gradients
        return None, d_kernel, d_weight, d_bias, None, None, None, None


def _convolved(x: Tensor, kernel: Tensor) -> Tensor:
    """The convolution of x with the weights in its type, not rounded again."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.conv2d(x.to(wide), kernel.to(x.dtype).to(wide), padding=1)


def sums_reference(x: Tensor, kernel: Tensor) -> Tensor:
    """Sum and sum of squares of the convolution, ``[2, O]`` float64."""
    return reference.sum_up(_convolved(x, kernel))


def norm_act_reference(
    x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, table: Tensor, *act: Any
) -> Tensor:
    """The output, from the statistics ``table`` ``[3, O]`` of the convolution."""
    y = reference.apply(_convolved(x, kernel), weight, bias, table, None, *act)
    return y.to(x.dtype, memory_format=torch.channels_last)


def grad_sums_reference(grad: Tensor, x: Tensor, kernel: Tensor, *norm: Any) -> Tensor:
    """:func:`yolo.ops.norm_reference.grad_sums` of the convolution: of the norm's bias and weight, ``[2, O]``."""
    return reference.grad_sums(grad, _convolved(x, kernel), *norm)


def grad_reference(grad: Tensor, x: Tensor, kernel: Tensor, *norm: Any) -> Tensor:
    """The gradient of the kernel, through :func:`yolo.ops.norm_reference.grad_input` of the convolution."""
    y = _convolved(x, kernel)
    d_y = reference.grad_input(grad, y, *norm)
    found = conv2d_weight(x.to(y.dtype), list(kernel.shape), d_y, padding=1)
    return torch.empty_like(kernel).copy_(found)


_NORM = "Tensor x, Tensor kernel, Tensor weight, Tensor bias, Tensor statistics"
_ACT = "int act, float slope"
register(
    "stem_sums",
    "(Tensor x, Tensor kernel) -> Tensor",
    sums_reference,
    lambda x, kernel: x.new_empty((2, kernel.shape[0]), dtype=torch.float64),
)
register(
    "stem_norm_act",
    f"({_NORM}, {_ACT}) -> Tensor",
    norm_act_reference,
    lambda x, kernel, *_: x.new_empty((x.shape[0], kernel.shape[0], *x.shape[2:])).contiguous(
        memory_format=torch.channels_last
    ),
)
register(
    "stem_grad_sums",
    f"(Tensor grad, {_NORM}, {_ACT}) -> Tensor",
    grad_sums_reference,
    lambda grad, x, kernel, *_: x.new_empty((2, kernel.shape[0]), dtype=reference.table_type(x)),
)
register(
    "stem_grad",
    f"(Tensor grad, {_NORM}, Tensor means, {_ACT}) -> Tensor",
    grad_reference,
    lambda grad, x, kernel, *_: torch.empty_like(kernel),
)
for _step in ("stem_sums", "stem_norm_act", "stem_grad_sums", "stem_grad"):
    register_without_gradient(_step, "yolo.ops.stem_norm_act")
_COMPILED = has_kernel("stem_norm_act", "cuda")
