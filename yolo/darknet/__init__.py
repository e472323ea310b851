"""Darknet .cfg and .weights files: in, out, and networks built from any of them."""

from yolo.darknet.cfg import Cfg, parse_cfg, read_cfg
from yolo.darknet.network import CfgClassifier, CfgDetector, build_cfg, build_network
from yolo.darknet.plan import Plan, plan
from yolo.darknet.weights import Header, load_weights, native_slots, read_header, save_weights

__all__ = [
    "Cfg",
    "CfgClassifier",
    "CfgDetector",
    "Header",
    "Plan",
    "build_cfg",
    "build_network",
    "load_weights",
    "native_slots",
    "parse_cfg",
    "plan",
    "read_cfg",
    "read_header",
    "save_weights",
]
