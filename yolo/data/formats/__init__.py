"""Readers: from the files of a data set to records."""

from yolo.data.formats.annotated import Annotated, Problem
from yolo.data.formats.coco import read_coco
from yolo.data.formats.darknet import read_darknet
from yolo.data.formats.digits import read_digits
from yolo.data.formats.imagefolder import read_imagefolder
from yolo.data.formats.voc import read_voc
from yolo.data.formats.yolo import read_yolo

__all__ = [
    "Annotated",
    "Problem",
    "read_coco",
    "read_darknet",
    "read_digits",
    "read_imagefolder",
    "read_voc",
    "read_yolo",
]
