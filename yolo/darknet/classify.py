"""Pictures to classes with a classifier built from a cfg."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from yolo.darknet.convert import class_names
from yolo.darknet.network import CfgClassifier


def prepare(image: NDArray[np.uint8], size: tuple[int, int]) -> Tensor:
    """What Darknet's ``classifier predict`` does: cover the canvas (corner pixels aligned), keep the middle.

    Args:
        image: ``[H, W, 3]``, RGB.
        size: Height and width of the network input.

    Returns:
        ``[1, 3, H, W]``, 0 to 1.
    """
    height, width = image.shape[:2]
    scale = max(size[0] / height, size[1] / width)
    inner = (max(size[0], math.floor(height * scale)), max(size[1], math.floor(width * scale)))
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    pixels = F.interpolate(pixels, inner, mode="bilinear", align_corners=True)
    top, left = (inner[0] - size[0]) // 2, (inner[1] - size[1]) // 2
    return pixels[..., top : top + size[0], left : left + size[1]]


def best_classes(network: CfgClassifier, image: NDArray[np.uint8], count: int = 5) -> list[tuple[str, float]]:
    """The ``count`` likeliest names of a picture ``[H, W, 3]`` (RGB) and their probabilities, best first."""
    with torch.inference_mode():
        chances = network.eval().probabilities(prepare(image, network.input_size)).flatten()
    values, labels = chances.topk(min(count, len(chances)))
    names = class_names(network)
    return [(names[label], value) for label, value in zip(labels.tolist(), values.tolist(), strict=True)]
