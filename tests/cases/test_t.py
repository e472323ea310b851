"""Kind T of the bug reports in cases/CASES.md: training and resuming."""

import functools
import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.helpers.ranks import ranks
from tests.helpers.tool import train
from tests.training.running import Stop, contents, differences, digits, fit
from yolo.checkpoint import read, remove_leftovers, write_atomically
from yolo.data import Augment, Preprocess
from yolo.losses import build_loss
from yolo.models import yolov1_tiny, yolov2_tiny, yolov3_tiny, yolov4_tiny
from yolo.training import DetectionData, MultiScale, cosine, freeze
from yolo.types import Targets


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


class Rates(pl.Callback):
    """The learning rate of every optimiser step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("pictures", [9, 1])
def test_t01_a_last_batch_of_one_at_a_map_of_one_cell(tmp_path: Path, scenes: Path, pictures: int) -> None:
    seen = []

    class Count(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
            seen.append(("train", len(batch.images)))

        def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0) -> None:
            seen.append(("val", len(batch.images)))

    small = digits(scenes, (pictures, 9, 1), size=(32, 32), digits=(1, 1), scale=(16, 20))
    options = {"reader": small, "size": (32, 32), "multiscale": None, "augment": False}
    fit(tmp_path, scenes, epochs=1, batch_size=4, extra=(Count(),), **options)
    assert {size for kind, size in seen if kind == "train"} == {4}
    assert len([1 for kind, _ in seen if kind == "train"]) == max(pictures // 4, 1)
    assert sum(size for kind, size in seen if kind == "val") == 9


def test_t02_the_rate_goes_on_where_it_stopped(tmp_path: Path, scenes: Path) -> None:
    same = {
        "epochs": 50,
        "counts": (8, 1, 1),
        "lr": 0.01,
        "schedule": functools.partial(cosine, warmup_steps=0, final=0.1),
        "trainer": {"limit_val_batches": 0, "gradient_clip_val": 1.0},
        "size": (32, 32),
        "multiscale": None,
    }
    first, second = Rates(), Rates()
    with pytest.raises(SystemExit):
        fit(tmp_path, scenes, extra=(first, Stop(30, 0, signal.SIGINT)), **same)
    kept = contents(tmp_path / "last.ckpt")
    assert (kept["global_step"], first.seen[0], len(first.seen)) == (31, 0.01, 31)
    assert first.seen[30] == pytest.approx(0.004109, abs=1e-6)

    momenta = []

    class Look(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
            if not momenta:
                momenta.append(trainer.optimizers[0].state_dict()["state"])
                momenta[0] = {k: {n: v.clone() for n, v in s.items()} for k, s in momenta[0].items()}

    with pytest.raises(SystemExit):
        fit(
            tmp_path,
            scenes,
            resume=tmp_path / "last.ckpt",
            extra=(second, Look(), Stop(32, 0, signal.SIGINT)),
            **same,
        )
    assert second.seen[0] == pytest.approx(0.003843, abs=1e-6)
    assert differences(kept["optimizer_states"][0]["state"], momenta[0]) == []


@pytest.mark.parametrize(("stop", "step"), [(Stop(1, 4, signal.SIGINT), 10), (Stop(1, 1, signal.SIGINT), 7)])
def test_t03_no_step_is_done_twice_or_left_out(tmp_path: Path, scenes: Path, stop: Stop, step: int) -> None:
    same = {
        "epochs": 3,
        "batch_size": 2,
        "counts": (10, 1, 1),
        "trainer": {"limit_val_batches": 0},
        "size": (32, 32),
    }
    before, after = Rates(), Rates()
    with pytest.raises(SystemExit):
        fit(tmp_path, scenes, extra=(before, stop), **same)
    assert contents(tmp_path / "last.ckpt")["global_step"] == len(before.seen) == step
    _, trainer = fit(tmp_path, scenes, resume=tmp_path / "last.ckpt", extra=(after,), **same)
    assert (len(before.seen) + len(after.seen), trainer.global_step, trainer.current_epoch) == (15, 15, 3)


def test_t05_seeds_workers_and_epochs_see_other_augmentations(scenes: Path) -> None:
    reader = digits(scenes)

    def hashes(seed: int, workers: int, epoch: int = 0) -> list[str]:
        data = DetectionData(
            functools.partial(reader, split="train"),
            functools.partial(reader, split="val"),
            Preprocess(size=(64, 64)),
            Augment(flip=0.5, hue=0.1, scale=0.3, translate=0.1, mosaic=0.5),
            batch_size=4,
            workers=workers,
            seed=seed,
        )
        loader = data.train_dataloader()
        loader.batch_sampler.sampler.set_epoch(epoch)  # type: ignore[union-attr]
        return [hashlib.sha256(batch.images.numpy().tobytes()).hexdigest() for batch in loader]

    first = hashes(0, 0)
    assert len(set(first)) == len(first)  # whichever worker makes a batch
    assert first == hashes(0, 0) == hashes(0, 2)
    assert not {*first} & {*hashes(1, 0)}
    assert hashes(1, 2) == hashes(1, 0)
    assert not {*first} & {*hashes(0, 0, epoch=1)}


MODELS = {"v1": yolov1_tiny, "v2": yolov2_tiny, "v3": yolov3_tiny, "v4": yolov4_tiny}


def _one_step(rank: int, name: str, variant: str, frozen: bool) -> None:
    """One DDP step, in which rank 0 has no box; without find_unused_parameters a hole in the graph raises or hangs."""
    torch.manual_seed(0)
    options = {"image_size": 64} if name == "v1" else {}
    detector = MODELS[name](num_classes=3, width=0.0625, **options)
    if frozen:
        freeze(detector, "freeze_backbone")
    criterion = build_loss(detector, variant)
    model = DistributedDataParallel(detector, broadcast_buffers=False)
    boxes = torch.tensor([[8.0, 8.0, 40.0, 50.0]])[:rank]
    targets = Targets(boxes, torch.zeros(rank, dtype=torch.long), torch.zeros(rank, dtype=torch.long))
    for _ in range(2):  # DDP notices in the second step that the first has left something out
        losses = criterion(model(torch.rand(2, 3, 64, 64)), targets, (64, 64))
        torch.stack(list(losses.values())).sum().backward()
    for path, parameter in detector.named_parameters():
        assert (parameter.grad is None) == (not parameter.requires_grad), path
        if parameter.requires_grad:
            other = parameter.grad.clone()
            dist.broadcast(other, 0)
            assert torch.equal(other, parameter.grad), path


def test_t06_a_rank_without_boxes() -> None:
    ranks(_all_steps)


def _all_steps(rank: int) -> None:
    for name in MODELS:
        for variant in ("darknet", "modern"):
            for frozen in (False, True):
                _one_step(rank, name, variant, frozen)


def test_t07_sizes_are_multiples_of_the_stride() -> None:
    detector = yolov3_tiny(num_classes=1, width=0.0625)
    drawn = MultiScale(low=0.9, high=1.1).sizes((288, 1024), detector.stride)
    assert (288, 928) in drawn
    assert all(side % detector.stride == 0 for size in drawn for side in size)
    with pytest.raises(ValueError, match="got 600x600: 608x608 would do"):
        detector.check_size(600, 600)


SAVER = """
import os, sys, threading, time
from pathlib import Path
import torch
from yolo.checkpoint import write_atomically
def kill():
    while not list(Path(sys.argv[1]).parent.glob(".*.part*")): pass
    os.kill(os.getpid(), 9)
threading.Thread(target=kill).start()
state = {str(i): torch.zeros(200_000) for i in range(200)}
write_atomically({"yolo": {"format": 1}, "state_dict": state}, Path(sys.argv[1]))
"""


def good(path: Path) -> Path:
    write_atomically({"yolo": {"format": 1}, "state_dict": {"a": torch.ones(3)}}, path)
    return path


def test_t08_kill_9_in_a_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = good(tmp_path / "last.ckpt")
    ended = subprocess.run([sys.executable, "-c", SAVER, str(path)], timeout=200)
    assert ended.returncode == -signal.SIGKILL
    assert read(path)["state_dict"]["a"].tolist() == [1, 1, 1]
    assert len(list(tmp_path.iterdir())) == 2
    remove_leftovers(tmp_path)  # what the next run in this folder does
    assert list(tmp_path.iterdir()) == [path]


FULL = """
import resource, signal, sys
from pathlib import Path
import torch
from yolo.checkpoint import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
state = {str(i): torch.zeros(200_000) for i in range(9)}
write_atomically({"yolo": {"format": 1}, "state_dict": state}, Path(sys.argv[1]))
"""


def test_t08_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path) -> None:
    path = good(tmp_path / "last.ckpt")
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], timeout=200, capture_output=True, text=True
    )
    assert ended.returncode == 1
    said = ended.stderr.strip().splitlines()[-1]
    assert said.startswith(f"OSError: {path}: cannot be written (File too large); ")
    assert said.endswith("MB are free there")
    assert read(path)["state_dict"]["a"].tolist() == [1, 1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_t08_a_full_disk_does_not_end_the_run_before_its_end(
    tmp_path: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = good(tmp_path / "last.ckpt").read_bytes()

    def full(content: object, file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    steps = Rates()
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\); .* MB are free there"):
        fit(
            tmp_path,
            scenes,
            epochs=3,
            extra=(steps,),
            trainer={"limit_val_batches": 0, "gradient_clip_val": 1.0},
            multiscale=None,
        )
    assert len(steps.seen) == 9
    assert "training goes on" in caplog.text
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_t10_a_sweep_of_runs_on_two_devices(tmp_path: Path) -> None:
    train("-m", "name=sweep", "trainer.devices=2", "optimizer.lr=0.1,0.01", cwd=tmp_path)
    jobs = sorted(path.parent for path in tmp_path.rglob("last.ckpt"))
    assert [str(job.relative_to(tmp_path)) for job in jobs] == ["runs/train/sweep/0", "runs/train/sweep/1"]
    assert [path.name for path in (tmp_path / "runs" / "train").iterdir()] == ["sweep"]
    assert sorted(path.name for path in (tmp_path / "runs/train/sweep").iterdir()) == [
        "0",
        "1",
        "multirun.yaml",
    ]
    rates = [
        contents(job / "last.ckpt")["optimizer_states"][0]["param_groups"][0]["initial_lr"] for job in jobs
    ]
    assert rates == [0.1, 0.01]
    assert {contents(job / "last.ckpt")["position"]["world"] for job in jobs} == {2}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_t11_resuming_a_finished_run(tmp_path: Path) -> None:
    train("name=a", cwd=tmp_path)
    said = train("name=b", "checkpoint=runs/train/a/last.ckpt", cwd=tmp_path)
    assert "nothing to do: 1 of 1 epochs done" in said
