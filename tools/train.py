"""Train a detector: python tools/train.py model=yolov2 data=bccd (configs/train.yaml has every option).

A classifier, whose backbone a detector then starts from: python tools/train.py task=classify data.root=PATH
"""

from yolo.cli import answer, main

if __name__ == "__main__":
    answer("train", __doc__)

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import nn

from yolo.anchors import Assignment
from yolo.checkpoint import ClassifierModel, Model, load_model, read
from yolo.deploy import Int8Options, ranges_of
from yolo.deploy.pictures import load_images
from yolo.metrics import DetectionMetric
from yolo.models import FakeQuant, Network
from yolo.report.page import never_fatal
from yolo.report.run import Priors, training_report
from yolo.report.sections import Started
from yolo.training import (
    ClassificationModule,
    DetectionData,
    DetectionModule,
    FreezeBackbone,
    Recorder,
    StepSize,
    freeze,
    quiet,
    start_from,
)
from yolo.training.distributed import gpu_names, leave_group, one_launch, taken
from yolo.training.retry import fit_with_retry
from yolo.training.settings import resolved
from yolo.training.transfer import show

log = logging.getLogger("yolo.train")


CALIBRATION = 64  # pictures that say where the ranges of quantize=int8 start
LOADER = ("train", "val", "test", "batch_size", "workers", "cache", "cache_dir")


def _quantizer(
    cfg: DictConfig, model: Model, data: DetectionData, checkpoint: Path | None
) -> FakeQuant | None:
    """Fake quantisation, its ranges as in the checkpoint that training starts from or measured on it."""
    if cfg.quantize is None:
        return None
    if cfg.quantize != "int8":
        raise ValueError(f"quantize must be int8 or null, got {cfg.quantize!r}")
    start = checkpoint or cfg.weights
    if start is None:
        raise ValueError("quantize=int8 fine-tunes a trained network: give weights=...")
    ranges = load_model(start, None if checkpoint else cfg.cfg).ranges
    if not ranges:
        paths = [record.path for record in data.annotated("train").records]
        ranges = ranges_of(model, Int8Options(list(load_images(paths, CALIBRATION))))
    return FakeQuant(model.yolo("quantize=int8"), ranges)


@main("train")
def train(cfg: DictConfig) -> None:
    """Build model, data and loss, fit, and say where the results are."""
    quiet()
    folder = Path(HydraConfig.get().runtime.output_dir)
    last = folder / "last.ckpt"
    given = None if cfg.checkpoint is None else Path(cfg.checkpoint)
    checkpoint = (last if last.is_file() else None) if cfg.checkpoint == "auto" else given
    if checkpoint is not None:
        read(checkpoint)  # what is wrong with it is said in one line, before anything is built
    step = StepSize(cfg.data.batch_size, cfg.nominal_batch, checkpoint)
    with one_launch(), _devices(cfg) as devices:
        fit_with_retry(partial(_fit, cfg, folder, devices, step), step, checkpoint, last)


@contextmanager
def _devices(cfg: DictConfig) -> Iterator[Any]:
    """``trainer.devices``; the jobs of a sweep that want one GPU each get different ones."""
    gpus = gpu_names() if cfg.trainer.accelerator in ("auto", "gpu", "cuda") else []
    if HydraConfig.get().mode is RunMode.MULTIRUN and cfg.trainer.devices == 1 and len(gpus) > 1:
        with taken(gpus, HydraConfig.get().job.num) as index:
            yield [index]
    else:
        yield cfg.trainer.devices


def build(node: Any) -> Any:
    """What a node of the config describes, lists and mappings plain."""
    return instantiate(node, _convert_="all")


def detection(
    cfg: DictConfig, data: DetectionData, checkpoint: Path | None
) -> tuple[DetectionModule, list[nn.Module]]:
    """A detector to be trained, and what of it is frozen."""
    classes = data.annotated("train").classes  # first: a wrong path is said before a network is made
    detector = build(cfg.model)
    if not isinstance(detector, Network):
        raise ValueError("the model is a classifier: train it with task=classify")
    detector.check_size(*data.preprocess.size)
    criterion = build(cfg.loss)(detector)
    model = Model(detector, classes, data.preprocess)
    frozen = _start(cfg, detector)
    module = DetectionModule(
        model, criterion, DetectionMetric(classes), build(cfg.optimizer), build(cfg.schedule), cfg.weight_decay,
        build(cfg.multiscale), cfg.settle, cfg.seed, **cfg.suppression,
        quantizer=_quantizer(cfg, model, data, checkpoint), cuda_graphs=cfg.cuda_graphs,
    )  # fmt: skip
    return module, frozen


def _classification(
    cfg: DictConfig, data: DetectionData, checkpoint: Path | None
) -> tuple[ClassificationModule, list[nn.Module]]:
    """The same for a classifier; there are as many classes as the data has."""
    classes = data.annotated("train").classes
    classifier = instantiate(cfg.model, num_classes=len(classes), _convert_="all")
    if isinstance(classifier, Network):
        raise ValueError(
            "task=classify trains classifiers (model=darknet19 or darknet53), the model is a detector"
        )
    model = ClassifierModel(classifier, classes, data.preprocess)
    frozen = _start(cfg, classifier)
    module = ClassificationModule(
        model, build(cfg.optimizer), build(cfg.schedule), cfg.weight_decay, **build(cfg.classifier)
    )
    return module, frozen


TASKS = {"detect": detection, "classify": _classification}


def _start(cfg: DictConfig, network: nn.Module) -> list[nn.Module]:
    """Fill the network from ``weights`` and freeze what ``transfer`` says."""
    if cfg.weights is None:
        return freeze(network, cfg.transfer)
    rows, frozen = start_from(cfg.weights, cfg.cfg, network, cfg.transfer)
    show(rows)
    return frozen


def make_data(cfg: DictConfig) -> DetectionData:
    """The loaders; their batch size is still to be set."""
    parts = {name: part for name, part in build(cfg.data).items() if name in LOADER}
    parts["batch_size"] = 1  # StepSize sets it
    return DetectionData(
        preprocess=build(cfg.preprocess),
        augment=build(cfg.augment),
        seed=cfg.seed,
        settle=cfg.settle,
        **parts,
    )


def trainer_settings(
    cfg: DictConfig, devices: Any, module: DetectionModule | ClassificationModule, pictures: float
) -> dict[str, Any]:
    """Arguments of Lightning's trainer, for a run of ``module`` that looks at so many ``pictures``."""
    on_gpu = bool(gpu_names()) and cfg.trainer.accelerator in ("auto", "gpu", "cuda")
    return resolved(cfg.trainer, on_gpu, len(module.sizes) == 1, pictures) | {"devices": devices}


def _fit(cfg: DictConfig, folder: Path, devices: Any, step: StepSize, checkpoint: Path | None) -> None:
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    data = make_data(cfg)
    module, frozen = TASKS[cfg.task](cfg, data, checkpoint)
    callbacks = [callback for callback in build(cfg.callbacks).values() if callback is not None] + [step]
    if frozen:
        callbacks.append(FreezeBackbone(frozen))
    epochs = cfg.trainer.max_epochs or -1
    pictures = len(data.annotated("train").records) * epochs if epochs > 0 else math.inf
    trainer = instantiate(
        trainer_settings(cfg, devices, module, pictures),
        callbacks=callbacks,
        logger=list(build(cfg.logger).values()),
        default_root_dir=str(folder),
        _convert_="all",
    )
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    leave_group()
    recorder = next((one for one in callbacks if isinstance(one, Recorder)), None)
    if recorder is not None and trainer.is_global_zero and not trainer.fast_dev_run:
        with never_fatal("report"):
            _report(cfg, folder, module, data, recorder)
    if trainer.is_global_zero:
        log.info("results in %s: best.ckpt, last.ckpt, metrics.csv", folder)


def _report(
    cfg: DictConfig, folder: Path, module: DetectionModule, data: DetectionData, recorder: Recorder
) -> None:
    """Draw what the run came to."""
    path = training_report(
        folder,
        module.model.classes,
        {split: data.annotated(split) for split in ("train", "val")},
        Started.now(OmegaConf.to_yaml(cfg), cfg.seed),
        recorder.validated,
        Priors(
            data.preprocess,
            module.detector.specs,
            Assignment.of(module.criterion),
            [height / data.preprocess.size[0] for height, _ in module.sizes],
        )
        if module.detector.specs
        else None,
    )
    log.info("report: %s", path)


if __name__ == "__main__":
    train()
