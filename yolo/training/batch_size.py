"""How many pictures make a batch and how many batches a step: given, or found by trial."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytorch_lightning as pl
import torch
import torch.distributed as dist

from yolo.checkpoint import read
from yolo.data import to_float
from yolo.training.memory import out_of_memory
from yolo.training.module import DetectionModule
from yolo.training.multiscale import resize_batch
from yolo.training.schedule import parameter_groups
from yolo.types import Targets

log = logging.getLogger(__name__)

ON_CPU = 16  # pictures: there memory is no limit that a trial could find, and larger batches are no faster
STEPS = 10  # an epoch is to have at least so many
SHARE = 0.9  # of the free memory: allocations of changing sizes leave holes
OBJECTS = 50  # a picture of the trial


class StepSize(pl.Callback):
    """Sets the batch size of the data and the batches a step of the trainer, before either is used.

    Args:
        batch_size: Pictures a batch and process. ``auto``: as in the checkpoint that the run goes on from, else on a
            GPU the largest of 1, 2, 4, 8, 16, 24, 32, ... that fits there (found by real steps at the largest
            multi-scale size, on a copy of the model) and leaves 10 steps an epoch; on the CPU at most 16.
        nominal: Accumulate gradients until about so many pictures are seen, over all processes; None: no.
        checkpoint: That the run goes on from.
    """

    def __init__(
        self, batch_size: int | Literal["auto"], nominal: int | None = None, checkpoint: Path | None = None
    ) -> None:
        if batch_size != "auto" and not (isinstance(batch_size, int) and batch_size >= 1):
            raise ValueError(
                f"data.batch_size is a number of pictures, at least 1, or auto, got {batch_size!r}"
            )
        if nominal is not None and nominal < 1:
            raise ValueError(f"nominal_batch is a number of pictures, at least 1, or null, got {nominal}")
        self.batch_size, self.nominal, self.checkpoint = batch_size, nominal, checkpoint
        self.parts = self.world = 1

    def split(self) -> int:
        """Have every batch come in parts from now on, in two if its size is even; gives their size.

        Raises:
            ValueError: A batch is one picture already.
        """
        whole = self.batch_size
        assert whole != "auto"
        size = whole // self.parts
        if size == 1:
            raise ValueError(
                "out of memory with one picture a batch: lower preprocess.size or multiscale.high"
            )
        self.parts *= next(part for part in range(2, size + 1) if size % part == 0)
        return whole // self.parts

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        if self.batch_size == "auto":
            self.batch_size = self._stored() or self._find(trainer, module, len(data.dataset("train")))
            log.info("data.batch_size=auto: %d pictures a batch and process", self.batch_size)
        whole, self.world = self.batch_size, trainer.world_size
        batches = 1 if self.nominal is None else max(1, int(self.nominal / (whole * self.world) + 0.5))
        data.batch_size = whole // self.parts
        trainer.accumulate_grad_batches = batches * self.parts

    def _stored(self) -> int | None:
        position = read(self.checkpoint).get("position") if self.checkpoint is not None else None
        return None if position is None else int(position["batch"])

    def _find(self, trainer: pl.Trainer, module: pl.LightningModule, pictures: int) -> int:
        if not isinstance(module, DetectionModule):
            raise ValueError("data.batch_size=auto is measured for detectors only: give a number")
        most = max(pictures // trainer.world_size // STEPS, 1)
        device = trainer.strategy.root_device
        if device.type != "cuda":
            return min(ON_CPU, most)
        found = largest(Trial(trainer, module, device), most)
        if trainer.world_size > 1:
            agreed = torch.tensor(found, device=device)
            dist.all_reduce(agreed, dist.ReduceOp.MIN)
            found = int(agreed)
        return found


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest of 1, 2, 4, 8, 16, 24, 32, ... up to ``most`` that fits, by doubling and halving the gap.

    Raises:
        ValueError: One picture does not fit.
    """
    if not fits(1):
        raise ValueError(
            "one picture does not fit the memory of the GPU: lower preprocess.size or multiscale.high"
        )
    good, bad = 1, None
    while bad is None and 2 * good <= most:
        if fits(2 * good):
            good *= 2
        else:
            bad = 2 * good
    low, high = (
        good // 8,
        -(-(bad or most + 1) // 8),
    )  # in eights; the upper one does not fit, or is more than most
    while good >= 8 and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(8 * middle) else (low, middle)
    return max(good, 8 * low)


class Trial:
    """Whether real steps with a batch size fit the GPU: forward, loss, backward, optimiser, at the largest size."""

    def __init__(self, trainer: pl.Trainer, module: DetectionModule, device: torch.device) -> None:
        self.trainer, self.module, self.device = trainer, module, device

    def __call__(self, batch_size: int) -> bool:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        limit = SHARE * (torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device))
        with torch.random.fork_rng([self.device]):
            try:
                self._steps(batch_size)
                fit = torch.cuda.max_memory_reserved(self.device) <= limit
            except RuntimeError as error:
                if out_of_memory(error) is None:
                    raise
                fit = False
        torch.cuda.empty_cache()
        return fit

    def _steps(self, batch_size: int) -> None:
        module = self.module
        detector, criterion, quantizer = copy.deepcopy((module.detector, module.criterion, module.quantizer))
        for part in (detector, criterion, quantizer):
            if part is not None:
                part.to(self.device).train()
        groups = parameter_groups(detector, module.weight_decay)
        optimizer = module.optimizer(groups)
        # the running average, and the buckets of DDP
        beside = [
            p.clone() for p in detector.parameters() for _ in range(2 if self.trainer.world_size > 1 else 1)
        ]
        size = module.model.preprocess.size
        high = max(module.sizes)
        images = torch.zeros(batch_size, 3, *size, dtype=torch.uint8, device=self.device)
        corners = torch.rand(batch_size * OBJECTS, 2, device=self.device) * min(size) / 2
        boxes = torch.cat([corners, corners + min(size) / 8], dim=1)
        image = torch.arange(batch_size, device=self.device).repeat_interleave(OBJECTS)
        targets = Targets(boxes, torch.zeros_like(image), image)
        for _ in range(2):  # the second one has the state of the optimiser beside it
            with self.trainer.precision_plugin.forward_context():
                resized, moved = resize_batch(to_float(images), targets, high)
                resized = resized.contiguous(memory_format=torch.channels_last)
                logits = detector(resized) if quantizer is None else quantizer(detector, resized)
                loss = torch.stack(list(criterion(logits, moved, high).values())).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize(self.device)
        del beside
