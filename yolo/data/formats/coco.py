"""COCO: one JSON file for a split."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from yolo.data.formats.annotated import Annotated, Objects, OnError, Problem, finish, problem_of
from yolo.data.formats.files import Files, cached
from yolo.data.formats.text import check_count, class_list, decode_text, find_file
from yolo.data.image import ImageInfo
from yolo.types import Record


def read_coco(
    annotations: str | Path | Sequence[str | Path],
    images: str | Path | None = None,
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    cache_dir: str | Path | None = None,
    on_error: OnError = "skip",
) -> Annotated:
    """Read COCO annotations.

    Categories are matched by their names: their ids may have gaps, stand in any order and differ between
    files. Boxes are x, y, width, height in pixels from 0, taken as they are. ``iscrowd`` regions are kept as
    such; an object with ``ignore`` counts as difficult.

    Args:
        annotations: The JSON file, or several that are read as one set.
        images: The folder that ``file_name`` starts from; by default the one of the JSON file.
        classes: Names in the order of our ids; None takes the categories by ascending id.
        num_classes: How many classes are expected.
        cache_dir: Keeps what was read for the next start.
        on_error: ``skip`` leaves out what cannot be used and lists it, ``raise`` stops.

    Raises:
        ValueError: A file is no COCO file, nothing in it is usable, or ``on_error`` is ``raise`` and
            something is not.
    """
    paths = [Path(part) for part in ([annotations] if isinstance(annotations, str | Path) else annotations)]
    options = {"reader": "coco", "files": paths, "images": images, "classes": classes, "count": num_classes}

    def build(files: Files) -> Annotated:
        return _read(paths, images, classes, num_classes, files)

    return finish(", ".join(map(str, paths)), cached(cache_dir, options, build), on_error)


def _read(
    paths: list[Path],
    images: str | Path | None,
    classes: Sequence[str] | None,
    num_classes: int | None,
    files: Files,
) -> Annotated:
    problems: list[Problem] = []
    loaded = [(path, _load(path, files)) for path in paths]
    categories = [_categories(data, path) for path, data in loaded]
    where = ", ".join(map(str, paths))
    found = list(dict.fromkeys(name for one in categories for name in one))
    names = class_list(classes, found, where)
    check_count(names, num_classes, where)
    records: list[Record] = []
    for (path, data), ids in zip(loaded, categories, strict=True):
        base = path.parent if images is None else Path(images)
        several = len(paths) > 1
        records += _records(data, path, base, ids, names, files, problems, several=several)
    ids_in_first = tuple(categories[0].get(name, -1) for name in names)
    return Annotated(records, names, problems, ids_in_first)


def _records(
    data: Mapping[str, Any],
    path: Path,
    base: Path,
    categories: Mapping[str, int],
    names: Sequence[str],
    files: Files,
    problems: list[Problem],
    *,
    several: bool,
) -> list[Record]:
    """The pictures of one file; with several files their folders tell the pictures apart."""
    labels = {categories[name]: label for label, name in enumerate(names) if name in categories}
    outside = {number: name for name, number in categories.items() if number not in labels}
    entries = _images(data, path, problems)
    by_image = _by_image(data, path, set(entries), problems)
    if not base.is_dir():
        raise ValueError(f"{base}: no such folder of pictures (data.root says where the data lies)")
    records = []
    for number, entry in entries.items():
        picture = _picture(base, entry, path, files, problems)
        if picture is None:
            continue
        objects = Objects(str(path), problems, str(picture[0]))
        for row in by_image.get(number, ()):
            _add(row, objects, labels, outside)
        height, width = entry.get("height"), entry.get("width")
        turned = False
        if _number(height) and _number(width):
            turned = objects.stated_size(0, float(height), float(width), picture[1])
        name = f"{base.name}/{entry['file_name']}" if several else entry["file_name"]
        truth = objects.truth(picture[1], stored_frame=turned)
        records.append(Record(name, str(picture[0]), truth, None if several else number, picture[1].size))
    return records


def _number(value: Any) -> TypeGuard[float]:
    """A JSON number that can be reckoned with; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _load(path: Path, files: Files) -> dict[str, Any]:
    try:
        data = json.loads(decode_text(files.read(path), path))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}; data.root says where it is") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: not COCO: nested too deeply") from error
    for key in ("images", "annotations", "categories"):
        found = data.get(key) if isinstance(data, dict) else None
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise ValueError(f"{path}: not a COCO annotation file: it has no list of objects {key!r}")
    return data


def _categories(data: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Category ids by name, by ascending id."""
    found: dict[str, int] = {}
    for row in sorted(data["categories"], key=lambda row: row["id"] if _integer(row.get("id")) else -1):
        number, name = row.get("id"), row.get("name")
        if not _integer(number) or not isinstance(name, str):
            raise ValueError(f"{path}: a category needs an id and a name, got {row}")
        if name in found or number in found.values():
            raise ValueError(f"{path}: category {number} {name!r} stands there twice")
        found[name] = number
    return found


def _images(data: Mapping[str, Any], path: Path, problems: list[Problem]) -> dict[int, dict[str, Any]]:
    entries: dict[int, dict[str, Any]] = {}
    names: dict[str, int] = {}
    for row in data["images"]:
        number, name = row.get("id"), row.get("file_name")
        if not _integer(number) or not isinstance(name, str):
            message = f"an image needs an integer id and a file_name, got id {number!r}, file_name {name!r}"
            problems.append(Problem(str(path), 0, message, "row"))
        elif number in entries or name in names:
            message = f"image {number} {name!r} has the id or the file of another"
            problems.append(Problem(str(path), 0, message, "duplicate-image"))
        else:
            entries[number] = row
            names[name] = number
    return entries


def _by_image(
    data: Mapping[str, Any], path: Path, known: set[int], problems: list[Problem]
) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in data["annotations"]:
        number = row.get("image_id")
        if _integer(number) and number in known:
            found.setdefault(number, []).append(row)
        else:
            message = f"annotation {row.get('id')!r} belongs to image {number!r}, which is not in the file"
            problems.append(Problem(str(path), 0, message, "no-image"))
    return found


def _picture(
    base: Path, entry: Mapping[str, Any], path: Path, files: Files, problems: list[Problem]
) -> tuple[Path, ImageInfo] | None:
    name = entry["file_name"]
    try:
        picture = find_file(base, name)
    except ValueError as error:
        problems.append(Problem(str(path), 0, f"image {entry['id']}: {error}", "outside-root"))
        return None
    if picture is None:
        files.exists(base / name)
        problems.append(
            Problem(str(path), 0, f"image {entry['id']}: no picture {name!r} in {base}", "missing-image")
        )
        return None
    try:
        return picture, files.image(picture)
    except (OSError, ValueError) as error:
        problems.append(problem_of(picture, error, "unreadable-image"))
        return None


def _add(
    row: Mapping[str, Any], objects: Objects, labels: Mapping[int, int], outside: Mapping[int, str]
) -> None:
    where, category, box = f"annotation {row.get('id')!r}", row.get("category_id"), row.get("bbox")
    if not isinstance(category, int) or category not in labels:
        known = isinstance(category, int) and category in outside
        text = f"{category} {outside[category]!r}" if known and isinstance(category, int) else repr(category)
        objects.report(0, f"{where}: category {text} is not one of the {len(labels)} classes", "class")
        return
    if not isinstance(box, list) or len(box) != 4 or not all(_number(value) for value in box):
        objects.report(0, f"{where}: bbox must be four numbers, got {str(box)[:60]}", "row")
        return
    x, y, width, height = (float(value) for value in box)
    area = row.get("area")
    ignore = bool(row.get("ignore", 0)) and not row.get("iscrowd", 0)
    if ignore:
        objects.report(0, f"{where}: ignore=1 is read as difficult", "ignore", lost=False)
    objects.add(
        (x, y, x + width, y + height),
        labels[category],
        0,
        crowd=bool(row.get("iscrowd", 0)),
        difficult=ignore,
        area=float(area) if _number(area) and area > 0 else math.nan,
    )
