"""A new input size every few batches (YOLOv2, arXiv:1612.08242, sec. 2, "Multi-Scale Training")."""

import random
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from yolo.data.scales import scaled_sizes
from yolo.types import Targets


@dataclass(frozen=True)
class MultiScale:
    """Draws the size that a batch is resized to; the same on every rank, since it depends on nothing but numbers.

    Args:
        every: Optimiser steps between two draws, so that accumulating over smaller batches draws the same sizes.
        low: Smallest factor of the configured size; 0.75 of 416 gives 320.
        high: Largest factor; 1.5 of 416 gives 608.
    """

    every: int = 10
    low: float = 0.75
    high: float = 1.5

    def __post_init__(self) -> None:
        if self.every < 1 or not 0 < self.low <= self.high:
            raise ValueError(f"multi-scale needs every >= 1 and 0 < low <= high, got {self}")

    def sizes(self, size: tuple[int, int], stride: int) -> list[tuple[int, int]]:
        """Every size that can be drawn: multiples of ``stride``, aspect kept as well as that allows."""
        return scaled_sizes(size, stride, self.low, self.high)

    def draw(
        self, size: tuple[int, int], stride: int, accumulate: int, seed: int, epoch: int, batch: int
    ) -> tuple[int, int]:
        """Height and width for one batch of one epoch, where a step has ``accumulate`` batches."""
        window = batch // accumulate // self.every
        return random.Random(f"{seed} {epoch} {window}").choice(self.sizes(size, stride))


def resize_batch(images: Tensor, targets: Targets, size: tuple[int, int]) -> tuple[Tensor, Targets]:
    """Resize ``images`` ``[N, 3, H, W]`` (float) on their device and move the boxes along."""
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images, targets
    shrinks = size[0] < height or size[1] < width
    images = F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=shrinks)
    x, y = size[1] / width, size[0] / height
    return images, targets._replace(boxes=targets.boxes * targets.boxes.new_tensor([x, y, x, y]))
