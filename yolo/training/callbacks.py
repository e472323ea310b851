"""What happens around the steps: averaged weights, checkpoints, freezing, progress."""

import logging
import math
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from yolo.checkpoint import write_atomically

log = logging.getLogger(__name__)


class Ema(pl.Callback):
    """Exponential average of weights and statistics; it is what is validated, saved as ``state_dict`` and shipped.

    Our own rather than Lightning's WeightAveraging, whose counter lives on the device and is read by the host on
    every step. The raw weights are in the checkpoint as ``raw_state_dict``, so that training resumes from them.

    Args:
        decay: Weight of the past once the ramp is over.
        ramp: Steps after which the decay has reached 63 % of ``decay``.
    """

    def __init__(self, decay: float = 0.9998, ramp: float = 2000.0) -> None:
        if not 0 <= decay < 1 or ramp <= 0:
            raise ValueError(f"the average needs 0 <= decay < 1 and ramp > 0, got decay={decay}, ramp={ramp}")
        self.decay, self.ramp = decay, ramp
        self.steps = 0
        self.average: dict[str, Tensor] = {}
        self._seen = 0
        self._swapped = False

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        current = module.state_dict()
        if not self.average:
            self.average = {name: value.detach().clone() for name, value in current.items()}
        self.average = {name: value.to(current[name].device) for name, value in self.average.items()}
        self._seen = trainer.global_step

    @torch.no_grad()
    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step == self._seen:
            return  # in the middle of an accumulation window
        self._seen = trainer.global_step
        self.steps += 1
        past = self.decay * (1.0 - math.exp(-self.steps / self.ramp))
        current = module.state_dict()
        floats = [name for name, value in self.average.items() if value.is_floating_point()]
        torch._foreach_lerp_([self.average[n] for n in floats], [current[n] for n in floats], 1.0 - past)
        for name in self.average.keys() - set(floats):
            self.average[name].copy_(current[name])

    @torch.no_grad()
    def _swap(self, module: pl.LightningModule) -> None:
        for name, value in module.state_dict().items():
            kept = value.clone()
            value.copy_(self.average[name])
            self.average[name].copy_(kept)

    def on_validation_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.average:
            self._swap(module)
            self._swapped = True

    def on_validation_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.average and self._swapped:
            self._swap(module)
            self._swapped = False

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        if self._swapped:  # interrupted while validating: give the raw weights back before anything is saved
            self._swap(module)
            self._swapped = False

    def on_save_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self.average:
            checkpoint["raw_state_dict"] = checkpoint["state_dict"]
            checkpoint["state_dict"] = self.average
            checkpoint["ema_steps"] = self.steps

    def on_load_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if "ema_steps" in checkpoint:
            self.steps = checkpoint["ema_steps"]
            self.average = dict(checkpoint["averaged_state_dict"])


class Checkpoints(pl.Callback):
    """Keeps ``last.ckpt`` (everything that a resume needs) and ``best.ckpt`` (the weights with the best score).

    Both are written beside the old file and renamed, so that a crash or a full disk leaves a loadable checkpoint.

    Args:
        folder: The run folder.
        monitor: The logged number that ``best`` follows; larger is better.
        every_seconds: ``last.ckpt`` is written at most this often, and always at the end of the run.
    """

    def __init__(self, folder: str, monitor: str = "val/map", every_seconds: float = 30.0) -> None:
        self.folder, self.monitor, self.every_seconds = Path(folder), monitor, every_seconds
        self.best = -1.0
        self._saved_at = -math.inf
        self._saved_step = -1

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

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
            # whole, although little of it is kept: a dump of weights only leaves out what callbacks add, the average
            content = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            slim = {
                "yolo": content["yolo"],
                "state_dict": content["state_dict"],
                "epoch": trainer.current_epoch,
                "score": score,
            }
            write_atomically(slim, self.folder / "best.ckpt")

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if time.monotonic() - self._saved_at >= self.every_seconds:
            self._save_last(trainer)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._save_last(trainer)

    def _save_last(self, trainer: pl.Trainer) -> None:
        if self._saved_step == trainer.global_step:
            return
        content = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        if trainer.is_global_zero:
            write_atomically(content, self.folder / "last.ckpt")
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step


class FreezeBackbone(pl.Callback):
    """Keeps frozen layers as they are: no gradient, and batch norm in evaluation mode so that statistics stay too."""

    def __init__(self, frozen: list[nn.Module]) -> None:
        self.frozen = frozen

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for part in self.frozen:
            part.eval()


class StopOnNaN(pl.Callback):
    """Ends a run whose loss is no longer a number, before the checkpoint of the good weights is replaced."""

    def __init__(self, every: int = 50) -> None:
        self.every = every

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx % self.every == 0 or trainer.is_last_batch:
            loss = outputs["loss"]
            if not bool(torch.isfinite(loss)):
                raise ValueError(
                    f"the loss became {float(loss)} in epoch {trainer.current_epoch}, batch {batch_idx}: lower "
                    "optimizer.lr or raise schedule.warmup_steps; last.ckpt holds the state before it"
                )
