"""``last.ckpt`` and ``best.ckpt``: when they are written, and what a run that goes on finds in them."""

import logging
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

from yolo.checkpoint import remove_leftovers, write_atomically
from yolo.training.interrupt import StopRequest
from yolo.training.position import describe_position
from yolo.training.writer import Writer

log = logging.getLogger(__name__)


class Checkpoints(Checkpoint):
    """Keeps ``last.ckpt`` (everything that a resume needs) and ``best.ckpt`` (the weights with the best score).

    Both are written beside the old file and renamed, so that a crash or a full disk leaves a loadable checkpoint. They
    are written in a thread, and always of the state between two optimiser steps. Ctrl-C and SIGTERM end the run at the
    next such point, with that state in ``last.ckpt``; the exit status is 130 and 143.

    Lightning calls a ``Checkpoint`` after all other callbacks, so the average of the step is in what is written.

    Args:
        folder: The run folder.
        monitor: The logged number that ``best`` follows; larger is better.
        every_seconds: After an epoch ``last.ckpt`` is written at most this often, and always at the end of the run.
        every_n_steps: Within an epoch it is written after so many optimiser steps; None: only between epochs.
    """

    def __init__(
        self,
        folder: str,
        monitor: str = "val/map",
        every_seconds: float = 30.0,
        every_n_steps: int | None = 1000,
    ) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"every_n_steps is at least 1, or null for none, got {every_n_steps}")
        self.folder, self.monitor = Path(folder), monitor
        self.every_seconds, self.every_n_steps = every_seconds, every_n_steps
        self.best = -1.0
        self.stop = StopRequest()
        self.writer = Writer()
        self._saved_at = -math.inf
        self._saved_step = self._step = -1
        self._stopping = 0
        self._trained = False

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # Lightning means its own protocol; DetectionData starts in the middle of an epoch by itself
        warnings.filterwarnings("ignore", ".*your dataloader is not resumable.*")
        if not trainer.is_global_zero:
            return
        remove_leftovers(self.folder)
        source = Path(trainer.ckpt_path).parent / "best.ckpt" if trainer.ckpt_path else None
        if source is not None and source.parent.resolve() != self.folder.resolve():
            # a resumed run in a folder of its own: the score to beat is worth nothing without its weights
            if source.is_file():
                write_atomically(source.read_bytes(), self.folder / "best.ckpt")
            else:
                self.best = -1.0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._trained = True
        self._step, self._saved_step = trainer.global_step, -1
        self._stopping = 0
        self.stop.listen(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:
            return  # in the middle of an accumulation window
        self._step = trainer.global_step
        self._stopping = self._stopping or self.stop.agreed()
        if trainer.is_last_batch:
            return  # the state after the epoch and its validation is the better one to go on from
        if self._stopping:
            self._leave(trainer, self._state(trainer))
        due = self.every_n_steps is not None and self._step % self.every_n_steps == 0
        if due and bool(torch.isfinite(outputs["loss"])):  # else StopOnNaN ends the run at its next look
            self._save_last(trainer)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._stopping = self._stopping or self.stop.agree_now()
            self._leave_validation(trainer)

    def on_validation_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if (
            trainer.world_size == 1 and not trainer.sanity_checking
        ):  # ranks may have unequal numbers of batches
            self._stopping = self._stopping or self.stop.agreed()
            self._leave_validation(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if (
            trainer.sanity_checking
            or not trainer.is_global_zero
            or self.monitor not in trainer.callback_metrics
        ):
            return
        score = float(trainer.callback_metrics[self.monitor])
        if math.isfinite(score) and score > self.best:
            self.best = score
            content = self._state(trainer)
            slim = {name: content[name] for name in ("yolo", "state_dict")}
            self.writer.put(
                slim | {"epoch": trainer.current_epoch, "score": score}, self.folder / "best.ckpt"
            )

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._stopping:
            self._leave(trainer, self._state(trainer))
        if time.monotonic() - self._saved_at >= self.every_seconds:
            self._save_last(trainer)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.stop.release()
        self._save_last(trainer)
        self.writer.finish()

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not self._trained and trainer.is_global_zero:
            log.info(
                "nothing to do: %d of %s epochs done (raise trainer.max_epochs to train on)",
                trainer.current_epoch, trainer.max_epochs,
            )  # fmt: skip

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self.stop.release()
        try:
            self.writer.finish()
        except OSError as error:
            log.error("%s", error)

    def _state(self, trainer: pl.Trainer) -> dict[str, Any]:
        # whole even where little of it is kept: a dump of weights only leaves out what callbacks add, the average
        content: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        content["position"] = describe_position(trainer)
        return content

    def _save_last(self, trainer: pl.Trainer) -> None:
        if self._saved_step == trainer.global_step and "last.ckpt" not in {
            p.name for p in self.writer.failed
        }:
            return
        content = self._state(trainer)
        if trainer.is_global_zero:
            self.writer.put(content, self.folder / "last.ckpt")
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step

    def _leave_validation(self, trainer: pl.Trainer) -> None:
        if self._stopping:
            content = self._state(trainer)
            progress = content["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            none = dict.fromkeys(progress["current"], 0)
            # Lightning then goes back to this validation, and begins it anew
            progress.update(current=none, total=none | {"ready": 1, "started": 1}, is_last_batch=False)
            self._leave(trainer, content)

    def _leave(self, trainer: pl.Trainer, content: dict[str, Any]) -> None:
        target = self.folder / "last.ckpt"
        if trainer.is_global_zero:
            self.writer.put(content, target)
            self.writer.finish()
        shown = os.path.relpath(target)
        self.stop.leave(self._stopping, trainer, f"stopped; go on with checkpoint={shown}")
