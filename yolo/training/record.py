"""Keeps what the report of a run shows: the first batches, and what the best validation saw."""

from pathlib import Path

import numpy as np
import pytorch_lightning as pl
from numpy.typing import NDArray

from yolo.data import to_bytes
from yolo.metrics.pictures import Picture, distinct
from yolo.report.draw import draw, enlarged
from yolo.report.page import never_fatal
from yolo.report.predictions import write_image
from yolo.report.run import Validated
from yolo.training.module import DetectionModule
from yolo.types import Batch

SHOWN = 16  # pictures of a batch that are drawn
COLUMNS = 4


class Recorder(pl.Callback):
    """Watches a run for its report.

    The detections that a validation scores are kept, not made again, so the report costs training nothing. In
    a run of several processes this one's share of the pictures is kept.

    Args:
        folder: The run folder.
        monitor: The logged number that says which validation is the best; larger is better.
        batches: First batches that are drawn.
    """

    def __init__(self, folder: str, monitor: str = "val/map", batches: int = 3) -> None:
        self.folder, self.monitor, self.batches = Path(folder), monitor, batches
        self.validated: Validated | None = None
        self._best = float("-inf")
        self._pictures: list[Picture] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        if trainer.current_epoch == 0 and batch_idx < self.batches and trainer.is_global_zero:
            with never_fatal("drawing of the first batches"):
                assert isinstance(module, DetectionModule)
                classes = module.model.classes
                write_image(self.folder / "report" / f"batch_{batch_idx}.jpg", draw_batch(batch, classes))

    def on_validation_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, DetectionModule)
        self._pictures = distinct(module.metric.pictures)  # before the module scores them and forgets them

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        pictures, self._pictures = self._pictures, []
        score = trainer.callback_metrics.get(self.monitor)
        if trainer.sanity_checking or score is None or not float(score) > self._best:
            return
        self._best = float(score)
        share = f" (the pictures of one of {trainer.world_size} processes)" if trainer.world_size > 1 else ""
        self.validated = Validated(pictures, trainer.current_epoch + 1, share)


def draw_batch(batch: Batch, classes: list[str]) -> NDArray[np.uint8]:
    """The first pictures of a batch with their boxes, four a row: ``[H, W, 3]`` RGB.

    Args:
        batch: As the training step gets it.
        classes: Names.
    """
    images = to_bytes(batch.images[:SHOWN]).permute(0, 2, 3, 1).cpu().numpy()
    boxes, labels, of = (values.cpu().numpy() for values in batch.targets)
    tiles = []
    for index, image in enumerate(images):
        large, factor = enlarged(image)
        tiles.append(draw(large, boxes[of == index] * factor, labels[of == index], classes))
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % COLUMNS)
    rows = [np.concatenate(tiles[at : at + COLUMNS], 1) for at in range(0, len(tiles), COLUMNS)]
    return np.concatenate(rows)
