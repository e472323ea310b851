"""From a trained model to ONNX and TensorRT, and back to detections through any runtime."""

from yolo.deploy.build import Wanted
from yolo.deploy.export import Exported, Int8Options, export, ranges_of
from yolo.deploy.graph import Suppression
from yolo.deploy.loading import kind_of, load_detector, open_any, open_model
from yolo.deploy.metadata import Metadata
from yolo.deploy.parity import TOLERANCES, Tolerance
from yolo.deploy.runtime import Limits, Runtime
from yolo.deploy.tensorrt import EngineOptions, Profile

__all__ = [
    "TOLERANCES",
    "EngineOptions",
    "Exported",
    "Int8Options",
    "Limits",
    "Metadata",
    "Profile",
    "Runtime",
    "Suppression",
    "Tolerance",
    "Wanted",
    "export",
    "kind_of",
    "load_detector",
    "open_any",
    "open_model",
    "ranges_of",
]
