"""Operators: box maths, decoding, detection and suppression."""

from yolo.ops.decode import decode
from yolo.ops.detect import detect
from yolo.ops.heads import Anchors, HeadSpec
from yolo.ops.nms import nms

__all__ = ["Anchors", "HeadSpec", "decode", "detect", "nms"]
