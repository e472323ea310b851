"""Two real processes over gloo: the same steps, the same score, one checkpoint, and nobody waits for ever."""

import functools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch.distributed as dist
from torch import nn

from tests.helpers.ranks import ranks
from tests.training.running import contents, digits, fit
from yolo.checkpoint import load_model
from yolo.data import Annotated
from yolo.evaluate import evaluate
from yolo.training import MultiScale
from yolo.training.communication import exchanges_at_the_end
from yolo.training.distributed import prepare, share_buffers, taken
from yolo.training.interrupt import StopRequest
from yolo.types import Truth


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


class Record(pl.Callback):
    """The loss, the size and the pictures' objects of every batch of this rank."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.sizes: list[int] = []

    def on_train_batch_start(self, trainer: pl.Trainer, module, batch, batch_idx: int) -> None:
        if not self.losses:
            module.detector.register_forward_pre_hook(lambda _, given: self.sizes.append(given[0].shape[-1]))

    def on_train_batch_end(self, trainer: pl.Trainer, module, outputs, batch, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]))
        self.sizes = self.sizes[: len(self.losses)]  # not those of the validation


def run(folder: Path, scenes: Path, **options) -> dict:
    record = Record()
    _, trainer = fit(folder, scenes, extra=(record,), **options)
    return {
        "losses": record.losses,
        "sizes": record.sizes,
        "map50": float(trainer.callback_metrics["val/map50"]),
        "steps": trainer.global_step,
    }


def _rank(rank: int, folder: Path, scenes: Path, options: dict) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    found = run(
        folder, scenes, trainer={"devices": 2, "strategy": "ddp", **options.pop("trainer", {})}, **options
    )
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


def two(folder: Path, scenes: Path, **options) -> list[dict]:
    folder.mkdir(exist_ok=True)
    ranks(_rank, folder, scenes, options)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_the_same_effective_batch_gives_the_same_curve_and_the_same_score(
    tmp_path: Path, scenes: Path
) -> None:
    """Two processes with 4 pictures against one with 8: the steps see the same pictures at the same sizes.

    What differs: batch norm takes its statistics of 4 pictures instead of 8, and the loss is a mean over the objects
    of a process. 10 % of the loss, averaged over an epoch of three steps, holds that; the steps after an update
    by other pictures would be off by far more.
    """
    same = {"epochs": 3, "counts": (24, 7, 1), "multiscale": MultiScale(every=1, low=0.67, high=1.34)}
    one = run(tmp_path / "one", scenes, batch_size=8, **same)
    both = two(tmp_path / "two", scenes, batch_size=4, **same)
    assert [found["steps"] for found in both] == [one["steps"]] * 2 == [9, 9]
    assert both[0]["sizes"] == both[1]["sizes"] == one["sizes"]
    assert len(set(one["sizes"])) > 1
    curve = [sum(pair) / 2 for pair in zip(both[0]["losses"], both[1]["losses"], strict=True)]
    for epoch in range(3):
        part = slice(3 * epoch, 3 * epoch + 3)
        assert sum(curve[part]) == pytest.approx(sum(one["losses"][part]), rel=0.1)
    assert both[0]["map50"] == both[1]["map50"]

    # scored again by one process: 7 pictures on two ranks are an uneven last batch
    last = tmp_path / "two" / "last.ckpt"
    scored = {
        "score_threshold": 0.005,
        "nms": 0.45,
        "kept": 300,
        "batch_size": 4,
        "workers": 0,
        "device": "cpu",
    }
    report, _, _ = evaluate(load_model(last), digits(scenes, (24, 7, 1))("val"), **scored)
    assert report["map50"] == pytest.approx(both[0]["map50"], abs=1e-12)
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == [
        "best.ckpt",
        "last.ckpt",
        "rank0.json",
        "rank1.json",
    ]
    assert contents(last)["position"] == {"batch": 4, "world": 2, "accumulate": 1}


def bare(reader: functools.partial, split: str) -> Annotated:
    """A split without its objects."""
    found = reader(split=split)
    nothing = Truth(*(values[:0] for values in vars(found.records[0].truth).values()))
    return replace(found, records=[replace(record, truth=nothing) for record in found.records])


def test_ranks_without_objects_and_with_fewer_pictures_than_ranks(tmp_path: Path, scenes: Path) -> None:
    """One validation picture for two ranks, 3 training pictures without any object for two batches of 2."""
    found = two(
        tmp_path,
        scenes,
        reader=functools.partial(bare, digits(scenes, (3, 1, 1))),
        batch_size=2,
        epochs=1,
        multiscale=None,
    )
    assert [one["steps"] for one in found] == [1, 1]
    assert found[0]["map50"] == found[1]["map50"] == 0.0


def test_buffers_are_those_of_rank_0() -> None:
    ranks(_share)


def _share(rank: int) -> None:
    module = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(2))
    for buffer in module.buffers():
        buffer.fill_(rank + 1)
    share_buffers(module)
    assert [b.unique().tolist() for b in module.buffers() if b.is_floating_point()] == [[1.0]] * 4


@pytest.mark.parametrize(("hosts", "megabytes"), [(1, 100), (2, 25)])
def test_gradients_of_one_host_travel_in_large_buckets(hosts: int, megabytes: int) -> None:
    trainer = pl.Trainer(accelerator="cpu", devices=2, num_nodes=hosts, strategy="ddp", logger=False)
    prepare(trainer)
    assert trainer.strategy._ddp_kwargs == {"broadcast_buffers": False, "bucket_cap_mb": megabytes}


@pytest.mark.parametrize(
    ("reason", "options", "expected"),
    [
        ("one process", {}, True),
        ("one host", {"strategy": "ddp", "devices": 2}, True),
        ("two hosts", {"strategy": "ddp", "devices": 2, "num_nodes": 2}, False),
        ("shared statistics", {"strategy": "ddp", "devices": 2}, False),
    ],
)
def test_processes_that_talk_only_when_all_gradients_are_there(
    reason: str, options: dict, expected: bool
) -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, **options)
    norm = (nn.SyncBatchNorm if reason == "shared statistics" else nn.BatchNorm2d)(3)
    module = pl.LightningModule()
    module.norm = norm
    trainer.strategy.connect(module)
    assert exchanges_at_the_end(trainer) is expected


def test_ranks_agree_on_the_step_at_which_they_stop() -> None:
    ranks(_agree)


def _agree(rank: int) -> None:
    request = StopRequest()
    request._group = dist.new_group(backend="gloo")
    stopped = None
    for step in range(6):
        if (rank, step) == (1, 2):
            request._note(15, None)
        if request.agreed() and stopped is None:
            stopped = step
    assert stopped == 3
    assert request.agree_now() == 15


def test_jobs_take_different_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    with taken(["a", "b"]) as first:
        with taken(["a", "b"]) as second, taken(["a", "b"], otherwise=5) as third:
            assert (first, second, third) == (0, 1, 1)
        with taken(["a", "b"]) as again:
            assert again == 1
