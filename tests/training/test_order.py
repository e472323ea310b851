"""Which pictures which rank sees, and when they are loaded."""

import math
import time
from collections import Counter

import pytest
import torch
from pytorch_lightning.utilities.combined_loader import _shutdown_workers_and_reset_iterator
from torch.utils.data import Dataset

from yolo.data import Draw
from yolo.training.order import Batches, RunningLoader, ShardedSampler


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_sees_every_picture_once_over_all_ranks(world: int) -> None:
    seen = [i for rank in range(world) for i in ShardedSampler(10, False, 0, rank, world)]
    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_training_gives_every_rank_as_many_and_nothing_twice(world: int) -> None:
    shards = [list(ShardedSampler(10, True, 7, rank, world)) for rank in range(world)]
    assert {len(s) for s in shards} == {10 // world}
    assert len({i for s in shards for i in s}) == 10 // world * world


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = ShardedSampler(50, True, seed, 0, 1)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 3) == order(0, 3)
    assert order(0, 3) != order(0, 4)
    assert order(0, 3) != order(1, 3)


def test_a_resume_skips_the_batches_of_its_epoch_only() -> None:
    sampler = ShardedSampler(20, True, 0, 0, 1, chunk=4)
    whole = list(sampler)
    sampler.skip = 2
    assert list(sampler) == whole[8:]
    sampler.set_epoch(1)
    assert len(list(sampler)) == 20


@pytest.mark.parametrize(("length", "world", "chunk"), [(2, 4, 1), (3, 2, 4), (1, 1, 8), (9, 2, 4)])
def test_every_rank_gets_at_least_one_whole_batch_of_any_split(length: int, world: int, chunk: int) -> None:
    samplers = [ShardedSampler(length, True, 0, rank, world, chunk) for rank in range(world)]
    shards = [list(sampler) for sampler in samplers]
    assert {len(shard) for shard in shards} == {len(samplers[0])} == {max(chunk, length // world)}
    counts = Counter(i for shard in shards for i in shard)
    assert max(counts.values()) - min(counts[i] for i in range(length)) <= 1


def test_evaluation_leaves_no_rank_without_a_batch() -> None:
    samplers = [ShardedSampler(2, False, 0, rank, 4) for rank in range(4)]
    assert [list(sampler) for sampler in samplers] == [[0], [1], [0], [1]]
    assert [len(sampler) for sampler in samplers] == [1, 1, 1, 1]


def test_two_ranks_make_the_steps_of_one_rank_with_twice_the_batch() -> None:
    one = list(ShardedSampler(21, True, 0, 0, 1, 4))
    two = [list(ShardedSampler(21, True, 0, rank, 2, 2)) for rank in range(2)]
    for step in range(5):
        part = slice(2 * step, 2 * step + 2)
        assert set(one[4 * step : 4 * step + 4]) == {*two[0][part], *two[1][part]}


class Pictures(Dataset[Draw]):
    """Gives back what it is asked for, and counts the questions of an epoch over all processes."""

    def __init__(self) -> None:
        self.asked = torch.zeros(9, dtype=torch.int64).share_memory_()

    def __getitem__(self, draw: Draw) -> Draw:
        self.asked[draw.epoch] += 1
        return draw


def running(workers: int, end: float = math.inf, skip: int = 0) -> RunningLoader:
    sampler = ShardedSampler(14, True, 5, 0, 1, chunk=4)
    sampler.skip = skip
    return RunningLoader(
        Pictures(), Batches(sampler, plain_from=2, end=end), num_workers=workers, collate_fn=list,
        persistent_workers=workers > 0, prefetch_factor=1 if workers else None,
    )  # type: ignore[arg-type]  # fmt: skip


def epoch_of(loader: RunningLoader, epoch: int) -> list[list[Draw]]:
    """As Lightning asks for it."""
    loader.batch_sampler.sampler.set_epoch(epoch)  # type: ignore[union-attr]
    return list(loader)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_come_one_after_the_other(workers: int) -> None:
    loader = running(workers, end=4)
    order = ShardedSampler(14, True, 5, 0, 1, chunk=4)
    assert len(loader) == 3
    for epoch in range(4):
        found = epoch_of(loader, epoch)
        wanted = [Draw(index, epoch, epoch < 2) for index in order.order(epoch)]
        assert found == [wanted[:4], wanted[4:8], wanted[8:12]]  # the last two fill no batch


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cut_epoch_and_a_resumed_one_leave_nothing_behind(workers: int) -> None:
    whole = [epoch_of(running(workers), epoch) for epoch in range(3)]
    resumed = running(workers, skip=2)
    assert epoch_of(resumed, 0) == whole[0][2:]
    assert epoch_of(resumed, 1) == whole[1]
    next(iter(resumed))  # one batch of epoch 1 again
    assert epoch_of(resumed, 2) == whole[2]
    assert epoch_of(resumed, 0) == whole[0]  # another fit, say


def test_the_next_epoch_is_loaded_meanwhile_and_no_other_after_the_last() -> None:
    loader = running(2, end=2)
    asked = loader.dataset.asked  # type: ignore[attr-defined]
    epoch_of(loader, 0)
    deadline = time.monotonic() + 20
    while asked[1] < 8 and time.monotonic() < deadline:  # two processes with a batch each
        time.sleep(0.01)
    assert asked.tolist()[:3] == [12, 8, 0]
    processes = loader._iterator._workers  # type: ignore[union-attr]
    epoch_of(loader, 1)
    assert loader._iterator._workers is processes  # type: ignore[union-attr]
    assert asked.tolist()[:3] == [12, 12, 0]


def test_processes_that_were_taken_away_are_started_anew() -> None:
    loader = running(2)
    first = epoch_of(loader, 0)
    _shutdown_workers_and_reset_iterator(loader)  # what Lightning does at the end of a fit
    second = epoch_of(loader, 1)
    assert second == epoch_of(running(0), 1) != first
