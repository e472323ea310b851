"""tools/benchmark.py train: a real training, timed."""

import functools
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch

from tests.training.running import digits, fit
from yolo.training.benchmark import Endless, matrix_rate, measure_training

TOOL = Path(__file__).parents[2] / "tools" / "benchmark.py"
QUICK = (
    "experiment=smoke", "trainer.fast_dev_run=false", "model.width=0.125", "preprocess.size=[64,64]", "steps=4",
    "warm_up=1", "data.counts=[8,4,4]", "data.cache_dir=cache", "output=speed.json",
)  # fmt: skip


def test_the_numbers_of_a_training(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "train", *QUICK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    speed = json.loads((tmp_path / "speed.json").read_text())
    assert speed["batch_size"] == 4
    assert speed["size"] == [64, 64]
    assert 0 < speed["with_loader"] < 1.5 * speed["loader_alone"]
    assert set(speed["parts"]) == {"forward", "loss", "backward"}
    assert 4e3 / speed["without_loader"] > 0.5 * sum(
        speed["parts"].values()
    )  # a step has these parts, and more
    assert 0 < speed["share"] < 1
    assert (speed["processes"], speed["communication"]) == (1, None)
    assert "loader included" in done.stdout


def test_two_processes_count_together_and_speak_once(tmp_path: Path) -> None:
    """Over gloo: one table, the pictures of both, and what their exchange of gradients costs."""
    done = subprocess.run(
        [sys.executable, str(TOOL), "train", *QUICK, "trainer.devices=2"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("loader included") == 1
    assert "2 x CPU, batch 2 x 4 at 64x64" in done.stdout
    speed = json.loads((tmp_path / "speed.json").read_text())
    parts = sum(speed["parts"].values())  # of one process; both at once
    assert 0.5 * parts < 8e3 / speed["without_loader"] < 20 * parts
    assert speed["communication"]["bytes"] % 4 == 0
    assert speed["communication"]["alone"] > 0
    assert 0 <= speed["communication"]["share"] < 1


def test_no_loader_process_outlives_the_measurement(tmp_path: Path) -> None:
    """At the end of Python each of them would be waited for, five seconds long."""
    module, trainer = fit(tmp_path / "run", tmp_path / "scenes", epochs=1)
    data = trainer.datamodule  # type: ignore[attr-defined]
    data.workers = 2

    def make_trainer(callbacks: list[pl.Callback]) -> pl.Trainer:
        return pl.Trainer(
            max_epochs=-1, callbacks=callbacks, accelerator="cpu", limit_val_batches=0, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip

    measure_training(module, data, make_trainer, steps=2, warm_up=1)
    assert not multiprocessing.active_children()


def test_a_small_set_lasts(tmp_path: Path) -> None:
    reader = digits(tmp_path, (3, 1, 1))
    records = functools.partial(reader, split="train")().records
    endless = Endless(records, 3, 4)  # type: ignore[arg-type]
    assert len(endless) == 12
    assert endless[7] == records[1]


def test_the_matrix_rate_is_that_of_a_product() -> None:
    assert 1e-4 < matrix_rate(torch.device("cpu"), 256) < 100  # a CPU core does gigaflops, not petaflops
