"""The set that ships: scenes of the handwritten digits that scikit-learn carries, drawn once from a seed."""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from yolo.data.formats.annotated import Annotated, Objects, OnError, finish
from yolo.data.formats.text import class_list
from yolo.data.image import check_image
from yolo.types import Record

log = logging.getLogger(__name__)

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPLITS = ("train", "val", "test")
_VERSION = 2  # of the drawing below: part of the folder's name
_SHARES = {
    "train": (0.0, 0.7),
    "val": (0.7, 0.8),
    "test": (0.8, 1.0),
}  # of the handwritten digits: none in two splits
_MIN_CONTRAST = 70.0  # grey levels between a digit and what is behind it


def read_digits(
    cache: str | Path,
    split: str = "train",
    classes: Sequence[str] | None = None,
    counts: tuple[int, int, int] = (1200, 150, 300),
    size: tuple[int, int] = (160, 160),
    digits: tuple[int, int] = (1, 6),
    scale: tuple[int, int] = (20, 60),
    seed: int = 0,
    on_error: OnError = "skip",
) -> Annotated:
    """Scenes of handwritten digits on coloured, textured ground.

    The scenes of all splits are drawn on first use and kept; the folder's name changes with every option
    below, it appears only when it is complete, and two processes that draw at the same time do not disturb
    each other.

    Args:
        cache: Folder that keeps the scenes.
        split: ``train``, ``val`` or ``test``; no handwritten digit occurs in two of them.
        classes: Names of the ten classes, if others than zero to nine.
        counts: Scenes in train, val and test.
        size: Height and width of a scene, pixels.
        digits: Least and most digits in a scene.
        scale: Least and greatest height of a digit, pixels.
        seed: Of everything random.
        on_error: ``skip`` leaves out what cannot be used and lists it, ``raise`` stops.

    Raises:
        ValueError: The split or the numbers make no sense.
    """
    if split not in SPLITS:
        raise ValueError(f"digits has the splits {', '.join(SPLITS)}, got {split!r}")
    names = class_list(classes, CLASSES, "digits")
    if len(names) != len(CLASSES):
        raise ValueError(f"digits has {len(CLASSES)} classes, got {len(names)} names")
    if not (1 <= digits[0] <= digits[1] and 8 <= scale[0] <= scale[1] <= min(size)):
        raise ValueError(f"digits {digits} of scale {scale} pixels do not fit a scene of {size[1]}x{size[0]}")
    options = {
        "version": _VERSION,
        "counts": list(counts),
        "size": list(size),
        "digits": list(digits),
        "scale": list(scale),
        "seed": seed,
    }
    folder = _ensure(Path(cache).expanduser(), options)
    scenes = json.loads((folder / f"{split}.json").read_text(encoding="utf-8"))
    problems: list[Any] = []
    records = []
    for number, rows in enumerate(scenes):
        path = folder / split / f"{number:05d}.jpg"
        objects = Objects(str(folder / f"{split}.json"), problems)
        for *box, label in rows:
            objects.add((box[0], box[1], box[2], box[3]), label, 0)
        info = check_image(path)
        records.append(Record(f"{split}/{path.name}", str(path), objects.truth(info), size=info.size))
    return finish(f"digits {split}", Annotated(records, names, problems), on_error)


def _ensure(cache: Path, options: dict[str, Any]) -> Path:
    """The folder of the scenes, drawn if it is not there: under another name first, then renamed."""
    counts, size, digits, scale = (options[name] for name in ("counts", "size", "digits", "scale"))
    parts = ["x".join(map(str, values)) for values in (size, counts, digits, scale)]
    folder = cache / "-".join(["digits", f"v{options['version']}", *parts, f"seed{options['seed']}"])
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    log.info("drawing %d scenes of handwritten digits into %s", sum(counts), folder)
    part = Path(tempfile.mkdtemp(dir=cache, prefix=".drawing-"))
    try:
        for split, count in zip(SPLITS, counts, strict=True):
            _draw_split(part, split, count, options)
        os.rename(part, folder)  # noqa: PTH104 - fails, unlike Path.replace on some systems, if the folder exists
    except OSError:
        if not folder.is_dir():  # otherwise another process was quicker, with the same scenes
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _draw_split(part: Path, split: str, count: int, options: dict[str, Any]) -> None:
    from sklearn.datasets import load_digits  # two seconds, and only where scenes are drawn

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng([options["seed"], 99]).permutation(len(labels))
    low, high = _SHARES[split]
    chosen = order[round(low * len(order)) : round(high * len(order))]
    glyphs = pixels.reshape(-1, 8, 8)[chosen] / 16.0
    (part / split).mkdir()

    def draw(number: int) -> list[list[int]]:
        rng = np.random.default_rng([options["seed"], SPLITS.index(split), number])
        image, rows = draw_scene(
            glyphs, labels[chosen], rng, options["size"], options["digits"], options["scale"]
        )
        data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 92])[1]
        (part / split / f"{number:05d}.jpg").write_bytes(data.tobytes())
        return rows

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # a scene depends on nothing but its number
        scenes = list(pool.map(draw, range(count)))
    (part / f"{split}.json").write_text(json.dumps(scenes), encoding="utf-8")


def draw_scene(
    glyphs: NDArray[np.float64],
    labels: NDArray[np.int64],
    rng: np.random.Generator,
    size: tuple[int, int],
    digits: tuple[int, int],
    scale: tuple[int, int],
) -> tuple[NDArray[np.uint8], list[list[int]]]:
    """Draw one scene.

    Args:
        glyphs: ``[G, 8, 8]`` ink, 0 to 1.
        labels: ``[G]``.
        rng: Where every random number comes from.
        size: Height and width, pixels.
        digits: Least and most digits.
        scale: Least and greatest height of a digit, pixels.

    Returns:
        ``[H, W, 3]`` uint8 RGB, and a row x1, y1, x2, y2, label for every digit.
    """
    scene = _ground(rng, size)
    rows: list[list[int]] = []
    for _ in range(int(rng.integers(digits[0], digits[1] + 1))):
        which = int(rng.integers(len(glyphs)))
        ink = _glyph(glyphs[which], int(rng.integers(scale[0], scale[1] + 1)), rng)
        height, width = ink.shape
        for _ in range(20):  # tries to find a free place
            x = int(rng.integers(0, max(1, size[1] - width)))
            y = int(rng.integers(0, max(1, size[0] - height)))
            box = [x, y, x + width, y + height]
            if height <= size[0] and width <= size[1] and not any(_touch(box, row) for row in rows):
                region = scene[y : y + height, x : x + width]
                colour = _contrasting(region.reshape(-1, 3).mean(axis=0), rng)
                region += ink[:, :, None] * (colour - region)
                rows.append([*box, int(labels[which])])
                break
    noise = rng.standard_normal(scene.shape, np.float32) * np.float32(rng.uniform(1.0, 8.0))
    return np.clip(scene + noise, 0, 255).astype(np.uint8), rows


def _touch(one: list[int], other: list[int]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _glyph(glyph: NDArray[np.float64], height: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Enlarge, slant and turn a digit, cut to its ink: ``[height or so, width]``, 0 to 1."""
    big = cv2.resize(np.pad(glyph, 3).astype(np.float32), (112, 112), interpolation=cv2.INTER_CUBIC)
    angle, slant = rng.uniform(-12, 12), rng.uniform(-0.2, 0.2)
    turn = cv2.getRotationMatrix2D((56.0, 56.0), angle, 1.0)
    turn[0, 1] += slant
    turn[0, 2] -= slant * 56.0
    big = cv2.warpAffine(big, turn, (112, 112), flags=cv2.INTER_LINEAR)
    sharp = np.clip((big - 0.35) * 3.0, 0.0, 1.0)
    ys, xs = np.nonzero(sharp > 0.3)
    tight = sharp[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    width = max(4, round(height * tight.shape[1] / tight.shape[0]))
    return cv2.resize(tight, (width, height), interpolation=cv2.INTER_AREA)


def _ground(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float32]:
    """Coloured ground: a soft gradient, cloudy texture, and strokes and patches that are no digits."""
    rows, cols = size
    corners = rng.uniform(20, 235, (2, 2, 3)) * 0.4 + rng.uniform(20, 235, 3) * 0.6
    ground = cv2.resize(corners.astype(np.float32), (cols, rows), interpolation=cv2.INTER_LINEAR)
    grain = int(rng.integers(4, 20))
    clouds = cv2.resize(
        rng.standard_normal((grain, grain, 3), np.float32), (cols, rows), interpolation=cv2.INTER_CUBIC
    )
    ground = ground + clouds * np.float32(rng.uniform(2, 14))
    for _ in range(int(rng.integers(0, 6))):
        start = rng.integers(0, (cols, rows)).tolist()
        stop = rng.integers(0, (cols, rows)).tolist()
        colour = (ground[start[1], start[0]] + rng.normal(0, 25, 3)).tolist()
        if rng.random() < 0.5:
            cv2.line(ground, start, stop, colour, int(rng.integers(1, 4)), cv2.LINE_AA)
        else:
            cv2.circle(ground, start, int(rng.integers(3, 30)), colour, -1, cv2.LINE_AA)
    return np.clip(ground, 0, 255)


def _contrasting(behind: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """A colour that stands out from the one behind it by luminance."""
    weights = np.array([0.299, 0.587, 0.114])
    for _ in range(50):
        colour = rng.uniform(0, 255, 3)
        if abs(float((colour - behind) @ weights)) >= _MIN_CONTRAST:
            return colour.astype(np.float32)
    return np.full(3, 255 if float(behind @ weights) < 128 else 0, np.float32)
