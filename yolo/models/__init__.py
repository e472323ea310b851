"""Networks: plain nn.Modules that turn images into raw head outputs."""

from yolo.models.build import build
from yolo.models.classifier import Classifier
from yolo.models.detector import Detector, Recipe
from yolo.models.layers import darknet_layers
from yolo.models.recipe import published
from yolo.models.v2 import yolov2, yolov2_tiny
from yolo.models.v3 import yolov3, yolov3_spp, yolov3_tiny

__all__ = [
    "Classifier",
    "Detector",
    "Recipe",
    "build",
    "darknet_layers",
    "published",
    "yolov2",
    "yolov2_tiny",
    "yolov3",
    "yolov3_spp",
    "yolov3_tiny",
]
