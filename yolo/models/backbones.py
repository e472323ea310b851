"""The backbones with a classifier's end, as published for ImageNet."""

from yolo.models.classifier import Classifier
from yolo.models.cspdarknet import CspDarknet53
from yolo.models.darknet import Darknet19, Darknet53
from yolo.models.recipe import published


@published
def darknet19(num_classes: int = 1000, width: float = 1.0) -> Classifier:
    """``darknet19.cfg`` and ``darknet19_448.cfg``: the backbone of :func:`yolo.models.yolov2`."""
    backbone = Darknet19(width)
    return Classifier(backbone, backbone.out_channels[-1], num_classes, pool="after")


@published
def darknet53(num_classes: int = 1000, width: float = 1.0) -> Classifier:
    """``darknet53.cfg``: the backbone of :func:`yolo.models.yolov3`."""
    backbone = Darknet53(width)
    return Classifier(backbone, backbone.out_channels[-1], num_classes)


@published
def cspdarknet53(num_classes: int = 1000, width: float = 1.0) -> Classifier:
    """``csdarknet53-omega.cfg``: the backbone of :func:`yolo.models.yolov4`."""
    backbone = CspDarknet53(width)
    return Classifier(backbone, backbone.out_channels[-1], num_classes)
