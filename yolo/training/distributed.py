"""Several processes that train one model, and several jobs that share the GPUs of one host."""

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import nn

from yolo.training.communication import bucket_megabytes

LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")


def prepare(trainer: pl.Trainer) -> None:
    """Set up DDP before it wraps the model.

    It must not send buffers around in ``forward``: ranks may have unequal numbers of validation batches, and would wait
    for each other for ever. Training never reads running statistics; :func:`share_buffers` is for those who do.
    """
    if isinstance(trainer.strategy, DDPStrategy):
        options = trainer.strategy._ddp_kwargs
        options.setdefault("broadcast_buffers", False)
        options.setdefault("bucket_cap_mb", bucket_megabytes(trainer))


def share_buffers(module: nn.Module) -> None:
    """Give every rank the running statistics of rank 0, which are those in the checkpoint."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    found = [b for b in module.buffers() if b.is_floating_point()]
    for dtype in sorted({b.dtype for b in found}, key=str):
        same = [b for b in found if b.dtype == dtype]
        flat = torch.cat([b.flatten() for b in same])
        dist.broadcast(flat, 0)
        for buffer, part in zip(same, flat.split([b.numel() for b in same]), strict=True):
            buffer.copy_(part.view_as(buffer))


def is_first() -> bool:
    """Whether this process is the one that speaks and writes for all of a run."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def leave_group() -> None:
    """End what the processes of a run have in common; metrics are then those of this process."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def one_launch() -> Iterator[None]:
    """Leave no trace of the processes of a run, so that the next run in this process can start its own.

    Lightning takes ``LOCAL_RANK`` as the sign that somebody else has started them, and sets it itself.
    """
    outside = "LOCAL_RANK" in os.environ
    before = {name: os.environ.get(name) for name in LAUNCH}
    try:
        yield
    finally:
        if not outside:
            leave_group()
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


@contextmanager
def taken(names: Sequence[str], otherwise: int = 0) -> Iterator[int]:
    """The index of the first of ``names`` (of GPUs) that no other job of this user on this host holds.

    It is held until the end, or the death, of the job. Where all are held the jobs share them: ``otherwise`` modulo
    their number.
    """
    folder = Path(tempfile.gettempdir())
    for index, name in enumerate(names):
        with (folder / f"yolo-{os.getuid()}-{name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            try:
                yield index
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # loader processes may still have the file open
            return
    yield otherwise % len(names)


def gpu_names() -> list[str]:
    """A name for each visible GPU that is the same in every process of this host."""
    return [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
