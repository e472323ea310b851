"""Splits of a data set to batches."""

import logging
import math
import os
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from yolo.data import Annotated, Augment, DetectionDataset, ImageStore, Preprocess, collate
from yolo.data.augment import largest_zoom
from yolo.data.store import Cache
from yolo.training.interrupt import ignore_signals
from yolo.training.order import Batches, RunningLoader, ShardedSampler
from yolo.training.schedule import settling_from
from yolo.types import Batch

log = logging.getLogger(__name__)

Reader = Callable[[], Annotated]

PREFETCH = 4  # batches that each loader process has ready


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class DetectionData(pl.LightningDataModule):
    """Loaders for training and evaluation.

    Args:
        train: Reads the training split; ``val`` and ``test`` likewise.
        preprocess: How a picture becomes network input.
        augment: Applied to training pictures.
        batch_size: Pictures per process and step.
        workers: Loader processes; 0 loads in the main one.
        cache: Keep decoded pictures: ``none``, ``ram`` or ``disk`` (in ``cache_dir``).
        seed: Draws order and augmentation.
        settle: Last epochs that are trained without mosaic and mixup (:func:`settling_from`).
    """

    def __init__(
        self,
        train: Reader,
        val: Reader,
        preprocess: Preprocess,
        augment: Augment | None,
        test: Reader | None = None,
        batch_size: int = 16,
        workers: int = 2,
        cache: Cache = "none",
        cache_dir: str | None = None,
        seed: int = 0,
        settle: int = 0,
    ) -> None:
        super().__init__()
        self.readers = {"train": train, "val": val, "test": test}
        self.preprocess, self.augment = preprocess, augment
        self.batch_size, self.seed, self.settle = batch_size, seed, settle
        self.workers = min(workers, usable_cores())  # more only wait for each other, and for the training
        self.cache, self.cache_dir = cache, cache_dir
        self._annotated: dict[str, Annotated] = {}
        self._datasets: dict[str, DetectionDataset] = {}

    def annotated(self, split: str) -> Annotated:
        """The pictures and boxes of a split, read once.

        Raises:
            ValueError: The split does not exist or has no usable picture.
        """
        if split not in self._annotated:
            reader = self.readers.get(split)
            if reader is None:
                known = [name for name, found in self.readers.items() if found is not None]
                raise ValueError(f"this data set has no split '{split}': it has {', '.join(known)}")
            self._annotated[split] = reader()
        return self._annotated[split]

    def dataset(self, split: str) -> DetectionDataset:
        """The data set of a split; only ``train`` is augmented."""
        if split not in self._datasets:
            records = self.annotated(split).records
            augment = self.augment if split == "train" else None
            useless = self.preprocess.in_floats and (augment is None or not augment.active)
            store = (
                None
                if self.cache == "none" or useless
                else ImageStore(
                    records, self.preprocess, self.cache, self.cache_dir, zoom=largest_zoom(augment)
                )
            )
            self._datasets[split] = DetectionDataset(
                records, self.preprocess, augment, self.seed, store=store
            )
        return self._datasets[split]

    def setup(self, stage: str) -> None:
        for split in {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}.get(stage, ()):
            self.dataset(split)

    def train_dataloader(self) -> DataLoader[Batch]:
        dataset = self.dataset("train")
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        epochs = trainer.max_epochs if trainer else None
        sampler = ShardedSampler(len(dataset), True, self.seed, rank, world, self.batch_size)
        if trainer is not None:
            # workers fetch as soon as the loader starts, so after a resume it must know where the run stands
            loop = trainer.fit_loop
            batches = loop.epoch_loop.batch_progress
            epoch: Any = loop.epoch_progress.current
            sampler.set_epoch(epoch.processed)
            sampler.skip = batches.current.ready if epoch.ready != epoch.processed else 0
        if len(dataset) < self.batch_size * world:
            log.warning(
                "the training split has %d pictures, fewer than one step takes (%d): they come several times in it",
                len(dataset), self.batch_size * world,
            )  # fmt: skip
        end = epochs if epochs is not None and epochs >= 0 else math.inf
        return RunningLoader(
            dataset, Batches(sampler, settling_from(epochs, self.settle), end), **self._loading()
        )

    def batches_per_epoch(self, world: int) -> int:
        """Training batches of one process in an epoch; a last batch that is not full is left out."""
        pictures = len(self.dataset("train"))
        return len(ShardedSampler(pictures, True, self.seed, 0, world, self.batch_size)) // self.batch_size

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._evaluation("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._evaluation("test")

    def _evaluation(self, split: str) -> DataLoader[Batch]:
        dataset = self.dataset(split)
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        sampler = ShardedSampler(len(dataset), False, self.seed, rank, world)
        return DataLoader(dataset, self.batch_size, sampler=sampler, **self._loading())  # type: ignore[arg-type]

    def _loading(self) -> dict[str, Any]:
        return {
            "num_workers": self.workers,
            "persistent_workers": self.workers > 0,
            "prefetch_factor": PREFETCH if self.workers else None,
            "pin_memory": torch.cuda.is_available(),
            "collate_fn": collate,  # makes a Batch of Items
            "worker_init_fn": ignore_signals,
            "generator": torch.Generator(),  # its own: loading never moves the random numbers of the network
        }
