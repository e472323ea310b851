"""What happens around the steps: averaged weights, frozen layers, a loss that is no number."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn


class Ema(pl.Callback):
    """Exponential average of weights and statistics; it is what is validated, saved as ``state_dict`` and shipped.

    Our own rather than Lightning's WeightAveraging, whose counter lives on the device and is read by the host on
    every step. The raw weights are in the checkpoint as ``raw_state_dict``, so that training resumes from them.

    Args:
        decay: Largest weight of the past.
        share: The average reaches back over about this share of the steps so far, short runs and long ones alike.
    """

    def __init__(self, decay: float = 0.9998, share: float = 0.1) -> None:
        if not 0 <= decay < 1 or not 0 < share <= 1:
            raise ValueError(
                f"the average needs 0 <= decay < 1 and 0 < share <= 1, got decay={decay}, share={share}"
            )
        self.decay, self.share = decay, share
        self.steps = 0
        self.average: dict[str, Tensor] = {}
        self._seen = 0
        self._swapped = False
        self._pairs: list[tuple[list[Tensor], list[Tensor]]] = []  # while training

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self._pairs = []  # of another run, whose tensors have moved

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        current = module.state_dict()
        if not self.average:
            self.average = {name: value.detach().clone() for name, value in current.items()}
        self.average = {name: value.to(current[name].device) for name, value in self.average.items()}

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._seen = trainer.global_step  # only now is it that of a resumed run
        self._pairs = self._paired(module)  # once: walking the modules takes as long as dozens of kernels

    def _paired(self, module: pl.LightningModule) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Averaged and current tensors: floats, others."""
        current = module.state_dict()
        floats = [name for name, value in current.items() if value.is_floating_point()]
        return [
            ([self.average[name] for name in names], [current[name] for name in names])
            for names in (floats, [name for name in current if name not in set(floats)])
        ]

    @torch.no_grad()
    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step == self._seen:
            return  # in the middle of an accumulation window
        self._seen = trainer.global_step
        self.steps += 1
        past = min(self.decay, 1.0 - 1.0 / (1.0 + self.share * self.steps))
        floats, others = self._pairs
        torch._foreach_lerp_(*floats, 1.0 - past)
        if others[0]:
            torch._foreach_copy_(*others)

    @torch.no_grad()
    def _swap(self, module: pl.LightningModule) -> None:
        for averaged, current in self._pairs or self._paired(module):
            if current:
                kept = [torch.empty_like(value) for value in current]
                torch._foreach_copy_(kept, current)
                torch._foreach_copy_(current, averaged)
                torch._foreach_copy_(averaged, kept)

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
            raw, average = checkpoint["state_dict"], self.average
            if self._swapped:  # written while validating
                raw, average = average, raw
            checkpoint["raw_state_dict"], checkpoint["state_dict"] = raw, average
            checkpoint["ema_steps"] = self.steps

    def on_load_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if "ema_steps" in checkpoint:
            self.steps = checkpoint["ema_steps"]
            self.average = dict(checkpoint["averaged_state_dict"])


class FreezeBackbone(pl.Callback):
    """Keeps frozen layers as they are: no gradient, and batch norm in evaluation mode so that statistics stay too."""

    def __init__(self, frozen: list[nn.Module]) -> None:
        self.frozen = frozen

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for part in self.frozen:  # a run that goes on in the middle of an epoch does not start that epoch
            part.eval()

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
