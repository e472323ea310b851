"""How a picture becomes network input: one value that training, validation, export and runtimes share."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, get_args

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from yolo.data.image import Rounding
from yolo.types import Placement

Resize = Literal["letterbox", "stretch", "cover"]
Interpolation = Literal["linear", "darknet"]
Canvas = NDArray[np.uint8] | NDArray[np.float32]
Pixels = TypeVar("Pixels", NDArray[np.uint8], NDArray[np.float32])
Boxes = TypeVar("Boxes", Tensor, NDArray[np.float32], NDArray[np.float64])


@dataclass(frozen=True)
class Preprocess:
    """Resize a picture to the network's canvas.

    Args:
        size: Height and width of the canvas, pixels.
        resize: ``letterbox`` keeps the aspect and pads to both sides (sizes in integers as Darknet's
            ``letterbox_image`` computes them); ``stretch`` fills the canvas; ``cover`` keeps the aspect, fills
            the canvas and cuts what stands over on both sides (classifiers: Darknet's ``resize_min``).
        pad_value: Grey of the padding, 0 to 255; Darknet's is one half.
        interpolation: ``linear`` is OpenCV's ``INTER_LINEAR``, in bytes. ``darknet``, for weights trained there:
            what is scored or predicted with a PyTorch network gets exactly the numbers that Darknet computes,
            from JPEG files decoded with its arithmetic (:attr:`rounding`) by bilinear resizing with the corner
            pixels aligned (``image.c:resize_image``) that is not rounded to bytes. Training, which varies the
            pixels anyway, and exported files, which are fed bytes, get the same resizing, rounded.
    """

    size: tuple[int, int] = (416, 416)
    resize: Resize = "letterbox"
    pad_value: int = 128
    interpolation: Interpolation = "linear"

    def __post_init__(self) -> None:
        size = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
        if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
            raise ValueError(f"size must be height and width in pixels, got {self.size}")
        object.__setattr__(self, "size", size)
        if self.resize not in get_args(Resize):
            raise ValueError(f"resize must be one of {get_args(Resize)}, got {self.resize!r}")
        if self.interpolation not in get_args(Interpolation):
            raise ValueError(
                f"interpolation must be one of {get_args(Interpolation)}, got {self.interpolation!r}"
            )
        if not 0 <= self.pad_value <= 255:
            raise ValueError(f"pad_value must be 0 to 255, got {self.pad_value}")

    @property
    def in_floats(self) -> bool:
        """Whether a canvas has numbers that are no bytes."""
        return self.interpolation == "darknet"

    @property
    def rounding(self) -> Rounding:
        """Whose arithmetic JPEG files are to be decoded with."""
        return "stb" if self.interpolation == "darknet" else "libjpeg"

    def __call__(self, image: NDArray[np.uint8]) -> tuple[Canvas, Placement]:
        """``[H, W, 3]`` RGB to the canvas, uint8 or (``in_floats``) float32, 0 to 1; and how to get back."""
        if not self.in_floats:
            return self.in_bytes(image)
        height, width = image.shape[:2]
        inner = resize_aligned(image.astype(np.float32) / np.float32(255), *self.inner_size(height, width))
        return self.pad(inner), self.placement(height, width)

    def in_bytes(self, image: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Placement]:
        """The same, always uint8."""
        height, width = image.shape[:2]
        return self.pad(self.shrink_to(image, height, width)), self.placement(height, width)

    def inner_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that a picture has on the canvas, without the padding."""
        rows, cols = self.size
        if self.resize == "stretch":
            return rows, cols
        wide = cols * height < rows * width  # Darknet compares the ratios as floats
        if self.resize == "cover":
            return (
                (rows, max(cols, width * rows // height))
                if wide
                else (max(rows, height * cols // width), cols)
            )
        if wide:  # as wide as the canvas
            return max(1, height * cols // width), cols
        return rows, max(1, width * rows // height)

    def placement(self, height: int, width: int) -> Placement:
        """Where a picture of that size goes."""
        rows, cols = self.inner_size(height, width)
        pad_y, pad_x = _half(self.size[0] - rows), _half(self.size[1] - cols)
        return Placement(cols / width, rows / height, pad_x, pad_y, width, height)

    def shrink_to(self, image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
        """Resize to the size that a picture of ``height`` and ``width`` has on the canvas, in bytes."""
        return self.resized(image, *self.inner_size(height, width))

    def resized(self, image: NDArray[np.uint8], rows: int, cols: int) -> NDArray[np.uint8]:
        """Resize as ``interpolation`` says, in bytes."""
        if image.shape[:2] == (rows, cols):
            return image
        if self.interpolation == "linear":
            return cv2.resize(image, (cols, rows), interpolation=cv2.INTER_LINEAR)
        return np.rint(resize_aligned(image.astype(np.float32), rows, cols)).astype(np.uint8)

    def pad(self, inner: Pixels) -> Pixels:
        """Centre a picture on the canvas; the odd pixel goes to the right and to the bottom.

        Where it is larger than the canvas the same is cut off, the odd pixel at the right and at the bottom.
        Between 0 and 1 the grey of 128 is one half, as in Darknet.
        """
        rows, cols = inner.shape[:2]
        if rows > self.size[0] or cols > self.size[1]:
            top, left = (rows - self.size[0]) // 2, (cols - self.size[1]) // 2
            return inner[top : top + self.size[0], left : left + self.size[1]]
        below, beside = self.size[0] - rows, self.size[1] - cols
        if not below and not beside:
            return inner
        top, left = below // 2, beside // 2
        grey = (
            self.pad_value
            if inner.dtype == np.uint8
            else self.pad_value / (256 if self.pad_value == 128 else 255)
        )
        value = (grey,) * 3
        return cv2.copyMakeBorder(
            inner, top, below - top, left, beside - left, cv2.BORDER_CONSTANT, value=value
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {**asdict(self), "size": list(self.size)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preprocess":
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError: A key is unknown.
        """
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise ValueError(
                f"unknown preprocess options {unknown}, known are {sorted(cls.__dataclass_fields__)}"
            )
        return cls(**{**values, "size": tuple(values["size"])} if "size" in values else values)


def _half(difference: int) -> int:
    """Rounded towards zero: padding is positive, what is cut off negative."""
    return int(difference / 2)


def place(boxes: Boxes, placement: Placement) -> Boxes:
    """Take ``[..., 4]`` boxes from pixels of the picture to pixels of the canvas."""
    scale, pad = _vectors(boxes, placement)
    return boxes * scale + pad


def undo(boxes: Boxes, placement: Placement) -> Boxes:
    """Take ``[..., 4]`` boxes from pixels of the canvas to pixels of the picture; not clipped to it."""
    scale, pad = _vectors(boxes, placement)
    return (boxes - pad) / scale


def _vectors(boxes: Boxes, placement: Placement) -> tuple[Boxes, Boxes]:
    scale = (placement.scale_x, placement.scale_y) * 2
    pad = (float(placement.pad_x), float(placement.pad_y)) * 2
    if isinstance(boxes, Tensor):
        return boxes.new_tensor(scale), boxes.new_tensor(pad)
    return np.asarray(scale, boxes.dtype), np.asarray(pad, boxes.dtype)


def resize_aligned(image: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Bilinear with the corner pixels aligned, columns first, exactly as Darknet (``image.c:resize_image``).

    So is its slip: the last row gets the share of one row alone. Where float32 puts it a hair above the last row
    of the picture (in one height of twenty), that share is nearly nothing and the row comes out black.

    Args:
        image: ``[H, W, C]`` float32.
    """
    wide = _interpolate(image, width, axis=1)
    return _interpolate(wide, height, axis=0)


def _interpolate(image: NDArray[np.float32], count: int, axis: int) -> NDArray[np.float32]:
    have = image.shape[axis]
    if have == count:
        return image
    step = np.float32(have - 1) / np.float32(max(count - 1, 1))
    at = np.arange(count, dtype=np.float32) * step
    low = np.minimum(at.astype(np.int64), have - 1)
    after = (at - low).astype(np.float32)
    before = 1 - after
    if axis == 1:
        low[-1], before[-1] = have - 1, 1.0
    after[-1] = 0.0
    high = np.minimum(low + 1, have - 1)
    shape = [1, 1, 1]
    shape[axis] = count
    return before.reshape(shape) * image.take(low, axis) + after.reshape(shape) * image.take(high, axis)
