"""Batch norm, activation and residual: one operator where it is faster, the plain modules elsewhere."""

from typing import TypeGuard

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from yolo.ops.norm import batch_norm_act, fits
from yolo.ops.norm_reference import Activation


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
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    y = batch_norm_act(
        x,
        *tables,
        act=name,
        slope=act.negative_slope if isinstance(act, nn.LeakyReLU) else 0.0,
        residual=added,
        momentum=norm.momentum,
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
