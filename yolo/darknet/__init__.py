"""Darknet .cfg and .weights files: in, out, and networks built from any of them."""

from yolo.darknet.cfg import Cfg, parse_cfg, read_cfg
from yolo.darknet.classes import change_classes, with_classes
from yolo.darknet.convert import (
    class_names,
    export_network,
    find_cfg,
    from_cfg,
    import_network,
    load_darknet,
    load_into,
    slots_of,
)
from yolo.darknet.network import (
    CfgClassifier,
    CfgDetector,
    CfgNetwork,
    build_cfg,
    build_classifier,
    build_network,
    build_text,
)
from yolo.darknet.plan import Plan, plan
from yolo.darknet.template import cfg_text
from yolo.darknet.weights import Header, load_weights, native_slots, read_header, save_weights

__all__ = [
    "Cfg",
    "CfgClassifier",
    "CfgDetector",
    "CfgNetwork",
    "Header",
    "Plan",
    "build_cfg",
    "build_classifier",
    "build_network",
    "build_text",
    "cfg_text",
    "change_classes",
    "class_names",
    "export_network",
    "find_cfg",
    "from_cfg",
    "import_network",
    "load_darknet",
    "load_into",
    "load_weights",
    "native_slots",
    "parse_cfg",
    "plan",
    "read_cfg",
    "read_header",
    "save_weights",
    "slots_of",
    "with_classes",
]
