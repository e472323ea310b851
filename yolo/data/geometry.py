"""Pictures and boxes moved together: every map here keeps the axes, so a box stays a box."""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from yolo.data.preprocess import Preprocess

Pair = tuple[float, float]  # x, y
LEAST = 1e-3  # pixels; a side that is shorter after clipping is lost to rounding when the canvas is mirrored


class Sample(NamedTuple):
    """A picture and its objects."""

    image: NDArray[np.uint8]  # [H, W, 3] RGB
    boxes: NDArray[np.float32]  # [T, 4] x1 y1 x2 y2, pixels of the image
    labels: NDArray[np.int64]  # [T]
    colour: tuple[float, float, float] | None = None  # how yolo.ops.vary_colour is still to change the image


Rect = tuple[int, int, int, int]  # x1, y1, x2, y2, whole pixels


class _Map(NamedTuple):
    """canvas = picture * scale + shift, per axis, for continuous coordinates (a pixel's centre is at .5)."""

    scale: Pair
    shift: Pair

    def __call__(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        return boxes * np.array(self.scale * 2, np.float32) + np.array(self.shift * 2, np.float32)


def single(
    sample: Sample,
    preprocess: Preprocess,
    zoom: Pair = (1.0, 1.0),
    shift: Pair = (0.0, 0.0),
    keep: Pair = (0.1, 0.0),
) -> Sample:
    """Put one picture on the canvas as ``preprocess`` does, then zoom about the middle and shift.

    Args:
        sample: At any size.
        preprocess: Of the network.
        zoom: Factors along x and y.
        shift: Parts of the canvas along x and y.
        keep: Part of its area and pixels of each side that an object must keep.
    """
    rows, cols = preprocess.size
    height, width = sample.image.shape[:2]
    place = preprocess.placement(height, width)
    if zoom == (1.0, 1.0) and shift == (0.0, 0.0):
        image = preprocess.pad(preprocess.shrink_to(sample.image, height, width))
        exact = _Map((place.scale_x, place.scale_y), (place.pad_x, place.pad_y))
        return Sample(image, *_visible(sample, exact(sample.boxes), (0, 0, cols, rows), keep))
    wanted = _Map(
        (place.scale_x * zoom[0], place.scale_y * zoom[1]),
        (
            (place.pad_x - cols / 2) * zoom[0] + cols / 2 + shift[0] * cols,
            (place.pad_y - rows / 2) * zoom[1] + rows / 2 + shift[1] * rows,
        ),
    )
    canvas = np.full((rows, cols, 3), preprocess.pad_value, np.uint8)
    return Sample(canvas, *_draw(sample, canvas, (0, 0, cols, rows), wanted, keep))


def mosaic(
    samples: Sequence[Sample],
    preprocess: Preprocess,
    centre: Pair,
    zoom: Pair = (1.0, 1.0),
    shift: Pair = (0.0, 0.0),
    keep: Pair = (0.1, 0.0),
) -> Sample:
    """Put four pictures around a point and look at the middle.

    The pictures, each at its size on the canvas, touch ``centre`` with a corner: top left, top right, bottom
    left, bottom right. They lie on a field twice as high and wide as the canvas; the canvas shows the field's
    middle, zoomed and shifted. Each tile is cut to its quarter, and so are its boxes.

    Args:
        samples: Four, at any size.
        preprocess: Of the network.
        centre: Pixels of the field, x and y.
        zoom: Factors along x and y.
        shift: Parts of the canvas along x and y.
        keep: Part of its area and pixels of each side that an object must keep.
    """
    if len(samples) != 4:
        raise ValueError(f"a mosaic takes four pictures, got {len(samples)}")
    rows, cols = preprocess.size
    middle_x = (centre[0] - cols) * zoom[0] + cols * (0.5 + shift[0])  # of the four, on the canvas
    middle_y = (centre[1] - rows) * zoom[1] + rows * (0.5 + shift[1])
    cut_x, cut_y = min(max(round(middle_x), 0), cols), min(max(round(middle_y), 0), rows)
    canvas = np.full((rows, cols, 3), preprocess.pad_value, np.uint8)
    boxes, labels = [], []
    for number, sample in enumerate(samples):
        right, below = number % 2 == 1, number >= 2
        tile = (
            cut_x if right else 0,
            cut_y if below else 0,
            cols if right else cut_x,
            rows if below else cut_y,
        )
        height, width = sample.image.shape[:2]
        inner_rows, inner_cols = preprocess.inner_size(height, width)
        wanted = _Map(
            (inner_cols / width * zoom[0], inner_rows / height * zoom[1]),
            (
                middle_x - (0 if right else inner_cols * zoom[0]),
                middle_y - (0 if below else inner_rows * zoom[1]),
            ),
        )
        drawn_boxes, drawn_labels = _draw(sample, canvas, tile, wanted, keep)
        boxes.append(drawn_boxes)
        labels.append(drawn_labels)
    return Sample(canvas, np.concatenate(boxes), np.concatenate(labels))


def flip(sample: Sample, horizontal: bool, vertical: bool) -> Sample:
    """Mirror; edges are continuous, so x becomes width - x."""
    if not (horizontal or vertical):
        return sample
    image, boxes = sample.image, sample.boxes.copy()
    height, width = image.shape[:2]
    if horizontal:
        boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    if vertical:
        boxes[:, [1, 3]] = height - boxes[:, [3, 1]]
    code = -1 if horizontal and vertical else int(horizontal)
    return Sample(cv2.flip(image, code), boxes, sample.labels)


def merge(one: Sample, other: Sample, share: float) -> Sample:
    """Blend two canvases of one size: ``share`` of the first, the rest of the other, the objects of both."""
    image = cv2.addWeighted(one.image, share, other.image, 1 - share, 0)
    return Sample(image, np.concatenate([one.boxes, other.boxes]), np.concatenate([one.labels, other.labels]))


def _draw(
    sample: Sample, canvas: NDArray[np.uint8], tile: Rect, wanted: _Map, keep: Pair
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Paint the part of the moved picture that falls into ``tile``; give the objects seen there.

    Whole pixels of the picture go to whole pixels of the canvas, which is within a pixel of what was wanted
    and lets a plain resize do it, at half the price of a warp. The boxes follow what was done, not what was
    wanted.
    """
    height, width = sample.image.shape[:2]
    left, right, x1, x2 = _span(width, tile[0], tile[2], wanted.scale[0], wanted.shift[0])
    top, bottom, y1, y2 = _span(height, tile[1], tile[3], wanted.scale[1], wanted.shift[1])
    if left >= right or top >= bottom or x1 >= x2 or y1 >= y2:
        return np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    part = sample.image[top:bottom, left:right]
    cv2.resize(part, (x2 - x1, y2 - y1), dst=canvas[y1:y2, x1:x2], interpolation=cv2.INTER_LINEAR)
    scale = ((x2 - x1) / (right - left), (y2 - y1) / (bottom - top))
    done = _Map(scale, (x1 - left * scale[0], y1 - top * scale[1]))
    return _visible(sample, done(sample.boxes), (x1, y1, x2, y2), keep)


def _span(size: int, low: int, high: int, scale: float, shift: float) -> tuple[int, int, int, int]:
    """Which pixels of a side are seen between ``low`` and ``high``, and where: first and end of both."""
    first = min(max(round((low - shift) / scale), 0), size)
    end = min(max(round((high - shift) / scale), 0), size)
    start = low if first > 0 else min(max(round(shift), low), high)
    stop = high if end < size else min(max(round(shift + size * scale), low), high)
    return first, end, start, stop


def _visible(
    sample: Sample, boxes: NDArray[np.float32], seen: Rect, keep: Pair
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Clip moved boxes to what is seen and drop those of which too little is left."""
    if not len(boxes):
        return boxes, sample.labels
    clipped = np.maximum(boxes, np.array(seen[:2] * 2, np.float32))
    np.minimum(clipped, np.array(seen[2:] * 2, np.float32), out=clipped)
    sides = clipped[:, 2:] - clipped[:, :2]
    whole = boxes[:, 2:] - boxes[:, :2]
    least = sides.min(axis=1)
    kept = (least > LEAST) & (least >= keep[1]) & (sides.prod(axis=1) > keep[0] * whole.prod(axis=1))
    return clipped[kept], sample.labels[kept]
