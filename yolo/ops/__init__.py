"""Operators: boxes, decoding, detection, suppression, colour, JPEG data; for training first block, norm, pooling."""

from yolo.ops.colour import vary_colour
from yolo.ops.decode import decode
from yolo.ops.detect import detect
from yolo.ops.heads import Anchors, HeadSpec
from yolo.ops.jpeg import jpeg_scan
from yolo.ops.nms import nms
from yolo.ops.norm import batch_norm_act
from yolo.ops.pool import max_pool_2x2
from yolo.ops.stem import stem_norm_act

__all__ = [
    "Anchors",
    "HeadSpec",
    "batch_norm_act",
    "decode",
    "detect",
    "jpeg_scan",
    "max_pool_2x2",
    "nms",
    "stem_norm_act",
    "vary_colour",
]
