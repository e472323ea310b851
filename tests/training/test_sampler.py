"""Which pictures which rank sees."""

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


def test_fewer_pictures_than_ranks_still_gives_some() -> None:
    assert sum(len(list(ShardedSampler(2, True, 0, rank, 4))) for rank in range(4)) == 2
