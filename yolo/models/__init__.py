"""Networks: plain nn.Modules that turn images into raw head outputs, and those into detections."""

from yolo.models.backbones import cspdarknet53, darknet19, darknet53
from yolo.models.baseline import Baseline
from yolo.models.baselines import fasterrcnn, fcos, maskrcnn, retinanet, ssd
from yolo.models.build import build, build_classifier
from yolo.models.centernet import CenterNet, centernet
from yolo.models.classifier import Classifier
from yolo.models.detector import Detector, Network, Recipe
from yolo.models.layers import darknet_layers
from yolo.models.measure import Parts, count_floats, flops, parts
from yolo.models.quantize import FakeQuant
from yolo.models.recipe import published
from yolo.models.v1 import yolov1, yolov1_tiny
from yolo.models.v2 import yolov2, yolov2_tiny
from yolo.models.v3 import yolov3, yolov3_spp, yolov3_tiny
from yolo.models.v4 import yolov4, yolov4_tiny

__all__ = [
    "Baseline",
    "CenterNet",
    "Classifier",
    "Detector",
    "FakeQuant",
    "Network",
    "Parts",
    "Recipe",
    "build",
    "build_classifier",
    "centernet",
    "count_floats",
    "cspdarknet53",
    "darknet19",
    "darknet53",
    "darknet_layers",
    "fasterrcnn",
    "fcos",
    "flops",
    "maskrcnn",
    "parts",
    "published",
    "retinanet",
    "ssd",
    "yolov1",
    "yolov1_tiny",
    "yolov2",
    "yolov2_tiny",
    "yolov3",
    "yolov3_spp",
    "yolov3_tiny",
    "yolov4",
    "yolov4_tiny",
]
