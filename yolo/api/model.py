"""A model from a file, and what it says about pictures of any kind."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from yolo.api.result import Result
from yolo.data.image import Rounding
from yolo.deploy import Runtime, load_detector
from yolo.deploy.run_torch import Mode, Precision
from yolo.inference import Shot, with_preprocess
from yolo.predict import Predictor, shots
from yolo.types import Found

log = logging.getLogger(__name__)

Source = str | int | Path | NDArray[np.uint8] | Image.Image


def load(
    weights: str | Path,
    *,
    cfg: str | Path | None = None,
    device: str = "auto",
    precision: Precision = "fp32",
    mode: Mode = "eager",
    size: tuple[int, int] | None = None,
    download: bool = False,
) -> "Yolo":
    """A model that is ready to use.

    Args:
        weights: A checkpoint of this project, a Darknet ``.weights`` file, an exported ``.onnx``, ``.engine``
            or ``.plan`` file, or the name of published weights.
        cfg: The Darknet cfg of a ``.weights`` file; by default the one of the same stem beside it.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        precision: Of a PyTorch network (``fp32``, ``bf16``, ``fp16``); exported files keep their own.
        mode: Of a PyTorch network: ``eager``, ``compiled`` or ``graph``.
        size: Height and width of the network input in pixels; None: as the file says.
        download: Fetch published weights that are not in the cache yet.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not what its name says, or cannot run here or at that size.
        ImportError: The package that runs this kind of file is missing; the message names it.
    """
    runtime = load_detector(
        weights, device=device, precision=precision, mode=mode, cfg=cfg, download=download
    )
    ready = with_preprocess(runtime, None, size)
    assert isinstance(ready, Runtime), "a runtime stays one"
    return Yolo(ready)


class Yolo:
    """A detector with its class names.

    Args:
        runtime: What runs it, see :mod:`yolo.deploy`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @property
    def classes(self) -> list[str]:
        """Names that labels index."""
        return list(self.runtime.classes)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the network input, pixels."""
        return self.runtime.preprocess.size

    def __repr__(self) -> str:
        height, width = self.size
        return f"<Yolo: {self.runtime.name}, input {width}x{height}, {len(self.classes)} classes>"

    def predict(
        self,
        source: Source | Sequence[Source],
        *,
        score_threshold: float = 0.25,
        nms: float = 0.45,
        max_detections: int = 300,
        class_agnostic: bool = False,
        classes: Sequence[str | int] | None = None,
        batch_size: int = 8,
        frames: int | None = None,
        skip_unreadable: bool = False,
    ) -> list[Result]:
        """Find objects in pictures; every result is held with its picture (:meth:`stream` holds one batch).

        Args:
            source: A picture file, folder (with sub-folders), glob, video file or camera number; pixels as
                an ``[H, W, 3]`` uint8 RGB array or a Pillow image; or a list of these.
            score_threshold: Detections score strictly more.
            nms: IoU above which the better box of a class suppresses the other.
            max_detections: Kept per picture.
            class_agnostic: Let boxes of different classes suppress each other.
            classes: Names or labels that are wanted; None: all.
            batch_size: Pictures that go through the network at a time.
            frames: Stop each video or camera after so many.
            skip_unreadable: Leave out pictures that cannot be read, with a warning, instead of raising.

        Returns:
            One result per picture or frame: files of a folder or glob by name, the rest in the given order.

        Raises:
            ValueError: There is nothing to look at, a picture cannot be read, or an option is out of range.
        """
        return list(
            self.stream(
                source,
                score_threshold=score_threshold,
                nms=nms,
                max_detections=max_detections,
                class_agnostic=class_agnostic,
                classes=classes,
                batch_size=batch_size,
                frames=frames,
                skip_unreadable=skip_unreadable,
            )
        )

    __call__ = predict

    def stream(
        self,
        source: Source | Sequence[Source],
        *,
        score_threshold: float = 0.25,
        nms: float = 0.45,
        max_detections: int = 300,
        class_agnostic: bool = False,
        classes: Sequence[str | int] | None = None,
        batch_size: int = 8,
        frames: int | None = None,
        skip_unreadable: bool = False,
    ) -> Iterator[Result]:
        """Like :meth:`predict`, one result at a time, for videos and large folders."""
        predictor = Predictor(
            self.runtime,
            batch_size=batch_size,
            score_threshold=score_threshold,
            iou_threshold=nms,
            max_detections=max_detections,
            class_agnostic=class_agnostic,
        )
        wanted = chosen_labels(classes, self.classes)
        found = predictor.stream(list_shots(source, frames, self.runtime.preprocess.rounding))
        return self._results(found, wanted, skip_unreadable)

    def _results(
        self, found: Iterable[tuple[Shot, Found | None]], wanted: NDArray[np.int64] | None, skip: bool
    ) -> Iterator[Result]:
        names = tuple(self.classes)
        for shot, one in found:
            if shot.image is None or one is None:
                if not skip:
                    raise ValueError(shot.problem)
                log.warning("skipped: %s", shot.problem)
                continue
            kept = slice(None) if wanted is None else np.isin(one.labels, wanted)
            columns = (one.boxes[kept], one.scores[kept], one.labels[kept])
            yield Result(*columns, names, shot.image, shot.source, shot.frame)


def chosen_labels(classes: Sequence[str | int] | None, names: Sequence[str]) -> NDArray[np.int64] | None:
    """The labels of classes that are given by name or label; None for all.

    Raises:
        ValueError: The model has no such class.
    """
    if classes is None:
        return None
    labels = []
    for one in [classes] if isinstance(classes, str) else classes:
        if isinstance(one, str) and one in names:
            labels.append(list(names).index(one))
        elif not isinstance(one, str) and 0 <= one < len(names):
            labels.append(int(one))
        else:
            raise ValueError(
                f"the model has no class {one!r}: there are {len(names)}, {', '.join(names[:20])}"
            )
    return np.array(labels, np.int64)


def list_shots(
    source: Source | Sequence[Source], frames: int | None = None, rounding: Rounding = "libjpeg"
) -> Iterator[Shot]:
    """The pictures of files, cameras, arrays and Pillow images, in their order.

    Raises:
        ValueError: There is nothing at all to look at.
        TypeError: A source is of another kind.
    """
    sources = [source] if isinstance(source, str | int | Path | np.ndarray | Image.Image) else list(source)
    if not sources or all(isinstance(one, str | int | Path) for one in sources):
        return shots([one for one in sources if isinstance(one, str | int | Path)], frames, rounding)
    parts = [_shots_of(one, frames, rounding) for one in sources]
    return (shot for part in parts for shot in part)


def _shots_of(source: Source, frames: int | None, rounding: Rounding) -> Iterable[Shot]:
    if isinstance(source, Image.Image):
        turned = ImageOps.exif_transpose(source)
        return [Shot(source.__class__.__name__, PurePath("image.png"), np.array(turned.convert("RGB")))]
    if isinstance(source, np.ndarray):
        return [Shot("array", PurePath("array.png"), source)]
    if isinstance(source, str | int | Path):
        return shots(source, frames, rounding)
    raise TypeError(
        f"a source is a path, a camera number, an array or a Pillow image, got {type(source).__name__}"
    )
