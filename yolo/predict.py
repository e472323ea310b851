"""Find objects in anything that shows pictures: files, folders, globs, videos, cameras, or arrays in memory.

>>> predictor = Predictor(load_model("best.ckpt"), score_threshold=0.4)
>>> found = predictor([load_image("a.jpg")])[0]
"""

import glob
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, TypeVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from yolo.checkpoint import Model
from yolo.data.image import Rounding, load_image
from yolo.inference import DEFAULT_RATE, Inference, Runnable, Shot
from yolo.types import Found

__all__ = ["Predictor", "Shot", "shots"]

Image = NDArray[np.uint8]
Item = TypeVar("Item")

PICTURES = {".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
PICTURES |= {".pbm", ".pgm", ".pnm", ".ppm"}
VIDEOS = {".avi", ".m4v", ".mjpeg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm", ".wmv"}


class Predictor:
    """Finds objects in pictures.

    Args:
        model: As :func:`yolo.checkpoint.load_model` gives it, or an exported file in its runtime.
        batch_size: Pictures that go through the network at a time.
        options: Of :class:`yolo.inference.Inference`: score_threshold, iou_threshold, max_detections,
            multi_label, class_agnostic, device, precision.
    """

    def __init__(self, model: Model | Runnable, *, batch_size: int = 8, **options: Any) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.inference = Inference(model, **options)
        self.batch_size = batch_size

    @property
    def classes(self) -> list[str]:
        """Names that the labels index."""
        return self.inference.model.classes

    def __call__(self, images: Iterable[Image]) -> list[Found]:
        """Detections of each picture, ``[H, W, 3]`` uint8 RGB of any size, in its own pixels."""
        return [found for batch in batched(images, self.batch_size) for found in self._batch(batch)]

    def _batch(self, images: Sequence[Image]) -> list[Found]:
        placed = [self.inference.model.preprocess(_checked(image)) for image in images]
        canvases = torch.from_numpy(np.stack([canvas for canvas, _ in placed])).permute(0, 3, 1, 2)
        return self.inference(canvases, [placement for _, placement in placed])

    def stream(self, shots: Iterable[Shot]) -> Iterator[tuple[Shot, Found | None]]:
        """Each shot with its detections, in order; None for one that could not be read.

        Holds one batch of pictures at a time, however long the stream.
        """
        for batch in batched(shots, self.batch_size):
            images = [shot.image for shot in batch if shot.image is not None]
            found = iter(self._batch(images) if images else [])
            for shot in batch:
                yield shot, None if shot.image is None else next(found)


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of ``size`` items in a row, the last one of what is left."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _checked(image: Image) -> Image:
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ValueError(f"a picture must be [H, W, 3] uint8 RGB, got {list(image.shape)} {image.dtype}")
    return image


def shots(
    source: str | int | Path | Sequence[str | int | Path],
    frames: int | None = None,
    rounding: Rounding = "libjpeg",
) -> Iterator[Shot]:
    """Everything that a source shows, in its order: sources as given, files of a folder or glob by name.

    Args:
        source: A picture, a folder (searched with its sub-folders), a glob, a video file or the number of a
            camera; or several of them. A file that cannot be read gives a shot with a problem, the rest
            follows.
        frames: Stop each video or camera after so many.
        rounding: Of JPEG files, that of the model's :class:`~yolo.data.Preprocess`.

    Raises:
        ValueError: There is nothing at all to look at, said before the first shot.
    """
    files = list(_files(source))
    return _shots(files, frames, rounding)


def _shots(
    files: Sequence[tuple[str | int, PurePath]], frames: int | None, rounding: Rounding
) -> Iterator[Shot]:
    for path, name in files:
        if isinstance(path, int) or Path(path).suffix.lower() in VIDEOS:
            yield from islice(_frames(path, name), frames)
            continue
        try:
            image = load_image(path, rounding)
        except (ValueError, OSError) as error:
            yield Shot(path, name, None, str(error))
        else:
            yield Shot(path, name, image)


def _frames(path: str | int, name: PurePath) -> Iterator[Shot]:
    """The frames of a video file or camera, one at a time."""
    title = f"camera {path}" if isinstance(path, int) else path
    capture = cv2.VideoCapture(path)
    try:
        index = 0
        rate = capture.get(cv2.CAP_PROP_FPS)
        rate = rate if 0 < rate < 1000 else DEFAULT_RATE
        while True:
            read, frame = capture.read()
            if not read:
                break
            yield Shot(title, name, np.ascontiguousarray(frame[:, :, ::-1]), frame=index, rate=rate)
            index += 1
        if index == 0:
            yield Shot(title, name, None, f"{title}: no frame can be read from it", frame=0)
    finally:
        capture.release()


def _files(source: str | int | Path | Sequence[str | int | Path]) -> Iterator[tuple[str | int, PurePath]]:
    """Files and cameras of a source, each with a name that no other has."""
    sources = [source] if isinstance(source, str | int | Path) else list(source)
    if not sources:
        raise ValueError("source names nothing: give a picture, a folder, a glob, a video or a camera number")
    taken: set[str] = set()
    for one in sources:
        for path, name in _expand(one):
            yield path, _unique(name, taken)


def _expand(source: str | int | Path) -> list[tuple[str | int, PurePath]]:
    text = str(source)
    path = Path(text)
    if text.isdecimal() and not path.exists():
        return [(int(text), PurePath(f"camera{int(text)}.mp4"))]
    if path.is_dir():
        files, root = sorted(file for file in path.rglob("*") if file.is_file()), path
    elif path.exists():
        return [(text, PurePath(path.name))]
    elif glob.has_magic(text):
        root = _fixed_part(path)
        files = sorted(file for file in root.glob(str(path.relative_to(root))) if file.is_file())
    else:
        raise ValueError(f"source={text}: there is no such file, folder or camera")
    files = [file for file in files if file.suffix.lower() in PICTURES | VIDEOS]
    if not files:
        raise ValueError(
            f"source={text}: no picture or video in it, looked for {' '.join(sorted(PICTURES | VIDEOS))}"
        )
    below = [[part for part in file.relative_to(root).parts if part != ".."] for file in files]
    return [(str(file), PurePath(*parts)) for file, parts in zip(files, below, strict=True)]  # never leads up


def _fixed_part(pattern: Path) -> Path:
    """The folders before the first wildcard of a glob."""
    parts = list(pattern.parts)
    first = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[: min(first, len(parts) - 1)])


def _unique(name: PurePath, taken: set[str]) -> PurePath:
    """``a.jpg``, then ``a_2.jpg``; letter case does not tell names apart on every disk."""
    candidate, number = name, 2
    while str(candidate).casefold() in taken:
        candidate, number = name.with_name(f"{name.stem}_{number}{name.suffix}"), number + 1
    taken.add(str(candidate).casefold())
    return candidate
