"""Lightning around the networks; the only folder that imports it."""

from yolo.training.batch_size import StepSize
from yolo.training.callbacks import Ema, FreezeBackbone, StopOnNaN
from yolo.training.checkpoints import Checkpoints
from yolo.training.classification import ClassificationModule
from yolo.training.datamodule import DetectionData
from yolo.training.module import DetectionModule
from yolo.training.multiscale import MultiScale
from yolo.training.progress import EpochLine, Progress
from yolo.training.quiet import quiet
from yolo.training.record import Recorder
from yolo.training.schedule import constant, cosine, parameter_groups, steps
from yolo.training.transfer import freeze, start_from, transfer

__all__ = [
    "Checkpoints",
    "ClassificationModule",
    "DetectionData",
    "DetectionModule",
    "Ema",
    "EpochLine",
    "FreezeBackbone",
    "MultiScale",
    "Progress",
    "Recorder",
    "StepSize",
    "StopOnNaN",
    "constant",
    "cosine",
    "freeze",
    "parameter_groups",
    "quiet",
    "start_from",
    "steps",
    "transfer",
]
