"""Splits of a data set to batches."""

import logging
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Sampler

from yolo.data import Annotated, Augment, DetectionDataset, ImageStore, Preprocess, collate
from yolo.data.augment import largest_zoom
from yolo.data.store import Cache
from yolo.training.interrupt import ignore_signals
from yolo.training.schedule import settling_from
from yolo.types import Batch

log = logging.getLogger(__name__)

Reader = Callable[[], Annotated]

PREFETCH = 4  # batches that each loader process has ready


class ShardedSampler(Sampler[int]):
    """The pictures of one rank in one epoch, from nothing but numbers: the same after a resume, on any host.

    Args:
        length: Pictures in the split.
        shuffle: A new order each epoch; every rank then gets the same count, at least ``chunk``: the last few of an
            order are left out if they do not divide, and a split that does not fill one batch on every rank comes
            several times. Without it every picture is seen once over all ranks (and one twice by a rank that would
            have none: ranks without a batch would not take part in the evaluation that the others wait for).
        chunk: Batch size, so that ``skip`` can be given in batches.
    """

    def __init__(self, length: int, shuffle: bool, seed: int, rank: int, world: int, chunk: int = 1) -> None:
        self.length, self.shuffle, self.seed = length, shuffle, seed
        self.rank, self.world, self.chunk = rank, world, chunk
        self.epoch = 0
        self.skip = 0  # batches of the current epoch that were already trained on before a resume

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.skip = epoch, 0

    def __iter__(self) -> Iterator[int]:
        if not self.shuffle:
            return iter(range(self.rank, self.length, self.world) or [self.rank % self.length])
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        order = (order * -(-self.world * self.chunk // self.length))[: len(self) * self.world]
        return iter(order[self.rank :: self.world][self.skip * self.chunk :])

    def __len__(self) -> int:
        if self.shuffle:
            return max(self.length // self.world, self.chunk)
        return max(len(range(self.rank, self.length, self.world)), 1)


class EpochSampler(ShardedSampler):
    """A sampler that also tells its data set which epoch it is, so that the augmentation follows.

    Args:
        plain_from: From this epoch on mosaic and mixup are left out.
    """

    def __init__(
        self,
        dataset: DetectionDataset,
        seed: int,
        rank: int,
        world: int,
        chunk: int,
        plain_from: float = math.inf,
    ) -> None:
        super().__init__(len(dataset), True, seed, rank, world, chunk)
        self.dataset, self.plain_from = dataset, plain_from

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.dataset.set_epoch(epoch, mosaic=epoch < self.plain_from)


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
        whole = settling_from(trainer.max_epochs if trainer else None, self.settle)
        sampler = EpochSampler(dataset, self.seed, rank, world, self.batch_size, whole)
        if trainer is None:
            sampler.set_epoch(0)
        else:  # workers fetch as soon as the loader starts, so after a resume it must know where the run stands
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
        return self._loader(dataset, sampler, drop_last=True)  # batch norm cannot do with a last batch of one

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
        return self._loader(
            dataset, ShardedSampler(len(dataset), False, self.seed, rank, world), drop_last=False
        )

    def _loader(self, dataset: DetectionDataset, sampler: Sampler[int], drop_last: bool) -> DataLoader[Batch]:
        return DataLoader(
            dataset,  # type: ignore[arg-type]  # collate makes a Batch of Items
            batch_size=self.batch_size,
            sampler=sampler,
            drop_last=drop_last,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            prefetch_factor=PREFETCH if self.workers else None,
            pin_memory=torch.cuda.is_available(),
            collate_fn=collate,
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # its own, so that loading never moves the random numbers of the network
        )
