"""The only class that knows both PyTorch and Lightning: it fits a detector to a loss."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from yolo.checkpoint import Model, describe
from yolo.data import to_float
from yolo.inference import to_found
from yolo.metrics import DetectionMetric, scalars
from yolo.models import FakeQuant
from yolo.ops import detect
from yolo.training import distributed
from yolo.training.multiscale import MultiScale, resize_batch
from yolo.training.position import adopt_position
from yolo.training.schedule import parameter_groups, settling_from
from yolo.types import Batch

Optimize = Callable[[Iterable[dict[str, object]]], Optimizer]
Schedule = Callable[[Optimizer, int], LRScheduler]


class DetectionModule(pl.LightningModule):
    """Fits ``model`` to ``criterion`` and scores it.

    Args:
        model: The network, its class names and how its pictures are prepared.
        criterion: Raw outputs, targets and input size to named loss terms; their sum is minimised.
        metric: Scores detections in picture pixels.
        optimizer: Makes an optimiser of parameter groups.
        schedule: Makes a per-step schedule of an optimiser and the number of steps.
        weight_decay: Of weights only: norms and biases have none.
        multiscale: Draws training sizes; None trains at one size.
        settle: Last epochs at one size (:func:`settling_from`).
        seed: Of the size draw.
        score_threshold: Detections below do not reach the metric.
        iou_threshold: Of the suppression before the metric.
        max_detections: Kept a picture for the metric.
        quantizer: Trains and scores the network as its int8 form, ranges included; None as it is.
    """

    def __init__(
        self,
        model: Model,
        criterion: nn.Module,
        metric: DetectionMetric,
        optimizer: Optimize,
        schedule: Schedule,
        weight_decay: float = 5e-4,
        multiscale: MultiScale | None = None,
        settle: int = 0,
        seed: int = 0,
        score_threshold: float = 0.005,
        iou_threshold: float = 0.45,
        max_detections: int = 300,
        quantizer: FakeQuant | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.detector = model.detector
        self.criterion = criterion
        self.metric = metric
        self.optimizer, self.schedule, self.weight_decay = optimizer, schedule, weight_decay
        self.multiscale = multiscale if model.detector.fixed_size is None else None
        self.settle = settle
        self.seed = seed
        self.quantizer = quantizer
        self.suppress = partial(
            detect,
            specs=model.detector.specs,
            score_threshold=score_threshold,
            iou_threshold=iou_threshold,
            max_detections=max_detections,
            multi_label=True,
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        if self.quantizer is None:
            return self.detector(images)
        return self.quantizer(self.detector, images)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move the tensors; the records stay where they are (Lightning would walk into them)."""
        targets = type(batch.targets)(*(value.to(device, non_blocking=True) for value in batch.targets))
        return Batch(batch.images.to(device, non_blocking=True), targets, batch.meta)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, targets = to_float(batch.images), batch.targets
        if self.multiscale is not None and self.current_epoch < settling_from(
            self.trainer.max_epochs, self.settle
        ):
            size = self.multiscale.draw(
                self.model.preprocess.size,
                self.detector.stride,
                self.trainer.accumulate_grad_batches,
                self.seed,
                self.current_epoch,
                batch_idx,
            )
            images, targets = resize_batch(images, targets, size)
        images = images.contiguous(memory_format=torch.channels_last)
        losses = self.criterion(self(images), targets, (images.shape[2], images.shape[3]))
        total = torch.stack(list(losses.values())).sum()
        logged = {f"train/{name}": value.detach() for name, value in losses.items()} | {
            "train/loss": total.detach()
        }
        self.log_dict(logged, on_step=True, on_epoch=True, prog_bar=True, batch_size=len(batch.images))
        return total

    def setup(self, stage: str) -> None:
        distributed.prepare(self.trainer)

    def on_validation_epoch_start(self) -> None:
        distributed.share_buffers(self)  # after Ema: the average is what is scored

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        images = to_float(batch.images).contiguous(memory_format=torch.channels_last)
        detections = self.suppress(self(images))
        self.metric.update(
            to_found(detections, [m.placement for m in batch.meta]), [m.record for m in batch.meta]
        )

    def on_validation_epoch_end(self) -> None:
        scores = scalars(self.metric.compute())
        for name in ("map50", "map", "map75"):
            self.log(f"val/{name}", scores[name], prog_bar=name != "map75")
        self.metric.reset()

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(parameter_groups(self, self.weight_decay))
        schedule = self.schedule(optimizer, self._total_steps())
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "name": "lr"},
        }

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
        model = self.model
        if self.quantizer is not None:  # after the callbacks: these are the averaged ranges, see Ema
            log_limits = checkpoint["state_dict"]["quantizer.log_limits"]
            model = replace(model, ranges=self.quantizer.ranges(log_limits))
        checkpoint["yolo"] = describe(model)
        checkpoint["rng"] = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            checkpoint["rng"]["cuda"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained, ours = checkpoint["yolo"], describe(self.model)
        for key in ("recipe", "classes", "preprocess"):
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
