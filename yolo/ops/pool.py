"""The largest of each 2 x 2 pixels, for training: backward finds it again in place of keeping where it was."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from yolo.ops.library import below_autograd, has_kernel, in_vectors, register, register_without_gradient


def fits(x: Tensor) -> bool:
    """Whether the compiled kernels take ``x`` and its gradient is wanted; no: ``F.max_pool2d`` does the same.

    They take an even height and width.
    """
    return (
        in_vectors(x)
        and x.shape[2] % 2 == 0
        and x.shape[3] % 2 == 0
        and x.requires_grad
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and _COMPILED
    )


def max_pool_2x2(x: Tensor) -> Tensor:
    """The largest of each 2 x 2 pixels; differentiable.

    The gradient goes to the first of several that are the largest, row by row, as it does in ``F.max_pool2d``.

    Args:
        x: ``[N, C, H, W]`` with H and W even.

    Returns:
        ``[N, C, H / 2, W / 2]``.
    """
    return cast("Tensor", _Pool.apply(x))


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        with below_autograd():
            return torch.ops.yolo.max_pool_2x2.default(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        with below_autograd():
            return torch.ops.yolo.max_pool_2x2_backward.default(grad, x)


def max_pool_reference(x: Tensor) -> Tensor:
    """:func:`max_pool_2x2` in plain PyTorch."""
    return F.max_pool2d(x, 2)


def max_pool_backward_reference(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x."""
    _, places = F.max_pool2d(x, 2, return_indices=True)
    found = F.max_unpool2d(grad, places, [2, 2], output_size=x.shape[2:])
    return found.contiguous(memory_format=torch.channels_last)


register(
    "max_pool_2x2",
    "(Tensor x) -> Tensor",
    max_pool_reference,
    lambda x: x.new_empty((*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)).contiguous(
        memory_format=torch.channels_last
    ),
)
register(
    "max_pool_2x2_backward",
    "(Tensor grad, Tensor x) -> Tensor",
    max_pool_backward_reference,
    lambda grad, x: torch.empty_like(x),
)
for _step in ("max_pool_2x2", "max_pool_2x2_backward"):
    register_without_gradient(_step, "yolo.ops.max_pool_2x2")
_COMPILED = has_kernel("max_pool_2x2", "cuda")
