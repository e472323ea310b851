"""What every training has in common: optimiser, schedule, several processes, exact resume, self-describing files."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from yolo.checkpoint import AnyModel, describe
from yolo.data import coloured
from yolo.training import distributed
from yolo.training.position import adopt_position
from yolo.training.schedule import parameter_groups
from yolo.types import Batch

Optimize = Callable[[Iterable[dict[str, object]]], Optimizer]
Schedule = Callable[[Optimizer, int], LRScheduler]


class FitModule(pl.LightningModule):
    """Fits a network; sub-classes say what a step is.

    Args:
        model: The network, its class names and how its pictures are prepared.
        optimizer: Makes an optimiser of parameter groups.
        schedule: Makes a per-step schedule of an optimiser and the number of steps.
        weight_decay: Of weights only: norms and biases have none.
    """

    same: tuple[str, ...] = ("recipe", "classes", "preprocess")  # what a run that is resumed must not change

    def __init__(self, model: AnyModel, optimizer: Optimize, schedule: Schedule, weight_decay: float) -> None:
        super().__init__()
        self.model = model
        self.optimizer, self.schedule, self.weight_decay = optimizer, schedule, weight_decay
        self._logged: Tensor | None = None  # sums over the pictures of the epoch so far, and their number

    def described(self, checkpoint: dict[str, Any]) -> AnyModel:
        """The model that a checkpoint, complete but for its description, holds."""
        return self.model

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move the tensors and colour them; the records stay where they are (Lightning would walk into them)."""
        targets = type(batch.targets)(*(value.to(device, non_blocking=True) for value in batch.targets))
        colours = batch.colours if batch.colours is None else batch.colours.to(device, non_blocking=True)
        return coloured(Batch(batch.images.to(device, non_blocking=True), targets, batch.meta, colours))

    def setup(self, stage: str) -> None:
        distributed.prepare(self.trainer)
        self._logged = None  # of a fit that was broken off

    def on_validation_epoch_start(self) -> None:
        distributed.share_buffers(self)  # after Ema: the average is what is scored

    def build_optimizer(self) -> Optimizer:
        return self.optimizer(parameter_groups(self, self.weight_decay))

    def configure_optimizers(self) -> Any:
        optimizer = self.build_optimizer()
        schedule = self.schedule(optimizer, self._total_steps())
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "name": "lr"},
        }

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip to the norm without waiting for the device, also under fused optimisers.

        Those unscale fp16 gradients within their step, which spares a pass and a wait, so the gradients are still
        scaled here; Lightning refuses to clip them.
        """
        if not gradient_clip_val or gradient_clip_algorithm not in (None, "norm"):
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters])
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            norm = norm / scaler.scale(torch.ones_like(norm))
        clip_grads_with_norm_(parameters, gradient_clip_val, norm)

    def log_losses(self, losses: Mapping[str, Tensor], count: int) -> None:
        """Log ``train/<name>_step`` at the steps that are logged, ``train/<name>_epoch`` at the end of an epoch.

        The latter is the average of all pictures and processes. Not Lightning's on_step and on_epoch: updating a
        metric for every loss takes the host several milliseconds a step, as much as a small network.

        Args:
            losses: Scalars of this batch.
            count: Pictures in it.
        """
        values = torch.stack([value.detach().float() for value in losses.values()])
        if self._logged is None:
            self._logged = torch.zeros(len(values) + 1, device=values.device)
        self._logged += torch.cat((values, values.new_ones(1))) * count
        if self.trainer._logger_connector.should_update_logs:
            steps = zip(losses, values, strict=True)
            self.log_dict({f"train/{name}_step": value for name, value in steps}, prog_bar=True)
        if self.trainer.is_last_batch:
            means, self._logged = self._logged[:-1] / self._logged[-1], None
            epoch = {f"train/{name}_epoch": mean for name, mean in zip(losses, means, strict=True)}
            self.log_dict(epoch, on_step=False, on_epoch=True, sync_dist=True, batch_size=1)

    def _total_steps(self) -> int:
        """Optimiser steps of the whole run.

        Not Lightning's estimated_stepping_batches: that starts the loader, and its workers fetch pictures of epoch 0
        before a resume has said which epoch it is.
        """
        trainer = self.trainer
        batches = trainer.datamodule.batches_per_epoch(trainer.world_size)  # type: ignore[attr-defined]
        if isinstance(trainer.limit_train_batches, int):
            batches = min(batches, trainer.limit_train_batches)
        total = math.ceil(batches / trainer.accumulate_grad_batches) * max(trainer.max_epochs or 1, 1)
        return min(total, trainer.max_steps) if trainer.max_steps > 0 else total

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["yolo"] = describe(self.described(checkpoint))
        checkpoint["rng"] = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            checkpoint["rng"]["cuda"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained, ours = checkpoint["yolo"], describe(self.model)
        for key in self.same:
            if trained[key] != ours[key]:
                raise ValueError(
                    f"the checkpoint was trained with {key}={trained[key]}, this run has {key}={ours[key]}: "
                    "resume with the same settings, or start a new run from its weights with weights="
                )
        adopt_position(checkpoint, self.trainer)
        if "raw_state_dict" in checkpoint:  # the file's state_dict is the average, see Ema
            checkpoint["averaged_state_dict"] = checkpoint["state_dict"]
            checkpoint["state_dict"] = checkpoint["raw_state_dict"]
        torch.set_rng_state(checkpoint["rng"]["cpu"].cpu())
        if self.device.type == "cuda" and "cuda" in checkpoint["rng"]:
            torch.cuda.set_rng_state(checkpoint["rng"]["cuda"].cpu(), self.device)
