"""Which pictures which rank sees."""

from collections import Counter

import pytest

from yolo.training.datamodule import ShardedSampler


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
