"""Writes what was found: annotated pictures and videos, predictions.json, YOLO text files, crops."""

import json
import logging
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from yolo.inference import Shot
from yolo.report.draw import draw
from yolo.types import Found

log = logging.getLogger(__name__)
Image = NDArray[np.uint8]
WRITABLE = frozenset((".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"))


@dataclass(frozen=True)
class Outcome:
    """What a run over sources came to."""

    pictures: int  # pictures and frames with detections or without
    detections: int
    problems: list[str]  # of sources that could not be read


def write_predictions(
    results: Iterable[tuple[Shot, Found | None]],
    classes: Sequence[str],
    folder: Path,
    *,
    save_images: bool = True,
    save_txt: bool = False,
    save_confidence: bool = False,
    save_crops: bool = False,
) -> Outcome:
    """Write results as they come, one at a time.

    ``predictions.json`` is a list with one entry per picture or frame, in order; the rest keeps the names of
    the sources: annotated pictures under ``images/``, text files under ``labels/``, crops under
    ``crops/CLASS/``.

    Args:
        results: Of :meth:`yolo.predict.Predictor.stream`.
        classes: Names.
        folder: Made if it is missing.
        save_images: Annotated pictures; a video becomes one .mp4.
        save_txt: ``class cx cy w h`` relative to the picture, one file per picture or frame.
        save_confidence: The score as sixth column.
        save_crops: Every detection as a picture of its own.
    """
    pictures = detections = 0
    problems: list[str] = []
    labelled: set[PurePath] = set()
    with ExitStack() as stack:
        entries = stack.enter_context(_JsonList(folder / "predictions.json"))
        films = stack.enter_context(_Films())
        for shot, found in results:
            if shot.image is None or found is None:
                log.warning("skipped: %s", shot.problem)
                problems.append(shot.problem)
                entries.add(_failed(shot))
                continue
            pictures, detections = pictures + 1, detections + len(found.labels)
            entries.add(_entry(shot, shot.image, found, classes))
            if save_images:
                drawn = draw(shot.image, found.boxes, found.labels, classes, found.scores)
                if shot.frame is None:
                    write_image(_writable(folder / "images" / shot.name), drawn)
                else:
                    films.add(_film(folder / "images" / shot.name), drawn, shot.rate)
            name = _frame_name(shot)
            if save_txt:
                text = _rows(found, shot.image, save_confidence)
                target = name.with_suffix(".txt") if shot.frame is not None else _label_name(name, labelled)
                _write_text(folder / "labels" / target, text)
            if save_crops:
                _write_crops(folder / "crops", name, shot.image, found, classes)
    return Outcome(pictures, detections, problems)


def write_image(path: Path, image: Image) -> None:
    """Write an RGB picture in the format of its suffix; the name may have any letters.

    Raises:
        ValueError: The suffix names no format that can be written, or the picture does not fit it.
    """
    if path.suffix.lower() not in WRITABLE:
        raise ValueError(f"{path}: a picture is written as {', '.join(sorted(WRITABLE))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    done, data = cv2.imencode(path.suffix, image[:, :, ::-1])
    if not done:
        raise ValueError(
            f"{path}: a picture of {image.shape[1]}x{image.shape[0]} pixels cannot be written so"
        )
    path.write_bytes(data.tobytes())


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _writable(path: Path) -> Path:
    return path if path.suffix.lower() in WRITABLE else path.with_name(f"{path.name}.png")


def _film(path: Path) -> Path:
    return path if path.suffix.lower() == ".mp4" else path.with_name(f"{path.name}.mp4")


def _frame_name(shot: Shot) -> PurePath:
    """``a.jpg`` stays; frame 12 of ``clip.mp4`` is ``clip.mp4/000012``."""
    return shot.name if shot.frame is None else shot.name / f"{shot.frame:06d}"


def _label_name(name: PurePath, taken: set[PurePath]) -> PurePath:
    """``a.txt`` for ``a.jpg``, as YOLO's readers expect; ``a.png.txt`` for an ``a.png`` that follows it."""
    target = name.with_suffix(".txt")
    target = name.with_name(f"{name.name}.txt") if target in taken else target
    taken.add(target)
    return target


def detections_json(found: Found, classes: Sequence[str]) -> list[dict[str, Any]]:
    """What was found in a picture as JSON types, best score first; boxes in its pixels."""
    columns = (found.boxes.tolist(), found.scores.tolist(), found.labels.tolist())
    return [
        {
            "box": [round(value, 3) for value in box],
            "score": round(score, 6),
            "label": label,
            "class": classes[label],
        }
        for box, score, label in zip(*columns, strict=True)
    ]


def _entry(shot: Shot, image: Image, found: Found, classes: Sequence[str]) -> dict[str, Any]:
    return {
        "source": shot.source,
        "name": shot.name.as_posix(),
        "frame": shot.frame,
        "width": image.shape[1],
        "height": image.shape[0],
        "detections": detections_json(found, classes),
    }


def _failed(shot: Shot) -> dict[str, Any]:
    return {"source": shot.source, "name": shot.name.as_posix(), "frame": shot.frame, "error": shot.problem}


def _rows(found: Found, image: Image, confidence: bool) -> str:
    height, width = image.shape[:2]
    lines = []
    for (x1, y1, x2, y2), score, label in zip(
        found.boxes.tolist(), found.scores.tolist(), found.labels, strict=True
    ):
        values = [(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height]
        values += [score] if confidence else []
        lines.append(f"{label} " + " ".join(f"{value:.6f}" for value in values) + "\n")
    return "".join(lines)


def _write_crops(folder: Path, name: PurePath, image: Image, found: Found, classes: Sequence[str]) -> None:
    height, width = image.shape[:2]
    for index, (box, label) in enumerate(zip(found.boxes, found.labels, strict=True)):
        x1, y1 = np.floor(box[:2]).astype(int).clip(0)
        x2, y2 = np.ceil(box[2:]).astype(int).clip(0, (width, height))
        if x2 > x1 and y2 > y1:
            target = folder / _as_folder(classes[label]) / name.with_name(f"{name.stem}_{index}{name.suffix}")
            write_image(_writable(target), image[y1:y2, x1:x2])


def _as_folder(name: str) -> str:
    """A class name as one folder: no separators, no way up."""
    plain = re.sub(r'[\x00-\x1f/\\:*?"<>|]', "_", name).strip(" .")
    return plain or "_"


class _JsonList:
    """A JSON list that is written entry by entry and is whole even when the run is broken off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.file: IO[str] | None = None

    def __enter__(self) -> "_JsonList":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open("w", encoding="utf-8")
        self.file.write("[")
        return self

    def add(self, entry: dict[str, Any]) -> None:
        assert self.file is not None
        self.file.write(
            (",\n" if self.count else "\n") + json.dumps(entry, ensure_ascii=False, allow_nan=False)
        )
        self.count += 1

    def __exit__(self, *_: object) -> None:
        assert self.file is not None
        self.file.write("\n]\n")
        self.file.close()


class _Films:
    """The video that is being written; a frame of another one closes it."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.size = (0, 0)
        self.writer: cv2.VideoWriter | None = None

    def __enter__(self) -> "_Films":
        return self

    def add(self, path: Path, image: Image, rate: float) -> None:
        if path != self.path:
            self._close()
            path.parent.mkdir(parents=True, exist_ok=True)
            self.size = (image.shape[1], image.shape[0])
            self.writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, self.size)
            if not self.writer.isOpened():
                raise ValueError(
                    f"{path}: OpenCV cannot write this video here (save_images=false goes without)"
                )
            self.path = path
        assert self.writer is not None
        if (image.shape[1], image.shape[0]) != self.size:  # a stream may change its size, a file may not
            image = np.asarray(cv2.resize(image, self.size), np.uint8)
        self.writer.write(np.ascontiguousarray(image[:, :, ::-1]))

    def _close(self) -> None:
        if self.writer is not None:
            self.writer.release()

    def __exit__(self, *_: object) -> None:
        self._close()
