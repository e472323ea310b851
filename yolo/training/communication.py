"""What several processes that train one model spend on talking to each other."""

import time
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import nn

NEAR, FAR = 100, 25  # MB that DDP sends at once while backward still runs


@dataclass(frozen=True)
class Communication:
    """The exchange of gradients in a step."""

    bytes: int  # of the gradients, of each process
    alone: float  # milliseconds of the exchange with nothing beside it
    share: float  # of a step that is waited for it: what is not hidden behind the backward pass


class Unsynchronized(pl.Callback):
    """Steps without the exchange of gradients: each process then trains a model of its own."""

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        trainer.strategy.model.require_backward_grad_sync = False  # type: ignore[union-attr]


def bucket_megabytes(trainer: pl.Trainer) -> int:
    """How much DDP is to send at once, of gradients that are ready while the rest is still being computed.

    Within a host few large sends slow backward down less (YOLOv3 on two H200s: by 3.7 ms in place of 5.0, of 96);
    between hosts the last one, which nothing hides, had better be small.
    """
    return NEAR if trainer.num_nodes == 1 else FAR


def exchanges_gradients(trainer: pl.Trainer) -> bool:
    """Whether ``trainer`` trains in several processes as :class:`Communication` knows them (DDP)."""
    return isinstance(trainer.strategy, DDPStrategy) and trainer.world_size > 1


def exchanges_at_the_end(trainer: pl.Trainer) -> bool:
    """Whether nothing need be said to other processes before all gradients of a step are there.

    That is what a step needs to be replayed as a whole. Between the GPUs of a host the exchange takes so little (1 ms
    for YOLOv3 over NVLink) that hiding it behind the backward pass saves less than the launches of that pass cost a
    small network; between hosts it is hidden.
    """
    if trainer.world_size == 1:
        return True
    # each of these talks to the others in every forward pass
    shared = any(isinstance(m, nn.SyncBatchNorm) for m in trainer.lightning_module.modules())
    return exchanges_gradients(trainer) and trainer.num_nodes == 1 and not shared


def over_ranks(value: float, operation: Any, device: torch.device) -> float:
    """The sum or the maximum (``dist.ReduceOp``) of a number of every process; the number itself if there is one."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    found = torch.tensor([value], dtype=torch.float32, device=device)
    dist.all_reduce(found, operation)
    return float(found)


def gradient_bytes(module: nn.Module) -> int:
    """Of all parameters that are trained."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def exchange_milliseconds(size: int, bucket: int, device: torch.device, runs: int = 10) -> float:
    """Milliseconds to sum ``size`` bytes of every process, ``bucket`` MB at once: the slowest in its best run."""
    buckets = torch.zeros(max(size // 4, 1), device=device).split(bucket * 2**20 // 4)
    best = float("inf")
    for _ in range(runs):
        over_ranks(0.0, dist.ReduceOp.SUM, device)  # all begin together
        began = time.perf_counter()
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return over_ranks(best * 1e3, dist.ReduceOp.MAX, device)
