"""Fits a classifier: the first of the two steps in which YOLOv2 is trained."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from yolo.checkpoint import ClassifierModel
from yolo.data import to_float
from yolo.training.fit import FitModule, Optimize, Schedule
from yolo.training.multiscale import resize_batch
from yolo.types import Batch


class ClassificationModule(FitModule):
    """Cross-entropy over whole pictures, small ones first, larger ones at the end (arXiv:1612.08242, sec. 3).

    Pictures are loaded at the size of ``model.preprocess`` and made smaller on the device.

    Args:
        model: The network, its class names and how its pictures are prepared.
        optimizer: Makes an optimiser of parameter groups.
        schedule: Makes a per-step schedule of an optimiser and the number of steps.
        weight_decay: Of weights only: norms and biases have none.
        first_size: Height and width until the last epochs; None: the full size from the start.
        fine_epochs: Last epochs, at the full size.
        label_smoothing: Share of every target that is spread over all classes.
    """

    model: ClassifierModel
    same: tuple[str, ...] = ("recipe", "classes")  # the size changes on the way

    def __init__(
        self,
        model: ClassifierModel,
        optimizer: Optimize,
        schedule: Schedule,
        weight_decay: float = 5e-4,
        first_size: Sequence[int] | None = None,
        fine_epochs: int = 10,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(model, optimizer, schedule, weight_decay)
        if fine_epochs < 0 or not 0 <= label_smoothing < 1:
            raise ValueError(
                "classifier needs fine_epochs >= 0 and 0 <= label_smoothing < 1, "
                f"got {fine_epochs} and {label_smoothing}"
            )
        self.classifier = model.classifier
        self.first_size = None if first_size is None else (first_size[0], first_size[1])
        self.fine_epochs, self.label_smoothing = fine_epochs, label_smoothing

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of every input that training may see."""
        full = self.model.preprocess.size
        return sorted({full, self.first_size or full})

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures in this epoch."""
        last = (self.trainer.max_epochs or 0) - self.current_epoch <= self.fine_epochs
        full = self.model.preprocess.size
        return full if self.first_size is None or last else self.first_size

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(images)
        return logits

    def _logits(self, batch: Batch) -> Tensor:
        if len(batch.targets.labels) != len(batch.images):
            raise ValueError(
                f"{len(batch.images)} pictures came with {len(batch.targets.labels)} classes, every picture has one: "
                "use data=imagefolder, and an augmentation without mosaic and mixup and with min_visible=0"
            )
        images, _ = resize_batch(to_float(batch.images), batch.targets, self.size)
        return self(images.contiguous(memory_format=torch.channels_last))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits, labels = self._logits(batch), batch.targets.labels
        loss = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        self.log_losses({"loss": loss}, len(labels))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits, labels = self._logits(batch), batch.targets.labels
        best = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        scores = {"val/top1": best[:, 0].float().mean(), "val/top5": best.any(dim=1).float().mean()}
        self.log_dict(scores, prog_bar=True, on_epoch=True, sync_dist=True, batch_size=len(labels))

    def described(self, checkpoint: dict[str, Any]) -> ClassifierModel:
        return replace(self.model, preprocess=replace(self.model.preprocess, size=self.size))
