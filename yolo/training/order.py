"""Which pictures come when, on which rank; and loaders that are ahead of the epoch."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from yolo.data import DetectionDataset, Draw
from yolo.types import Batch


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

    def order(self, epoch: int) -> list[int]:
        """All of an epoch."""
        if not self.shuffle:
            return list(range(self.rank, self.length, self.world)) or [self.rank % self.length]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        order = (order * -(-self.world * self.chunk // self.length))[: len(self) * self.world]
        return order[self.rank :: self.world]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(self.epoch)[self.skip * self.chunk :])

    def __len__(self) -> int:
        if self.shuffle:
            return max(self.length // self.world, self.chunk)
        return max(len(range(self.rank, self.length, self.world)), 1)


class Batches(Sampler[list[Draw]]):
    """The batches of one rank, epoch after epoch, from where ``sampler`` stands.

    A last one that is not full is left out: batch norm cannot do with one picture.

    Args:
        sampler: Lightning tells it the epoch.
        plain_from: From this epoch on mosaic and mixup are left out.
        end: Epochs of the run.
    """

    def __init__(self, sampler: ShardedSampler, plain_from: float = math.inf, end: float = math.inf) -> None:
        self.sampler, self.plain_from, self.end = sampler, plain_from, end

    def __iter__(self) -> Iterator[list[Draw]]:
        epoch, skip, size = self.sampler.epoch, self.sampler.skip, self.sampler.chunk
        while epoch < self.end:
            draws = [Draw(index, epoch, epoch < self.plain_from) for index in self.sampler.order(epoch)]
            for batch in range(skip, len(self)):
                yield draws[batch * size : (batch + 1) * size]
            epoch, skip = epoch + 1, 0

    def __len__(self) -> int:
        """Of one epoch."""
        return len(self.sampler) // self.sampler.chunk


class RunningLoader(DataLoader[Batch]):
    """A loader whose processes go on with the next epoch while the last steps of this one, and its validation, run.

    A loader that begins anew with every epoch makes a GPU wait for the first batch each time: a quarter of an epoch of
    18 batches. To Lightning it is a loader of one epoch.

    Args:
        dataset: Takes draws.
        batches: All epochs.
        options: Those of ``DataLoader``; without loader processes every epoch begins anew.
    """

    def __init__(self, dataset: DetectionDataset, batches: Batches, **options: Any) -> None:
        super().__init__(dataset, batch_sampler=batches, **options)  # type: ignore[arg-type]
        self._stream: Iterator[Batch] | None = None
        self._at = (0, 0)  # epoch and batch of it that the stream gives next

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        sampler = self.batch_sampler.sampler  # type: ignore[union-attr]
        wanted = (sampler.epoch, sampler.skip)
        # Lightning takes the processes away between two fits; an epoch that was cut short leaves some of it behind
        goes_on = self._iterator is not None and self._iterator is self._stream and self._at == wanted
        stream = self._stream if goes_on else super().__iter__()
        assert stream is not None
        self._stream, self._at = stream, wanted
        return self._epoch(stream)

    def _epoch(self, stream: Iterator[Batch]) -> Iterator[Batch]:
        (epoch, first), count = self._at, len(self)
        for done in range(first + 1, count + 1):
            batch = next(stream)
            self._at = (epoch, done) if done < count else (epoch + 1, 0)
            yield batch
