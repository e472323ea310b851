"""A data set to examine: one reader per split, from a config or from a path alone."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from yolo.data import Annotated, read_coco, read_darknet, read_published, read_voc, read_yolo
from yolo.data.formats.darknet import read_options
from yolo.data.formats.plain_yaml import read_plain_yaml

Reader = partial[Annotated]
SPLITS = ("train", "val", "test")
NAMES = {"valid": "val", "validation": "val"}  # what others call our splits
NAMES_FILES = ("names.txt", "classes.txt", "obj.names")
DATA_FILES = ("data.yaml", "dataset.yaml", "data.yml", "dataset.yml")


def splits_of(parts: Mapping[str, Any]) -> dict[str, Reader]:
    """The readers of an instantiated data config; a split that is another one once more is left out."""
    readers: dict[str, Reader] = {}
    for name in SPLITS:
        reader = parts.get(name)
        if isinstance(reader, partial) and not any(_same(reader, other) for other in readers.values()):
            readers[name] = reader
    return readers


def _same(one: Reader, other: Reader) -> bool:
    return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)


def innermost(reader: Reader) -> Reader:
    """The reader of the files, without what may fetch them."""
    return innermost(reader.keywords["reader"]) if reader.func is read_published else reader


def changed(reader: Reader, **options: Any) -> Reader:
    """The reader with other options, of which those are taken that it has."""
    if reader.func is read_published:
        return partial(reader, reader=changed(reader.keywords["reader"], **options))
    known = inspect.signature(reader.func).parameters
    return partial(reader, **{name: value for name, value in options.items() if name in known})


AFRESH = {"num_classes": None, "cache_dir": None, "on_error": "skip"}


def read_all(
    readers: Mapping[str, Reader], refuse: Callable[[str, Exception], object] | None = None
) -> dict[str, Annotated]:
    """Read every split, without a cache, and number the classes of all alike.

    Args:
        readers: One per split.
        refuse: Takes the name of a split that cannot be read, and why; None raises it.

    Raises:
        ValueError: A split cannot be read.
    """
    parts: dict[str, Annotated] = {}
    for split, reader in readers.items():
        try:
            parts[split] = changed(reader, cache_dir=None, on_error="skip")()
        except (ValueError, OSError) as error:
            if refuse is None:
                raise
            refuse(split, error)
    classes = list(dict.fromkeys(name for part in parts.values() for name in part.classes))
    for split, part in parts.items():
        if part.classes != classes:  # each has named its own
            parts[split] = changed(readers[split], classes=classes, **AFRESH)()
    return parts


def open_source(path: str | Path, *, allow_outside: bool = False) -> dict[str, Reader]:
    """Find out what a path holds.

    Args:
        path: A ``dataset.yaml`` (``path``, ``train``, ``val``, ``names``), a Darknet ``.data`` file, a COCO
            JSON file beside its pictures; or a folder with one of these, with a names file and
            ``images/SPLIT`` or ``SPLIT.txt``, with ``ImageSets/Main``, with XML files, or with folders of such.
        allow_outside: Whether its files may name pictures outside their folder.

    Raises:
        ValueError: It is none of these.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        return _folder(place, allow_outside)
    if not place.is_file():
        raise ValueError(f"{place}: no such file or folder")
    readers: dict[str, Reader] = {}
    if place.suffix.lower() in (".yaml", ".yml"):
        found = read_plain_yaml(place)
        for key in (*SPLITS, "valid"):
            if found.get(key):
                readers[NAMES.get(key, key)] = partial(
                    read_yolo, source=place, split=key, allow_outside=allow_outside
                )
    elif place.suffix.lower() == ".data":
        for key in ("train", "valid"):
            if key in read_options(place):
                readers[NAMES.get(key, key)] = partial(
                    read_darknet, source=place, split=key, allow_outside=allow_outside
                )
    elif place.suffix.lower() == ".json":
        readers[_split_name(place.stem)] = partial(read_coco, annotations=place)
    if not readers:
        raise ValueError(f"{place}: wanted a dataset.yaml with train or val, a .data file or a COCO .json")
    return readers


def _folder(folder: Path, allow_outside: bool) -> dict[str, Reader]:
    for name in DATA_FILES:
        if (folder / name).is_file():
            return open_source(folder / name, allow_outside=allow_outside)
    data = sorted(folder.glob("*.data"))
    if len(data) == 1:
        return open_source(data[0], allow_outside=allow_outside)
    texts = _texts(folder, allow_outside)
    if texts:
        return texts
    lists = {path.stem: path for path in sorted((folder / "ImageSets" / "Main").glob("*.txt"))}
    chosen = [
        name for name in (*SPLITS, "valid", *(("trainval",) if "train" not in lists else ())) if name in lists
    ]
    if chosen:
        return _ordered({_split_name(name): partial(read_voc, root=folder, split=name) for name in chosen})
    found: dict[str, Reader] = {}
    for part in [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]:
        name = "all" if part == folder else _split_name(part.name)
        sheets = sorted(part.glob("*.json"))
        if len(sheets) == 1:
            found[name] = partial(read_coco, annotations=sheets[0])
        elif next(part.glob("*.xml"), None) or (part / "Annotations").is_dir():
            split = None if part == folder else part.name
            found[name] = partial(read_voc, root=folder, split=split)
    if not found:
        raise ValueError(
            f"{folder}: no data set is recognised in it (looked for {', '.join(DATA_FILES)}, a .data file, "
            "names.txt with images/train, ImageSets/Main, and .json or .xml files there and in its folders); "
            "data=... says what it is"
        )
    return _ordered(found)


def _texts(folder: Path, allow_outside: bool) -> dict[str, Reader]:
    """YOLO txt by its places: a names file, and ``images/SPLIT`` or ``SPLIT.txt``."""
    names = next((folder / name for name in NAMES_FILES if (folder / name).is_file()), None)
    found: dict[str, Reader] = {}
    for key in (*SPLITS, "valid") if names is not None else ():
        for source in (folder / "images" / key, folder / f"{key}.txt"):
            if source.exists() and NAMES.get(key, key) not in found:
                found[NAMES.get(key, key)] = partial(
                    read_yolo, source=source, names=names, allow_outside=allow_outside
                )
    return found


def _split_name(name: str) -> str:
    """``instances_val2017`` is ``val``."""
    for known in ("train", "valid", "val", "test"):
        if known in name.lower():
            return NAMES.get(known, known)
    return name


def _ordered(readers: dict[str, Reader]) -> dict[str, Reader]:
    return {name: readers[name] for name in sorted(readers, key=lambda name: (*SPLITS, name).index(name))}
