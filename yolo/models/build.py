"""A network from the recipe in a checkpoint."""

import inspect
from collections.abc import Callable
from typing import Any

from yolo.models.detector import Detector
from yolo.models.v1 import yolov1, yolov1_tiny
from yolo.models.v2 import yolov2, yolov2_tiny
from yolo.models.v3 import yolov3, yolov3_spp, yolov3_tiny
from yolo.models.v4 import yolov4, yolov4_tiny

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


def build(name: str, arguments: dict[str, Any]) -> Detector:
    """The detector of ``Recipe(name, arguments)``: only the published functions can be called this way."""
    if name not in DETECTORS:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(DETECTORS)}")
    known = inspect.signature(DETECTORS[name]).parameters
    for key in arguments:
        if key not in known:
            raise ValueError(f"{name} has no option {key!r}; it has {', '.join(known)}")
    return DETECTORS[name](**arguments)
