"""Ctrl-C and SIGTERM as a request that training honours at its next clean point."""

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist

log = logging.getLogger(__name__)


class StopRequest:
    """Whether a signal asked this run to end, known to all ranks at the same optimiser step.

    The first signal is only noted: an exception in the middle of a step would leave half-updated weights. The second
    one ends the process at once. A rank that stopped alone would leave the others waiting in a collective for ever, so
    several ranks agree, over a group of their own on the CPU: what was noted at one step is known to all at the next,
    and no step waits for the agreement.
    """

    def __init__(self) -> None:
        self._noted = 0
        self._before: dict[int, Any] = {}
        self._group: Any = None
        self._pending: tuple[torch.Tensor, Any] | None = None

    def listen(self, trainer: pl.Trainer) -> None:
        """Take the signals over, from Python and from Lightning."""
        self._noted, self._pending = 0, None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        if trainer.world_size > 1:
            self._group = dist.new_group(backend="gloo")
            # Lightning's own agreement makes the host wait for the device before every batch
            trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _nothing  # type: ignore[method-assign]

    def release(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise SystemExit(128 + number)
        self._noted = number
        os.write(
            2, b"\nstopping after this step; once more to stop at once\n"
        )  # a handler must not use logging

    def agreed(self) -> int:
        """The signal that all ranks know of, or 0; every rank calls this after the same optimiser steps."""
        if self._group is None:
            return self._noted
        result = 0
        if self._pending is not None:
            value, handle = self._pending
            handle.wait()
            result = int(value)
        value = torch.tensor(self._noted)
        self._pending = value, dist.all_reduce(value, dist.ReduceOp.MAX, self._group, async_op=True)
        return result

    def agree_now(self) -> int:
        """As :meth:`agreed`, but waits for the other ranks."""
        self.agreed()
        return self.agreed()

    def leave(self, number: int, trainer: pl.Trainer, message: str) -> None:
        """End the run; the exit status is the shell's for that signal."""
        if self._group is not None:
            dist.barrier(self._group)  # rank 0 has written
        if trainer.is_global_zero:
            log.info("%s", message)
            raise SystemExit(128 + number)
        raise SystemExit(
            0
        )  # whoever started the ranks would take any other status for a crash and kill rank 0


def ignore_signals(worker: int = 0) -> None:
    """For loader processes: they end with the process that they load for, not before its last step is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _nothing() -> None:
    pass
