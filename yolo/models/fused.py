"""Convolution, batch norm, activation, residual: one operator where that is faster, the plain modules elsewhere."""

from typing import TypeGuard

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from yolo.models.folded import FoldedConv2d
from yolo.ops import stem
from yolo.ops.norm import batch_norm_act, fits
from yolo.ops.norm_reference import Activation


def conv_norm_act(
    x: Tensor, conv: nn.Module, norm: nn.Module, act: nn.Module, residual: Tensor | None = None
) -> Tensor:
    """``act(norm(conv(x))) + residual``.

    :func:`yolo.ops.stem_norm_act` stands in for the first block of a network, in training, whose picture and parameters
    its kernels take (:func:`yolo.ops.stem.fits`); forward hooks of ``norm`` and ``act`` do not run then. All else,
    and a ``conv`` with hooks (to round its input, say), is :func:`norm_act` of ``conv(x)``.
    """
    name = _name(act)
    if name is None or residual is not None or not _is_stem(conv) or not _learns_statistics(norm):
        return norm_act(conv(x), norm, act, residual)
    tables = norm.weight, norm.bias, norm.running_mean, norm.running_var
    if not stem.fits(x, name, conv.weight, *tables):
        return norm_act(conv(x), norm, act)
    return stem.stem_norm_act(
        x,
        conv.weight,
        *tables,
        act=name,
        slope=_slope(act),
        momentum=_count(norm),
        eps=norm.eps,
        group=_group(norm),
    )


def norm_act(x: Tensor, norm: nn.Module, act: nn.Module, residual: Tensor | None = None) -> Tensor:
    """``act(norm(x)) + residual``.

    :func:`yolo.ops.batch_norm_act` stands in for a batch norm in training whose input its kernels take
    (:func:`yolo.ops.norm.fits`); forward hooks of ``norm`` and ``act`` do not run then.
    """
    name = _name(act)
    if name is None or not _learns_statistics(norm):
        return _plain(x, norm, act, residual)
    tables = norm.weight, norm.bias, norm.running_mean, norm.running_var
    if not fits(x, *tables):
        return _plain(x, norm, act, residual)
    alike = residual is not None and residual.shape == x.shape and residual.dtype == x.dtype
    added = residual if residual is not None and alike and fits(residual) else None
    y = batch_norm_act(
        x,
        *tables,
        act=name,
        slope=_slope(act),
        residual=added,
        momentum=_count(norm),
        eps=norm.eps,
        group=_group(norm),
    )
    return y if residual is None or added is not None else residual + y


def _plain(x: Tensor, norm: nn.Module, act: nn.Module, residual: Tensor | None) -> Tensor:
    x = act(norm(x))
    return x if residual is None else residual + x


def _name(act: nn.Module) -> Activation | None:
    match act:
        case nn.LeakyReLU() | nn.ReLU():
            return "leaky"
        case nn.Mish():
            return "mish"
        case nn.SiLU():
            return "silu"
        case nn.Identity():
            return "linear"
    return None


def _slope(act: nn.Module) -> float:
    return act.negative_slope if isinstance(act, nn.LeakyReLU) else 0.0


def _is_stem(conv: nn.Module) -> TypeGuard[FoldedConv2d]:
    """Whether :mod:`yolo.ops.stem` computes this convolution, whose weights it looks at itself, and nobody listens."""
    return (
        type(conv) is FoldedConv2d
        and not conv._forward_pre_hooks
        and not conv._forward_hooks
        and conv.stride == (1, 1)
        and conv.padding == (1, 1)
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and conv.bias is None
    )


def _count(norm: _BatchNorm) -> float:
    """Count a batch; the share of it in the running statistics."""
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    return norm.momentum


def _learns_statistics(norm: nn.Module) -> TypeGuard[_BatchNorm]:
    """In training, with running statistics that move by a fixed share."""
    return (
        isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm)
        and norm.training
        and norm.momentum is not None
        and norm.track_running_stats
    )


def _group(norm: nn.Module) -> dist.ProcessGroup | None:
    """The processes that share a batch, where there are several."""
    if not isinstance(norm, nn.SyncBatchNorm) or not dist.is_available() or not dist.is_initialized():
        return None
    group = norm.process_group or dist.group.WORLD
    return group if dist.get_world_size(group) > 1 else None
