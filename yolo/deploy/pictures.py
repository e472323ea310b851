"""Real pictures for checks and calibration, prepared as the model wants them."""

import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from yolo.data import Preprocess, load_image, read_digits
from yolo.predict import shots

Image = NDArray[np.uint8]


def images_of(source: str | Path | None, count: int) -> list[Image]:
    """The first ``count`` pictures ``[H, W, 3]`` of a file, folder or glob; None: built-in scenes of digits.

    Raises:
        ValueError: There is none.
    """
    if source is None:
        with tempfile.TemporaryDirectory() as folder:
            scenes = read_digits(folder, "test", counts=(1, 1, count)).records
            return [load_image(record.path) for record in scenes]
    found = (shot.image for shot in shots(str(source)))
    images = list(islice((image for image in found if image is not None), count))
    if not images:
        raise ValueError(f"no picture in {source} can be read")
    return images


def picture_files(source: str | Path | None, folder: Path, count: int = 32) -> list[str]:
    """Paths of the pictures of a file, folder or glob; None draws ``count`` built-in scenes into ``folder``.

    Raises:
        ValueError: There is none.
    """
    if source is None:
        return [record.path for record in read_digits(folder, "test", counts=(1, 1, count)).records]
    files = [shot.source for shot in shots(str(source)) if shot.image is not None and shot.frame is None]
    if not files:
        raise ValueError(f"no picture in {source} can be read")
    return files


def load_images(paths: Sequence[str | Path], count: int | None = None) -> Iterator[Image]:
    """Pictures of a data set, spread evenly over it when fewer are wanted than there are."""
    step = max(1, len(paths) // count) if count else 1
    for path in list(paths)[::step][:count]:
        yield load_image(path)


def prepare(images: Sequence[Image], preprocess: Preprocess) -> Tensor:
    """``[N, 3, H, W]`` uint8."""
    canvases = np.stack([preprocess.in_bytes(image)[0] for image in images])
    return torch.from_numpy(canvases).permute(0, 3, 1, 2).contiguous()


def batches(images: Sequence[Image], preprocess: Preprocess, size: int) -> list[Tensor]:
    """``images`` in batches of exactly ``size``; the last one is filled up from the start."""
    count = -(-len(images) // size) * size
    filled = [images[index % len(images)] for index in range(count)]
    return [prepare(filled[start : start + size], preprocess) for start in range(0, count, size)]
