"""What a person sees while it trains: a bar on a terminal, one line an epoch everywhere."""

import logging
import sys
import time
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import TQDMProgressBar

log = logging.getLogger(__name__)


class Progress(TQDMProgressBar):
    """Lightning's bar with images per second and without the version number; off where there is no terminal."""

    def __init__(self, refresh_rate: int = 10) -> None:
        super().__init__(refresh_rate=refresh_rate if sys.stderr.isatty() else 0)

    def get_metrics(self, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Any]:
        shown = super().get_metrics(trainer, module)
        return {
            name.removeprefix("train/").removesuffix("_step"): value
            for name, value in shown.items()
            if name != "v_num"
        }


class EpochLine(pl.Callback):
    """One line an epoch: losses, scores, images per second, time left. Also logs the speed."""

    def __init__(self) -> None:
        self._epoch_began = self._began = 0.0
        self._first_epoch = 0
        self._images = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._began = self._epoch_began = time.monotonic()  # a resume may stand within its first epoch
        self._first_epoch = trainer.current_epoch

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._epoch_began, self._images = time.monotonic(), 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._images += len(batch.images) * trainer.world_size
        if trainer.is_last_batch:
            seconds = max(time.monotonic() - self._epoch_began, 1e-9)
            module.log("speed/images_per_second", self._images / seconds, rank_zero_only=True)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        found = {
            name: float(value) for name, value in trainer.callback_metrics.items()
        }  # all ranks add them up
        if not trainer.is_global_zero:
            return
        terms = " ".join(
            f"{name.removeprefix('train/').removesuffix('_epoch')} {value:.4g}"
            for name, value in found.items()
            if name.startswith("train/") and name.endswith("_epoch")
        )
        scores = " ".join(
            f"{name.removeprefix('val/')} {value:.4f}"
            for name, value in found.items()
            if name.startswith("val/")
        )
        done = trainer.current_epoch + 1
        passed = time.monotonic() - self._began
        left = passed / (done - self._first_epoch) * ((trainer.max_epochs or done) - done)
        speed = found.get("speed/images_per_second", 0.0)
        log.info(
            "epoch %d/%s: %s | %s | %.0f images/s | %s left",
            done, trainer.max_epochs, terms, scores, speed, timedelta(seconds=round(left)),
        )  # fmt: skip
