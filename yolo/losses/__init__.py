"""Losses: the published one of each network, and a modern one for all that have anchors."""

from yolo.losses.base import Criterion, DetectionLoss
from yolo.losses.baselines import BaselineLoss
from yolo.losses.build import build_loss
from yolo.losses.centernet import CenterNetLoss, CenterNetOptions
from yolo.losses.modern import ModernLoss, ModernOptions
from yolo.losses.v1 import GridLoss, GridOptions
from yolo.losses.v2 import RegionLoss, RegionOptions
from yolo.losses.v3 import Yolo3Options, YoloV3Loss
from yolo.losses.v4 import Yolo4Options, YoloV4Loss

__all__ = [
    "BaselineLoss",
    "CenterNetLoss",
    "CenterNetOptions",
    "Criterion",
    "DetectionLoss",
    "GridLoss",
    "GridOptions",
    "ModernLoss",
    "ModernOptions",
    "RegionLoss",
    "RegionOptions",
    "Yolo3Options",
    "Yolo4Options",
    "YoloV3Loss",
    "YoloV4Loss",
    "build_loss",
]
