"""Small samples whose pixels tell where their boxes are."""

from collections.abc import Callable

import numpy as np

from yolo.data.geometry import Sample

COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255))


def flat(colour: tuple[int, int, int], label: int, height: int = 32, width: int = 32) -> Sample:
    """A picture of one colour with a box around all of it."""
    image = np.full((height, width, 3), colour, np.uint8)
    return Sample(image, np.array([[0, 0, width, height]], np.float32), np.array([label]))


def spotted(seed: int, height: int = 90, width: int = 120, count: int = 3) -> Sample:
    """A black picture with white rectangles that do not touch, and their boxes."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), np.uint8)
    boxes = []
    for column in range(count):
        left = column * width // count
        x1, y1 = left + int(rng.integers(2, 8)), int(rng.integers(2, height // 2))
        x2, y2 = x1 + int(rng.integers(10, width // count - 10)), y1 + int(rng.integers(10, height // 2 - 2))
        image[y1:y2, x1:x2] = 255
        boxes.append((x1, y1, x2, y2))
    return Sample(image, np.array(boxes, np.float32), np.arange(count))


def loader(samples: list[Sample]) -> Callable[[int], Sample]:
    return lambda index: samples[index]
