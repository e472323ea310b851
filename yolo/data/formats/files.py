"""Files that a reader looked at, and the cache of what it made of them.

Parsing a hundred thousand small files takes a minute, looking whether they have changed takes seconds. What
was read is kept together with a fingerprint of every file it came from: label files by their content,
pictures by size and time.
"""

import hashlib
import json
import logging
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yolo.data.formats.annotated import Annotated, Problem
from yolo.data.image import ImageInfo, check_image
from yolo.types import Record, Truth

log = logging.getLogger(__name__)

_VERSION = 3  # of what is kept, and of what the readers make of a file
_ABSENT = "absent"
# what zipfile, zlib and NumPy raise for a file with a wrong byte in it
_DAMAGED = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, MemoryError, OverflowError),
    *(RuntimeError, SyntaxError, struct.error, zlib.error, zipfile.BadZipFile),
)
_ARRAYS = ("boxes", "labels", "crowd", "difficult", "area")


class Files:
    """Reads files and remembers which, so that a change in one of them is noticed."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def read(self, path: Path) -> bytes:
        """The content of a file."""
        data = path.read_bytes()
        self.seen[str(path)] = _content(data)
        return data

    def image(self, path: Path) -> ImageInfo:
        """Size and turn of a picture that is whole."""
        self.seen[str(path)] = _stat(str(path))
        return check_image(path)

    def exists(self, path: Path) -> bool:
        """Whether it is a file."""
        if path.is_file():
            return True
        self.seen[str(path)] = _ABSENT
        return False

    def below(self, folder: Path) -> list[Path]:
        """Every file below a folder, sorted."""
        found = _below(folder)
        self.seen[str(folder)] = _listing(found)
        return found


def cached(
    cache_dir: str | Path | None, options: Mapping[str, Any], build: Callable[[Files], Annotated]
) -> Annotated:
    """What ``build`` gives; taken from the cache if no file it depends on has changed.

    Args:
        cache_dir: Folder of the cache; None builds anew.
        options: Everything else that the result depends on, as JSON types: reader, places, classes.
        build: Reads the data set through the files it is given.
    """
    if cache_dir is None:
        return build(Files())
    key = json.dumps({"version": _VERSION, **options}, sort_keys=True, default=str)
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    path = Path(cache_dir).expanduser() / "annotations" / f"{name}.npz"
    found = _load(path, key)
    if found is not None:
        log.info("annotations taken from %s", path)
        return found
    files = Files()
    result = build(files)
    try:
        _save(path, key, result, files.seen)
    except OSError as error:
        log.warning("the annotations could not be kept in %s: %s", path, error)
    return result


def _content(data: bytes) -> str:
    return "content " + hashlib.sha256(data).hexdigest()[:32]


def _stat(path: str) -> str:
    try:
        found = os.stat(path)  # noqa: PTH116 - pathlib's takes three times as long
    except OSError:
        return _ABSENT
    return f"stat {found.st_size} {found.st_mtime_ns}"


def _below(folder: Path) -> list[Path]:
    found = []
    for home, _, names in os.walk(folder, followlinks=True):
        found += [Path(home, name) for name in names]
    return sorted(found)


def _listing(found: list[Path]) -> str:
    return (
        "folder "
        + hashlib.sha256("\0".join(map(str, found)).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    )


def _same(path: str, fingerprint: str) -> bool:
    kind = fingerprint.partition(" ")[0]
    if kind == "content":
        try:
            return _content(Path(path).read_bytes()) == fingerprint
        except OSError:
            return False
    if kind == "folder":
        return _listing(_below(Path(path))) == fingerprint
    if kind == _ABSENT:
        return not os.path.isfile(path)  # noqa: PTH113 - as above
    return _stat(path) == fingerprint


def _save(path: Path, key: str, result: Annotated, seen: Mapping[str, str]) -> None:
    truths = [record.truth for record in result.records]
    text = {
        "key": key,
        "seen": dict(seen),
        "classes": result.classes,
        "category_ids": result.category_ids,
        "problems": [list(problem) for problem in result.problems],
        "pictures": [
            [record.image_id, record.path, record.coco_id, record.size] for record in result.records
        ],
    }
    arrays: dict[str, NDArray[Any]] = {
        name: np.concatenate([getattr(truth, name) for truth in truths]) if truths else np.zeros(0)
        for name in _ARRAYS
    }
    arrays["counts"] = np.array([len(truth.labels) for truth in truths], np.int64)
    arrays["text"] = np.frombuffer(json.dumps(text).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        Path(part).replace(path)
    finally:
        Path(part).unlink(missing_ok=True)


def _load(path: Path, key: str) -> Annotated | None:
    """The kept result; None if there is none, it is damaged, or a file has changed."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in (*_ARRAYS, "counts")}
            text = json.loads(kept["text"].tobytes())
        if text["key"] != key or not all(_same(*pair) for pair in text["seen"].items()):
            return None
        if any(len(arrays[name]) != arrays["counts"].sum() for name in _ARRAYS):
            raise ValueError("its parts do not belong together")
        ends = np.cumsum(arrays["counts"])[:-1]
        parts = [np.split(arrays[name], ends) for name in _ARRAYS]
        records = [
            Record(image_id, picture, Truth(*truth), coco_id, tuple(size))
            for (image_id, picture, coco_id, size), *truth in zip(text["pictures"], *parts, strict=True)
        ]
        problems = [Problem(*rest)._replace(box=box and tuple(box)) for *rest, box in text["problems"]]
        return Annotated(records, text["classes"], problems, tuple(text["category_ids"]))
    except FileNotFoundError:
        return None
    except _DAMAGED as error:
        log.warning("%s is damaged, the annotations are read again: %s", path, error)
        return None
