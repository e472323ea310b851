"""Pictures sorted into a folder per class: what classifiers learn from."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from yolo.data.formats.annotated import Annotated, OnError, Problem, finish, problem_of
from yolo.data.formats.files import Files, cached
from yolo.data.formats.text import IMAGE_SUFFIXES
from yolo.types import Record, Truth


def read_imagefolder(
    root: str | Path,
    split: str = "train",
    classes: Sequence[str] | None = None,
    classes_of: str = "train",
    num_classes: int | None = None,
    cache_dir: str | Path | None = None,
    on_error: OnError = "skip",
) -> Annotated:
    """Read ``root/split/class/.../picture.jpg``.

    A class is an object that fills its picture, so that everything which reads, keeps and varies pictures for
    detectors serves classifiers too.

    Args:
        root: The folder above the splits.
        split: ``train``, ``val`` or whatever the folder is called.
        classes: The names that are expected, in label order; None takes the folders of the split
            ``classes_of`` by name.
        classes_of: The split whose folders are the classes.
        num_classes: How many are expected.
        cache_dir: Keeps what was read for the next start.
        on_error: ``skip`` leaves out what cannot be used and lists it, ``raise`` stops.

    Raises:
        ValueError: A folder is missing or is no class, nothing is usable, or ``on_error`` is ``raise`` and
            something is not.
    """
    folder = Path(root) / split
    names = list(classes) if classes is not None else _folders(Path(root) / classes_of)
    if num_classes is not None and len(names) != num_classes:
        raise ValueError(f"{root}: {len(names)} classes ({', '.join(names[:6])} ...), expected {num_classes}")
    strange = [name for name in _folders(folder) if name not in names]
    if strange:
        raise ValueError(
            f"{folder}: the folder {strange[0]} is none of the classes {', '.join(names[:6])} ..."
        )
    options = {"reader": "imagefolder", "folder": folder, "classes": names}
    return finish(
        str(folder), cached(cache_dir, options, lambda files: _read(folder, names, files)), on_error
    )


def _folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder (data.root/split/class/picture.jpg is wanted)")
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise ValueError(f"{folder}: no folder in it, one for each class is wanted")
    return found


def _read(folder: Path, classes: list[str], files: Files) -> Annotated:
    records: list[Record] = []
    problems: list[Problem] = []
    for label, name in enumerate(classes):
        paths = files.below(folder / name)
        pictures = [path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES]
        if not pictures:
            problems.append(Problem(str(folder / name), 0, "no picture of this class", "empty", lost=False))
        for path in pictures:
            try:
                height, width = files.image(path).size
            except (OSError, ValueError) as error:
                problems.append(problem_of(path, error, "picture"))
                continue
            records.append(Record(str(path.relative_to(folder)), str(path), _whole(height, width, label)))
    return Annotated(records, classes, problems)


def _whole(height: int, width: int, label: int) -> Truth:
    box = np.array([[0, 0, width, height]], np.float32)
    no = np.zeros(1, np.bool_)
    return Truth(box, np.array([label], np.int64), crowd=no, difficult=no, area=box[:, 2] * box[:, 3])
