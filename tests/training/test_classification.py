"""Two-step training: a classifier on real digits, small and then larger, then a detector on its backbone."""

import functools
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits

from yolo.checkpoint import ClassifierModel, load_any
from yolo.classify import Namer
from yolo.data import Augment, Preprocess, load_image, read_imagefolder
from yolo.models import darknet19, yolov2
from yolo.training import Checkpoints, ClassificationModule, DetectionData, cosine, transfer

TRAIN = Path(__file__).parents[2] / "tools" / "train.py"
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def write_digits(root: Path, count: int) -> None:
    """Handwritten digits of scikit-learn, every fifth for validation."""
    digits = load_digits()
    for index, (image, label) in enumerate(zip(digits.images[:count], digits.target[:count], strict=True)):
        folder = root / ("val" if index % 5 == 0 else "train") / NAMES[label]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = cv2.resize((image * 15.9).astype(np.uint8), (32, 32), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{index}.png"), pixels)


def fit(root: Path, folder: Path, epochs: int) -> pl.Trainer:
    pl.seed_everything(0, verbose=False)
    read = functools.partial(read_imagefolder, root)
    data = DetectionData(
        functools.partial(read, "train"), functools.partial(read, "val"), Preprocess((96, 96), "cover"),
        Augment(scale=0.1, translate=0.05, min_visible=0.0), batch_size=16, workers=0,
    )  # fmt: skip
    classes = data.annotated("train").classes
    model = ClassifierModel(darknet19(len(classes), width=0.125), classes, data.preprocess)
    module = ClassificationModule(
        model, functools.partial(torch.optim.AdamW, lr=3e-3), functools.partial(cosine, warmup_steps=5),
        first_size=(64, 64), fine_epochs=1,
    )  # fmt: skip
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 0.1  # a run of 180 steps is too short for Darknet's 0.01
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
        callbacks=[Checkpoints(str(folder), "val/top1")], enable_model_summary=False,
        num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return trainer


def test_digits_are_told_apart_and_the_backbone_is_lent(tmp_path: Path) -> None:
    write_digits(tmp_path / "set", 600)
    trainer = fit(tmp_path / "set", tmp_path / "run", epochs=6)
    top1 = float(trainer.callback_metrics["val/top1"])
    assert top1 > 0.8
    assert float(trainer.callback_metrics["val/top5"]) >= top1
    last = load_any(tmp_path / "run" / "last.ckpt")
    assert isinstance(last, ClassifierModel)
    assert last.preprocess == Preprocess((96, 96), "cover")  # the size of the last epochs
    assert last.classes == sorted(NAMES)

    namer = Namer(last, top=2, device="cpu")
    records = read_imagefolder(tmp_path / "set", "val").records
    named = namer([load_image(record.path) for record in records])
    right = [
        names[0][0] == Path(record.path).parent.name for names, record in zip(named, records, strict=True)
    ]
    assert np.mean(right) == pytest.approx(top1, abs=0.02)
    assert all(names[0][1] >= names[1][1] for names in named)

    detector = yolov2(num_classes=10, width=0.125)
    rows, _ = transfer(last.classifier, detector)
    ours, theirs = detector.backbone.state_dict(), last.classifier.backbone.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert sum(row.skipped for row in rows if row.part.startswith("backbone")) == 0


def test_sizes_follow_the_epochs() -> None:
    model = ClassifierModel(darknet19(2, width=0.05), ["a", "b"], Preprocess((64, 96), "cover"))
    sgd, schedule = functools.partial(torch.optim.SGD, lr=0.1), functools.partial(cosine)
    module = ClassificationModule(model, sgd, schedule, first_size=(32, 64), fine_epochs=2)
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False)
    module.trainer = trainer
    sizes = []
    for epoch in range(5):
        trainer.fit_loop.epoch_progress.current.completed = epoch
        sizes.append(module.size)
    assert sizes == [(32, 64)] * 3 + [(64, 96)] * 2
    with pytest.raises(ValueError, match="0 <= label_smoothing < 1"):
        ClassificationModule(model, sgd, schedule, label_smoothing=1.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_steps_from_the_command_line(tmp_path: Path) -> None:
    write_digits(tmp_path / "set", 200)

    def train(*options: str) -> str:
        common = ["data.workers=0", "trainer.accelerator=cpu", "trainer.max_epochs=2", "model.width=0.125"]
        done = subprocess.run(
            [sys.executable, str(TRAIN), *options, *common],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    said = train(
        "task=classify", "data.root=set", "name=digits", "preprocess.size=[64,64]", "classifier.first_size=[32,32]",
        "classifier.fine_epochs=1",
    )  # fmt: skip
    assert "top1 0." in said
    best = "runs/train/digits/best.ckpt"
    said = train(
        "model=yolov2", "data=digits", f"weights={best}", "name=two", "preprocess.size=[96,96]", "multiscale=null",
        "data.batch_size=2", "+trainer.limit_train_batches=2", "+trainer.limit_val_batches=1",
    )  # fmt: skip
    assert "backbone" in said
    val = [sys.executable, str(TRAIN.with_name("val.py")), f"weights={best}"]
    done = subprocess.run(val, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a classifier, not a detector" in done.stderr
