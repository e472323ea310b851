"""Pictures and boxes moved together: every map here keeps the axes, so a box stays a box."""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from yolo.data.preprocess import Preprocess

Pair = tuple[float, float]  # x, y


class Sample(NamedTuple):
    """A picture and its objects."""

    image: NDArray[np.uint8]  # [H, W, 3] RGB
    boxes: NDArray[np.float32]  # [T, 4] x1 y1 x2 y2, pixels of the image
    labels: NDArray[np.int64]  # [T]


class _Map(NamedTuple):
    """canvas = picture * scale + shift, per axis, for continuous coordinates (a pixel's centre is at .5)."""

    scale: Pair
    shift: Pair

    def boxes(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
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
    placement = preprocess.placement(height, width)
    if zoom == (1.0, 1.0) and shift == (0.0, 0.0):
        image = preprocess.pad(preprocess.shrink_to(sample.image, height, width))
        place = _Map((placement.scale_x, placement.scale_y), (placement.pad_x, placement.pad_y))
        return Sample(image, *_visible(sample, place.boxes(sample.boxes), (0, 0, cols, rows), keep))
    place = _Map(
        (placement.scale_x * zoom[0], placement.scale_y * zoom[1]),
        (
            (placement.pad_x - cols / 2) * zoom[0] + cols / 2 + shift[0] * cols,
            (placement.pad_y - rows / 2) * zoom[1] + rows / 2 + shift[1] * rows,
        ),
    )
    canvas = np.empty((rows, cols, 3), np.uint8)
    _draw(sample.image, canvas, (0, 0, cols, rows), place, preprocess.pad_value)
    return Sample(canvas, *_visible(sample, place.boxes(sample.boxes), (0, 0, cols, rows), keep))


def mosaic(
    samples: Sequence[Sample],
    preprocess: Preprocess,
    centre: Pair,
    zoom: Pair = (1.0, 1.0),
    shift: Pair = (0.0, 0.0),
    keep: Pair = (0.1, 0.0),
) -> Sample:
    """Put four pictures around a point and look at the middle.

    The pictures, each at its size on the canvas, touch ``centre`` with a corner: top left, top right, bottom left,
    bottom right. They lie on a field twice as high and wide as the canvas; the canvas shows the field's middle,
    zoomed and shifted. Each tile is cut to its quarter, and so are its boxes.

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
    view = _Map(
        zoom, (cols / 2 + shift[0] * cols - cols * zoom[0], rows / 2 + shift[1] * rows - rows * zoom[1])
    )
    cut_x = int(np.clip(round(centre[0] * view.scale[0] + view.shift[0]), 0, cols))
    cut_y = int(np.clip(round(centre[1] * view.scale[1] + view.shift[1]), 0, rows))
    canvas = np.empty((rows, cols, 3), np.uint8)
    boxes, labels = [], []
    for number, sample in enumerate(samples):
        right, below = number % 2 == 1, number >= 2
        tile = (
            cut_x if right else 0,
            cut_y if below else 0,
            cols if right else cut_x,
            rows if below else cut_y,
        )
        if tile[0] >= tile[2] or tile[1] >= tile[3]:
            continue
        height, width = sample.image.shape[:2]
        inner_rows, inner_cols = preprocess.inner_size(height, width)
        scale = (inner_cols / width * zoom[0], inner_rows / height * zoom[1])
        # the corner that touches the cut, so that whole pixels of the tile are whole pixels of the canvas
        corner = (
            (centre[0] - (0 if right else inner_cols)) * zoom[0] + view.shift[0],
            (centre[1] - (0 if below else inner_rows)) * zoom[1] + view.shift[1],
        )
        place = _Map(scale, corner)
        _draw(sample.image, canvas, tile, place, preprocess.pad_value)
        tile_boxes, tile_labels = _visible(sample, place.boxes(sample.boxes), tile, keep)
        boxes.append(tile_boxes)
        labels.append(tile_labels)
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
    image: NDArray[np.uint8],
    canvas: NDArray[np.uint8],
    tile: tuple[int, int, int, int],
    place: _Map,
    grey: int,
) -> None:
    """Paint the part of the moved picture that falls into ``tile`` (x1, y1, x2, y2); grey where there is none."""
    x1, y1, x2, y2 = tile
    # OpenCV counts pixel centres from 0, boxes count edges: half a pixel on either side
    shift_x = place.shift[0] - x1 + 0.5 * place.scale[0] - 0.5
    shift_y = place.shift[1] - y1 + 0.5 * place.scale[1] - 0.5
    matrix = np.array([[place.scale[0], 0, shift_x], [0, place.scale[1], shift_y]])
    cv2.warpAffine(
        image,
        matrix,
        (x2 - x1, y2 - y1),
        dst=canvas[y1:y2, x1:x2],
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(grey, grey, grey),
    )


def _visible(
    sample: Sample, boxes: NDArray[np.float32], tile: tuple[int, int, int, int], keep: Pair
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Clip moved boxes to a tile and drop those of which too little is left."""
    if not len(boxes):
        return boxes.reshape(0, 4).astype(np.float32), sample.labels
    x1, y1, x2, y2 = tile
    clipped = np.clip(boxes, (x1, y1, x1, y1), (x2, y2, x2, y2), dtype=np.float32)
    sides = clipped[:, 2:] - clipped[:, :2]
    whole = boxes[:, 2:] - boxes[:, :2]
    left = sides[:, 0] * sides[:, 1] > keep[0] * (whole[:, 0] * whole[:, 1])
    kept = left & (sides > 0).all(axis=1) & (sides >= keep[1]).all(axis=1)
    return clipped[kept], sample.labels[kept]
