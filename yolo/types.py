"""The values that travel between the layers; see README.md, "Conventions", for the shape letters.

Boxes are x1, y1, x2, y2, float32, in absolute pixels of the image or tensor that they stand with, with an
exclusive right and bottom edge (width = x2 - x1).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Targets(NamedTuple):
    """The objects of a batch, flat."""

    boxes: Tensor  # [T, 4] float32, pixels of the network input
    labels: Tensor  # [T] int64
    image: Tensor  # [T] int64, index into the batch


class Detections(NamedTuple):
    """What is left of a batch after thresholding and suppression: K is fixed, unused rows are zero."""

    boxes: Tensor  # [N, K, 4] float32, pixels of the network input, best score first
    scores: Tensor  # [N, K] float32
    labels: Tensor  # [N, K] int64
    count: Tensor  # type: ignore[assignment]  # [N] int64, rows in use; hides tuple.count


@dataclass(frozen=True)
class Truth:
    """The annotated objects of one picture, in pixels of the picture as it is shown (EXIF turn applied)."""

    boxes: NDArray[np.float32]  # [T, 4]
    labels: NDArray[np.int64]  # [T]
    crowd: NDArray[np.bool_]  # [T], COCO's iscrowd: matched freely, never a miss, never trained on
    difficult: NDArray[np.bool_]  # [T], VOC's difficult: ignored by the VOC metric
    area: NDArray[np.float32]  # [T], what COCO's size classes go by; the box area where nothing else is given


@dataclass(frozen=True)
class Record:
    """One picture of a data set as a reader found it; nothing is decoded yet."""

    image_id: str
    path: str
    truth: Truth
    coco_id: int | None = None  # the id in the COCO file that the picture came from
    size: tuple[int, int] | None = None  # height and width as shown, pixels, where the reader saw the picture


class Placement(NamedTuple):
    """How a picture was put on the network's canvas: canvas = picture * scale + pad, per axis."""

    scale_x: float
    scale_y: float
    pad_x: float
    pad_y: float
    width: int  # of the picture, pixels
    height: int


@dataclass(frozen=True)
class Found:
    """The detections of one picture, in its own pixels, best score first."""

    boxes: NDArray[np.float32]  # [K, 4]
    scores: NDArray[np.float32]  # [K]
    labels: NDArray[np.int64]  # [K]


class Meta(NamedTuple):
    """What a batch has to remember of one picture to score it in its own pixels."""

    record: Record
    placement: Placement


class Batch(NamedTuple):
    """What a training or validation step sees."""

    images: Tensor  # [N, 3, H, W] RGB, uint8 (the step turns it into 0 to 1 on the device) or float32
    targets: Targets
    meta: tuple[Meta, ...]
    colours: Tensor | None = None  # [N, 3] float32, still to be varied on the device (yolo.ops.vary_colour)
