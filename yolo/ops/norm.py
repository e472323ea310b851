"""Batch norm, activation and residual in one operator, for training; backward recomputes from the input.

``yolo::batch_norm_act`` normalises with the statistics of its own input. For several processes the same work
comes in steps with room for an all-reduce between them: ``batch_norm_sums`` (sum and sum of squares), then
``norm_act``; backward ``norm_act_sums``, then ``norm_act_grad``. Running statistics stay plain PyTorch.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from yolo.ops import norm_reference as reference
from yolo.ops.library import (
    below_autograd,
    has_kernel,
    in_vectors,
    library,
    register,
    register_without_gradient,
)
from yolo.ops.norm_reference import Activation


def fits(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether the compiled kernels take ``x`` and float32 ``parameters``; no: use the plain modules."""
    return (
        in_vectors(x)
        and x.numel() > x.shape[1]  # one value a channel has no variance, and the plain norm says so
        and all(p is not None and p.dtype == torch.float32 and p.device == x.device for p in parameters)
        and _COMPILED
    )


def batch_norm_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    *,
    act: Activation = "linear",
    slope: float = 0.0,
    residual: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """``act(batch_norm(x)) + residual`` with the statistics of the batch; differentiable.

    Args:
        x: ``[N, C, H, W]``, fp16, bf16 or fp32.
        weight: ``[C]``, float32, like ``bias`` and the running statistics.
        running_mean: Moved towards the batch's by ``momentum``, in place, with ``running_var`` (unbiased).
        slope: Of the leaky activation, below 0.
        residual: Added behind the activation; of x's shape and type.
        group: Processes that share one batch; each may hold another number of pixels.

    Returns:
        Of x's shape and type; arithmetic is float32.

    Raises:
        ValueError: The activation is none of :data:`yolo.ops.norm_reference.ACTIVATIONS`.
    """
    arguments = (x, weight, bias, residual, reference.index_of(act), slope, eps)
    if group is not None:
        y, statistics = cast("tuple[Tensor, Tensor]", _Synchronized.apply(*arguments, group))
    elif torch.compiler.is_compiling():  # one node with a registered gradient
        y, statistics = torch.ops.yolo.batch_norm_act(*arguments)
    else:  # the same with a third of the host's time
        y, statistics = cast("tuple[Tensor, Tensor]", _Eager.apply(*arguments))
    follow(statistics, running_mean, running_var, momentum)
    return y


def follow(
    statistics: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> None:
    """Move running statistics, where there are some, towards ``statistics`` ``[3, C]`` of a batch."""
    if running_mean is not None and running_var is not None:
        mean, _, variance = statistics.detach().unbind()
        torch._foreach_lerp_([running_mean, running_var], [mean, variance], momentum)


def of_all(sums: Tensor, pixels: float, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Sums ``[2, C]`` and the number of pixels ``[1]`` of all processes of ``group``, or of this one without."""
    count = sums.new_full((1,), pixels)
    if group is None:
        return sums, count
    every = torch.cat((sums.flatten(), count))
    dist.all_reduce(every, group=group)
    return every[:-1].view_as(sums), every[-1:]


def means_of_all(sums: Tensor, count: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sums ``[2, C]`` of all processes over their ``count`` of pixels; ``sums`` stay those of this one."""
    whole = sums
    if group is not None:
        whole = sums.clone()
        dist.all_reduce(whole, group=group)
    return (whole / count).to(sums.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, residual, ctx.act, ctx.slope, _ = inputs
    ctx.has_residual = residual is not None
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, bias, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grad = grad.contiguous(memory_format=torch.channels_last)
    dx, sums = torch.ops.yolo.batch_norm_act_backward.default(grad, *ctx.saved_tensors, ctx.act, ctx.slope)
    d_bias, d_weight = sums.unbind()
    return dx, d_weight, d_bias, grad if ctx.has_residual else None, None, None, None


class _Eager(torch.autograd.Function):
    """``yolo::batch_norm_act`` and its gradient without the detour over their registrations."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        with below_autograd():
            output = torch.ops.yolo.batch_norm_act.default(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        with below_autograd():
            return _backward(ctx, grad, _)


class _Synchronized(torch.autograd.Function):
    """The operator in steps, with the sums of all processes of a group."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        act: int,
        slope: float,
        eps: float,
        group: dist.ProcessGroup,
    ) -> tuple[Tensor, Tensor]:
        sums, count = of_all(torch.ops.yolo.batch_norm_sums(x), x.numel() / x.shape[1], group)
        statistics = reference.make_statistics(sums, count, eps).to(reference.table_type(x))
        ctx.save_for_backward(x, weight, bias, statistics, count)
        ctx.has_residual, ctx.act, ctx.slope, ctx.group = residual is not None, act, slope, group
        ctx.mark_non_differentiable(statistics)
        return torch.ops.yolo.norm_act(x, weight, bias, statistics, residual, act, slope), statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, statistics, count = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        common = (grad, x, weight, bias, statistics)
        sums = torch.ops.yolo.norm_act_sums(*common, ctx.act, ctx.slope)
        dx = torch.ops.yolo.norm_act_grad(*common, means_of_all(sums, count, ctx.group), ctx.act, ctx.slope)
        d_bias, d_weight = sums.unbind()  # of this process alone: DDP averages parameters' gradients
        return dx, d_weight, d_bias, grad if ctx.has_residual else None, None, None, None, None


def _fake_table(x: Tensor, rows: int) -> Tensor:
    return x.new_empty((rows, x.shape[1]), dtype=reference.table_type(x))


_NORM = "Tensor x, Tensor weight, Tensor bias"
_ACT = "int act, float slope"
register(
    "batch_norm_act",
    f"({_NORM}, Tensor? residual, {_ACT}, float eps) -> (Tensor y, Tensor statistics)",
    reference.batch_norm_act,
    lambda x, *_: (torch.empty_like(x), _fake_table(x, 3)),
)
torch.library.register_autograd("yolo::batch_norm_act", _backward, setup_context=_save, lib=library)
register(
    "batch_norm_act_backward",
    f"(Tensor grad, {_NORM}, Tensor statistics, {_ACT}) -> (Tensor dx, Tensor sums)",
    reference.batch_norm_act_backward,
    lambda grad, x, *_: (torch.empty_like(x), _fake_table(x, 2)),
)
register(
    "batch_norm_sums",
    "(Tensor x) -> Tensor",
    reference.sum_up,
    lambda x: x.new_empty((2, x.shape[1]), dtype=torch.float64),
)
register(
    "norm_act",
    f"({_NORM}, Tensor statistics, Tensor? residual, {_ACT}) -> Tensor",
    reference.apply,
    lambda x, *_: torch.empty_like(x),
)
register(
    "norm_act_sums",
    f"(Tensor grad, {_NORM}, Tensor statistics, {_ACT}) -> Tensor",
    reference.grad_sums,
    lambda grad, x, *_: _fake_table(x, 2),
)
register(
    "norm_act_grad",
    f"(Tensor grad, {_NORM}, Tensor statistics, Tensor means, {_ACT}) -> Tensor",
    reference.grad_input,
    lambda grad, x, *_: torch.empty_like(x),
)
for _step in ("batch_norm_act_backward", "batch_norm_sums", "norm_act", "norm_act_sums", "norm_act_grad"):
    register_without_gradient(_step, "yolo.ops.batch_norm_act")
_COMPILED = has_kernel("batch_norm_act", "cuda")
