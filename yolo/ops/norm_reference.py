"""The arithmetic of :mod:`yolo.ops.norm` in plain PyTorch: what the kernels are checked against.

Half types are widened to float32; float64 stays, for checking gradients. ``statistics`` is ``[3, C]``: mean,
1 / sqrt(variance + eps), unbiased variance. ``act`` is an index into :data:`ACTIVATIONS`.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal["linear", "leaky", "mish", "silu"]
ACTIVATIONS = ("linear", "leaky", "mish", "silu")  # csrc/activations.h counts them alike


def index_of(act: Activation) -> int:
    """Of ``act`` in :data:`ACTIVATIONS`.

    Raises:
        ValueError: There is none.
    """
    if act not in ACTIVATIONS:
        raise ValueError(f"an activation is one of {', '.join(ACTIVATIONS)}, got {act!r}")
    return ACTIVATIONS.index(act)


def _widen(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def table_type(x: Tensor) -> torch.dtype:
    """The type of statistics and sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _columns(x: Tensor) -> Tensor:
    return x.reshape(-1, 1, 1)


def _activate(z: Tensor, act: int, slope: float) -> Tensor:
    match ACTIVATIONS[act]:
        case "leaky":
            return F.leaky_relu(z, slope)
        case "mish":
            return F.mish(z)
        case "silu":
            return F.silu(z)
    return z


def _differential(z: Tensor, act: int, slope: float) -> Tensor:
    """The derivative of the activation at ``z``."""
    match ACTIVATIONS[act]:
        case "leaky":
            return torch.full_like(z, slope).masked_fill_(z > 0, 1.0)
        case "mish":
            gate = F.softplus(z).tanh()
            return gate + z * (1.0 - gate * gate) * z.sigmoid()
        case "silu":
            logistic = z.sigmoid()
            return logistic * (1.0 + z * (1.0 - logistic))
    return torch.ones_like(z)


def sum_up(x: Tensor) -> Tensor:
    """Sum and sum of squares of every channel, ``[2, C]`` float64: what processes can add up."""
    wide = x.double()
    return torch.stack((wide.sum(dim=(0, 2, 3)), (wide * wide).sum(dim=(0, 2, 3))))


def make_statistics(sums: Tensor, count: Tensor | float, eps: float) -> Tensor:
    """``[3, C]`` float64 from :func:`sum_up`: mean, 1 / sqrt(variance + eps), unbiased variance."""
    mean, square = (sums / count).unbind()
    variance = (square - mean * mean).clamp(min=0.0)
    return torch.stack((mean, (variance + eps).rsqrt(), variance * (count / (count - 1))))


def _normalized(x: Tensor, statistics: Tensor) -> Tensor:
    mean, scale, _ = statistics.unbind()
    return (_widen(x) - _columns(mean)) * _columns(scale)


def apply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Tensor,
    residual: Tensor | None,
    act: int,
    slope: float,
) -> Tensor:
    """``act(weight * normalised x + bias) + residual``, in x's type."""
    y = _activate(_normalized(x, statistics) * _columns(weight) + _columns(bias), act, slope)
    return (y if residual is None else y + residual).to(x.dtype)


def _before_act(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor, act: int, slope: float
) -> tuple[Tensor, Tensor]:
    """The gradient at the norm's output, and the normalised input."""
    normalized = _normalized(x, statistics)
    z = normalized * _columns(weight) + _columns(bias)
    return _widen(grad) * _differential(z, act, slope), normalized


def grad_sums(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor, act: int, slope: float
) -> Tensor:
    """The gradients of bias and weight, ``[2, C]``."""
    dz, normalized = _before_act(grad, x, weight, bias, statistics, act, slope)
    return torch.stack((dz.sum(dim=(0, 2, 3)), (dz * normalized).sum(dim=(0, 2, 3))))


def grad_input(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Tensor,
    means: Tensor,
    act: int,
    slope: float,
) -> Tensor:
    """The gradient of x; ``means`` are :func:`grad_sums` of the whole batch over its number of pixels."""
    dz, normalized = _before_act(grad, x, weight, bias, statistics, act, slope)
    first, second = means.unbind()
    dx = _columns(weight * statistics[1]) * (dz - _columns(first) - normalized * _columns(second))
    return dx.to(x.dtype)


def batch_norm_act(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, act: int, slope: float, eps: float
) -> tuple[Tensor, Tensor]:
    """The output and the statistics of x."""
    statistics = make_statistics(sum_up(x), x.numel() / x.shape[1], eps).to(table_type(x))
    return apply(x, weight, bias, statistics, residual, act, slope), statistics


def batch_norm_act_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor, act: int, slope: float
) -> tuple[Tensor, Tensor]:
    """The gradient of x and, ``[2, C]``, those of bias and weight."""
    sums = grad_sums(grad, x, weight, bias, statistics, act, slope)
    means = sums / (x.numel() / x.shape[1])
    return grad_input(grad, x, weight, bias, statistics, means, act, slope), sums
