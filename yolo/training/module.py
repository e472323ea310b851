"""Fits a detector to a loss and scores it."""

import logging
from dataclasses import replace
from typing import Any

import torch
from pytorch_lightning.plugins import MixedPrecision
from torch import Tensor
from torch.optim import Optimizer

from yolo.checkpoint import Model
from yolo.data import to_float
from yolo.inference import to_found
from yolo.losses import Criterion
from yolo.metrics import DetectionMetric, scalars
from yolo.models import FakeQuant
from yolo.ops import detect
from yolo.training.communication import exchanges_at_the_end
from yolo.training.fit import FitModule, Optimize, Schedule
from yolo.training.memory import out_of_memory
from yolo.training.multiscale import MultiScale, resize_batch
from yolo.training.recorded import RecordedStep
from yolo.training.schedule import parameter_groups, settling_from
from yolo.types import Batch, Detections, Targets

log = logging.getLogger(__name__)

# Ranges learn so much faster than weights: those of a trained network hardly move, a range that calibration put wrong
# must go far, and its logarithm changes by the learning rate a step.
RANGE_SPEED = 30.0


class DetectionModule(FitModule):
    """Fits ``model`` to ``criterion`` and scores it.

    Args:
        model: The network, its class names and how its pictures are prepared.
        criterion: The network's loss: named terms whose sum is minimised.
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
        cuda_graphs: Records the step for each input size (:class:`RecordedStep`) where that can be done: GPUs of one
            host, mixed precision, a loss that is recordable, no statistics over all GPUs.
    """

    model: Model

    def __init__(
        self,
        model: Model,
        criterion: Criterion,
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
        cuda_graphs: bool = False,
    ) -> None:
        super().__init__(model, optimizer, schedule, weight_decay)
        self.detector = model.detector
        self.criterion = criterion
        self.metric = metric
        self.multiscale = multiscale if model.detector.fixed_size is None else None
        self.settle = settle
        self.seed = seed
        self.quantizer = quantizer
        self.cuda_graphs = cuda_graphs
        self._recorded: RecordedStep | None = None
        self.rule: dict[str, Any] = {
            "score_threshold": score_threshold,
            "iou_threshold": iou_threshold,
            "max_detections": max_detections,
            "multi_label": True,
        }

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of every input that training may see."""
        size = self.model.preprocess.size
        return [size] if self.multiscale is None else self.multiscale.sizes(size, self.detector.stride)

    def forward(self, images: Tensor) -> list[Tensor]:
        if self.quantizer is None:
            return self.detector(images)
        return self.quantizer(self.detector, images)

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
        losses = self._losses(images, targets)
        total = torch.stack(list(losses.values())).sum()
        self.log_losses(losses | {"loss": total}, len(batch.images))
        return total

    def on_train_start(self) -> None:
        self._recorded = None  # of another fit
        if self._can_record():
            self._recorded = RecordedStep(self.detector, self.criterion, self.sizes)

    def _can_record(self) -> bool:
        if not self.cuda_graphs or self.device.type != "cuda" or not exchanges_at_the_end(self.trainer):
            return False
        # float32 convolutions may use streams of their own, which cannot be recorded
        mixed = isinstance(self.trainer.precision_plugin, MixedPrecision)
        return mixed and self.quantizer is None and self.criterion.recordable

    def _losses(self, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        if self._recorded is not None:
            try:
                return self._recorded(images, targets)
            except RuntimeError as error:  # too little memory for it, too
                self._recorded = None
                log.warning("the step cannot be recorded (%s): slower without", str(error).partition("\n")[0])
        return self.criterion.of(self.detector if self.quantizer is None else self, images, targets)

    def on_train_end(self) -> None:
        self._recorded = None  # its memory

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        images = to_float(batch.images).contiguous(memory_format=torch.channels_last)
        detections = self._detections(images)
        self.metric.update(
            to_found(detections, [m.placement for m in batch.meta]), [m.record for m in batch.meta]
        )

    def _detections(self, images: Tensor) -> Detections:
        try:
            return self._detect(images)
        except RuntimeError as error:
            if self._recorded is None or out_of_memory(error) is None:
                raise
        # out of the except clause: the error holds tensors
        log.warning("recorded steps leave too little GPU memory to score: from now on without them, slower")
        self._recorded = None
        torch.cuda.empty_cache()
        return self._detect(images)

    def _detect(self, images: Tensor) -> Detections:
        if self.quantizer is None:
            return self.detector.detect(images, **self.rule)
        return detect(self(images), self.detector.specs, **self.rule)

    def on_validation_epoch_end(self) -> None:
        scores = scalars(self.metric.compute())
        for name in ("map50", "map", "map75"):
            self.log(f"val/{name}", scores[name], prog_bar=name != "map75")
        self.metric.reset()

    def build_optimizer(self) -> Optimizer:
        if self.quantizer is None:
            return super().build_optimizer()
        optimizer = self.optimizer(parameter_groups(self.detector, self.weight_decay))
        rate = RANGE_SPEED * optimizer.param_groups[0]["lr"]
        ranges = list(self.quantizer.parameters())
        optimizer.add_param_group({"params": ranges, "lr": rate, "weight_decay": 0.0})
        return optimizer

    def described(self, checkpoint: dict[str, Any]) -> Model:
        if self.quantizer is None:
            return self.model
        log_limits = checkpoint["state_dict"][
            "quantizer.log_limits"
        ]  # after the callbacks: averaged, see Ema
        return replace(self.model, ranges=self.quantizer.ranges(log_limits))
