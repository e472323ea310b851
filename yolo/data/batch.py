"""From single pictures to what a step sees."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import default_collate

from yolo.ops import vary_colour
from yolo.types import Batch, Meta, Targets


class Item(NamedTuple):
    """One picture, ready for the network."""

    image: Tensor  # [3, H, W] RGB, uint8 or float32, 0 to 1
    boxes: Tensor  # [T, 4] float32, x1 y1 x2 y2 in pixels of the canvas
    labels: Tensor  # [T] int64
    meta: Meta | None  # None for an augmented picture: nothing can be scored in its own pixels
    colour: tuple[float, float, float] | None = None  # how the image is still to be varied


def collate(items: Sequence[Item]) -> Batch:
    """Stack pictures and concatenate objects; a picture without objects contributes none.

    The result has the channels-last memory format, which is how pictures are decoded and how convolutions are
    fastest.
    """
    if not items:
        raise ValueError("a batch needs at least one picture, got none")
    rows = [item.image.permute(1, 2, 0) for item in items]
    images: Tensor = default_collate(rows)  # in a worker it stacks straight into shared memory
    counts = torch.tensor([len(item.labels) for item in items])
    targets = Targets(
        torch.cat([item.boxes for item in items]),
        torch.cat([item.labels for item in items]),
        torch.arange(len(items)).repeat_interleave(counts),
    )
    metas = tuple(item.meta for item in items if item.meta is not None)
    drawn = [item.colour for item in items if item.colour is not None]
    colours = torch.tensor(drawn, dtype=torch.float32) if len(drawn) == len(items) else None
    return Batch(images.permute(0, 3, 1, 2), targets, metas, colours)


def coloured(batch: Batch) -> Batch:
    """The batch with the colours that were drawn for it, made where it lies."""
    if batch.colours is None:
        return batch
    return batch._replace(images=vary_colour(batch.images, batch.colours), colours=None)


def to_float(images: Tensor) -> Tensor:
    """uint8 ``[N, 3, H, W]``, 0 to 255, to float32, 0 to 1; what is float already stays."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


def to_bytes(images: Tensor) -> Tensor:
    """The inverse of :func:`to_float`, rounded; what is uint8 already stays."""
    return images if images.dtype == torch.uint8 else (images * 255).round().to(torch.uint8)
