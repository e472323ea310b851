"""Small data sets for the tests of this folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(path: Path, width: int = 100, height: int = 80, orientation: int = 1, seed: int = 0) -> Path:
    """Write a picture of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    return path


def write(path: Path, content: str | bytes) -> Path:
    """Write a file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def voc(objects: str, size: tuple[int, int] | None = (100, 80), filename: str = "a.jpg") -> str:
    """A VOC file around ``objects``."""
    stated = "" if size is None else f"<size><width>{size[0]}</width><height>{size[1]}</height></size>"
    return f"<annotation>\n<filename>{filename}</filename>\n{stated}\n{objects}\n</annotation>\n"


def voc_object(name: str, corners: Sequence[object], extra: str = "") -> str:
    """One object of a VOC file."""
    tags = "".join(
        f"<{tag}>{v}</{tag}>" for tag, v in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    )
    return f"<object><name>{name}</name>{extra}<bndbox>{tags}</bndbox></object>"


def coco(path: Path, annotations: Sequence[Mapping[str, Any]], **changes: Any) -> Path:
    """A COCO file with one picture, a.jpg of 100x80, and the categories 3 car, 7 train."""
    data: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 100, "height": 80}],
        "categories": [{"id": 7, "name": "train"}, {"id": 3, "name": "car"}],
        "annotations": [{"id": number, "image_id": 1, **row} for number, row in enumerate(annotations)],
    }
    return write(path, json.dumps({**data, **changes}))
