"""One small real training run, in this process or in one of its own."""

import argparse
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch

from yolo.checkpoint import Model
from yolo.data import Augment, Preprocess, read_digits
from yolo.losses import build_loss
from yolo.metrics import DetectionMetric
from yolo.models import FakeQuant, yolov2_tiny
from yolo.training import Checkpoints, DetectionData, DetectionModule, Ema, MultiScale, cosine

SIZE = (96, 96)
SCALES = MultiScale(every=2, low=0.67, high=1.34)
SCHEDULE = functools.partial(cosine, warmup_steps=2)


class Stop(pl.Callback):
    """Pulls the plug after some batches of an epoch, as Ctrl-C would, or with a signal."""

    def __init__(self, epoch: int, batch: int, number: int | None = None, hook: str = "train") -> None:
        self.epoch, self.batch, self.number, self.hook = epoch, batch, number, hook

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *found: object) -> None:
        if self.hook == "train":
            self._pull(trainer, found[-1])

    def on_validation_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: object, batch_idx: int, *_: object
    ) -> None:
        if self.hook == "validation":
            self._pull(trainer, batch_idx)

    def _pull(self, trainer: pl.Trainer, batch: object) -> None:
        if (trainer.current_epoch, batch) == (self.epoch, self.batch):
            if self.number is None:
                raise KeyboardInterrupt
            os.kill(os.getpid(), self.number)


def digits(scenes: Path, counts: tuple[int, int, int] = (24, 8, 8), **options) -> functools.partial:
    return functools.partial(
        read_digits,
        scenes,
        **{"counts": counts, "size": SIZE, "digits": (1, 3), "scale": (24, 48), **options},
    )


def fit(
    folder: Path,
    scenes: Path,
    epochs: int = 2,
    resume: Path | None = None,
    detector=None,
    seed: int = 0,
    workers: int = 0,
    extra: tuple[pl.Callback, ...] = (),
    accumulate: int = 1,
    every_seconds: float = 0.0,
    every_n_steps: int | None = None,
    batch_size: int = 8,
    counts: tuple[int, int, int] = (24, 8, 8),
    trainer: dict | None = None,
    augment: bool = True,
    multiscale: MultiScale | None = SCALES,
    settle: int = 0,
    schedule=SCHEDULE,
    lr: float = 0.01,
    fused: bool = True,
    reader: functools.partial | None = None,
    size: tuple[int, int] = SIZE,
    accelerator: str = "cpu",
    ranges: dict[str, float] | None = None,
    cuda_graphs: bool = False,
) -> tuple[DetectionModule, pl.Trainer]:
    """One small run; everything that differs between tests is an argument."""
    pl.seed_everything(seed, verbose=False)
    reader = reader or digits(scenes, counts)
    detector = detector() if detector else yolov2_tiny(num_classes=10, width=0.125)
    data = DetectionData(
        functools.partial(reader, split="train"),
        functools.partial(reader, split="val"),
        Preprocess(size=detector.fixed_size or size),
        Augment(flip=0.5, hue=0.1, scale=0.3, translate=0.1, mosaic=0.5) if augment else None,
        batch_size=batch_size,
        workers=workers,
        seed=seed,
        settle=settle,
    )
    classes = data.annotated("train").classes
    module = DetectionModule(
        Model(detector, classes, data.preprocess),
        build_loss(detector),
        DetectionMetric(classes),
        functools.partial(torch.optim.SGD, lr=lr, momentum=0.9, fused=fused),
        schedule,
        multiscale=multiscale,
        settle=settle,
        seed=seed,
        quantizer=None if ranges is None else FakeQuant(detector, ranges),
        cuda_graphs=cuda_graphs,
    )
    saving = Checkpoints(str(folder), every_seconds=every_seconds, every_n_steps=every_n_steps)
    running = pl.Trainer(
        max_epochs=epochs,
        accelerator=accelerator,
        callbacks=[saving, Ema(0.9, 0.2), *extra],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        accumulate_grad_batches=accumulate,
        **(trainer or {}),
    )
    running.fit(module, datamodule=data, ckpt_path=None if resume is None else str(resume), weights_only=True)
    return module, running


def contents(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def differences(one: object, other: object, where: str = "") -> list[str]:
    """The places where two checkpoints differ, bit for bit."""
    if type(one) is not type(other):
        return [f"{where}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [f"{where}: {one.flatten()[:3]} and {other.flatten()[:3]}"]
    if isinstance(one, list | tuple):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, dict):
        found = [f"{where}: keys {one.keys() ^ other.keys()}"] if one.keys() != other.keys() else []
        for key in one.keys() & other.keys():
            found += differences(one[key], other[key], f"{where}/{key}")
        return found
    return [] if one == other else [f"{where}: {one!r} and {other!r}"]


def process(folder: Path, scenes: Path, *options: object, **kwargs) -> subprocess.CompletedProcess[str]:
    """The same run in a process of its own, on one thread."""
    command = [sys.executable, "-m", "tests.training.running", str(folder), str(scenes), *map(str, options)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("--stop", nargs=4, default=None, metavar=("HOOK", "EPOCH", "BATCH", "SIGNAL"))
    parser.add_argument("--resume", type=Path)
    for name in ("epochs", "accumulate", "every-n-steps", "workers", "batch-size"):
        parser.add_argument(f"--{name}", type=int)
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    stop = given.pop("stop", None)
    if stop:
        hook, epoch, batch, number = stop
        given["extra"] = (Stop(int(epoch), int(batch), getattr(signal, number), hook),)
    torch.set_num_threads(1)
    fit(**given)


if __name__ == "__main__":
    main()
