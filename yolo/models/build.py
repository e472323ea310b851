"""A network from the recipe in a checkpoint."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from yolo.models.backbones import cspdarknet53, darknet19, darknet53
from yolo.models.baselines import fasterrcnn, fcos, maskrcnn, retinanet, ssd
from yolo.models.centernet import centernet
from yolo.models.classifier import Classifier
from yolo.models.detector import Detector, Network
from yolo.models.recipe import LOCAL
from yolo.models.v1 import yolov1, yolov1_tiny
from yolo.models.v2 import yolov2, yolov2_tiny
from yolo.models.v3 import yolov3, yolov3_spp, yolov3_tiny
from yolo.models.v4 import yolov4, yolov4_tiny

Built = TypeVar("Built", bound=Network | Classifier)

DETECTORS: dict[str, Callable[..., Detector]] = {
    function.__name__: function
    for function in (
        yolov1,
        yolov1_tiny,
        yolov2,
        yolov2_tiny,
        yolov3,
        yolov3_spp,
        yolov3_tiny,
        yolov4,
        yolov4_tiny,
    )
}

BASELINES: dict[str, Callable[..., Network]] = {  # of other kinds, to compare with
    function.__name__: function for function in (centernet, fasterrcnn, fcos, maskrcnn, retinanet, ssd)
}

CLASSIFIERS: dict[str, Callable[..., Classifier]] = {
    function.__name__: function for function in (darknet19, darknet53, cspdarknet53)
}


def build(name: str, arguments: dict[str, Any]) -> Network:
    """The network of ``Recipe(name, arguments)``: only the published functions can be called this way."""
    return _call({**DETECTORS, **BASELINES}, name, arguments)


def build_classifier(name: str, arguments: dict[str, Any]) -> Classifier:
    """The classifier of ``Recipe(name, arguments)``, likewise."""
    return _call(CLASSIFIERS, name, arguments)


def _call(known: Mapping[str, Callable[..., Built]], name: str, arguments: dict[str, Any]) -> Built:
    if name not in known:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(known)}")
    options = [key for key in inspect.signature(known[name]).parameters if key not in LOCAL]
    for key in arguments:
        if key not in options:
            raise ValueError(f"{name} has no option {key!r}; it has {', '.join(options)}")
    return known[name](**arguments)
