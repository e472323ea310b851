"""From files to batches."""

from yolo.data.augment import Augment
from yolo.data.batch import Item, collate, coloured, to_bytes, to_float
from yolo.data.dataset import DetectionDataset, Draw
from yolo.data.download import read_published
from yolo.data.formats import (
    Annotated,
    Problem,
    read_coco,
    read_darknet,
    read_digits,
    read_imagefolder,
    read_voc,
    read_yolo,
)
from yolo.data.geometry import Sample
from yolo.data.image import check_image, decode_image, image_size, info_of, load_image
from yolo.data.preprocess import Preprocess, place, undo
from yolo.data.store import ImageStore

__all__ = [
    "Annotated",
    "Augment",
    "DetectionDataset",
    "Draw",
    "ImageStore",
    "Item",
    "Preprocess",
    "Problem",
    "Sample",
    "check_image",
    "collate",
    "coloured",
    "decode_image",
    "image_size",
    "info_of",
    "load_image",
    "place",
    "read_coco",
    "read_darknet",
    "read_digits",
    "read_imagefolder",
    "read_published",
    "read_voc",
    "read_yolo",
    "to_bytes",
    "to_float",
    "undo",
]
