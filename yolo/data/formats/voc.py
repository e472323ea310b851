"""Pascal VOC: an XML file per picture; ImageSets, or XML files beside the pictures."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from yolo.data.formats.annotated import Annotated, Objects, OnError, Problem, class_list, finish
from yolo.data.formats.text import (
    IMAGE_SUFFIXES,
    check_count,
    find_file,
    inside,
    lines_of,
    read_text,
    relative_name,
)
from yolo.data.formats.xml import Node, parse_xml
from yolo.data.image import ImageInfo, check_image
from yolo.types import Record

_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class _Entry(NamedTuple):
    """One picture that belongs to the split."""

    xml: Path
    images: Path  # folder of the picture
    stem: str
    listed: tuple[str, int]  # where it is asked for: file and line


def read_voc(
    root: str | Path,
    split: str | Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    images: str = "JPEGImages",
    annotations: str = "Annotations",
    one_based: bool = False,
    num_classes: int | None = None,
    on_error: OnError = "skip",
) -> Annotated:
    """Read Pascal VOC annotations.

    Corners: VOC proper counts pixels from 1 and includes the last one, so ``one_based`` turns (xmin, ymin,
    xmax, ymax) into the edges (xmin - 1, ymin - 1, xmax, ymax). Sets drawn with labelImg and its like hold
    the edges themselves, in pixels from 0: the default takes them as they are written.

    Args:
        root: The folder with ``ImageSets``, ``Annotations`` and ``JPEGImages``, or with folders of XML files
            beside their pictures.
        split: Name of a list in ``ImageSets/Main``, or of a folder of XML files; ``VOC2007/trainval`` looks
            for it below the folder ``VOC2007``; several are read one after the other; None takes every XML
            file.
        classes: Names in the order of their ids; None collects the names that occur, sorted.
        images: Name of the folder of pictures.
        annotations: Name of the folder of XML files.
        one_based: See above.
        num_classes: How many classes are expected.
        on_error: ``skip`` leaves out what cannot be used and lists it, ``raise`` stops.

    Raises:
        ValueError: The split is not there, nothing in it is usable, or ``on_error`` is ``raise`` and
            something is not.
    """
    base = Path(root)
    problems: list[Problem] = []
    parsed: list[tuple[_Entry, Path, Node]] = []
    splits: Sequence[str | None] = [split] if split is None or isinstance(split, str) else split
    for name in splits:
        for entry in _entries(base, name, images, annotations, problems):
            found = _open_entry(entry, problems)
            if found is not None:
                parsed.append((entry, *found))
    names = class_list(classes, sorted({name for _, _, tree in parsed for name in _object_names(tree)}), base)
    check_count(names, num_classes, base)
    records = []
    for entry, picture, tree in parsed:
        record = _record(base, entry, picture, tree, names, one_based, problems)
        if record is not None:
            records.append(record)
    return finish(f"{base} {split or ''}".strip(), Annotated(records, names, problems), on_error)


def _entries(
    base: Path, split: str | None, images: str, annotations: str, problems: list[Problem]
) -> Iterator[_Entry]:
    if not base.is_dir():
        raise ValueError(f"{base}: no such folder (data.root says where the data lies)")
    part, _, name = (split or "").rpartition("/")
    home = inside(base, part) if part else base
    listing = home / "ImageSets" / "Main" / f"{name}.txt"
    if split is not None and listing.is_file():
        for number, line in lines_of(read_text(listing)):
            stem = line.strip()
            tokens = stem.split()
            if len(tokens) == 2 and tokens[1] in (
                "-1",
                "0",
                "1",
            ):  # the per-class lists of VOC have a second column
                stem = tokens[0]
            try:
                xml = inside(home / annotations, stem + ".xml")
            except ValueError as error:
                problems.append(Problem(str(listing), number, str(error), "outside-root"))
                continue
            yield _Entry(xml, home / images, stem, (str(listing), number))
        return
    folder = inside(base, split) if split else base
    if split is not None and not folder.is_dir():
        raise ValueError(f"{base}: split {split!r} is neither {listing} nor the folder {folder}")
    if (folder / annotations).is_dir():
        for xml in sorted((folder / annotations).rglob("*.xml")):
            yield _Entry(xml, folder / images, xml.stem, (str(xml), 0))
        return
    for xml in sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".xml"):
        yield _Entry(xml, xml.parent, xml.stem, (str(xml), 0))


def _open_entry(entry: _Entry, problems: list[Problem]) -> tuple[Path, Node] | None:
    try:
        tree = parse_xml(entry.xml.read_bytes(), entry.xml)
        picture = _picture(entry, tree)
    except FileNotFoundError:
        problems.append(Problem(*entry.listed, f"no annotation {entry.xml}", "missing-label"))
    except (OSError, ValueError) as error:
        problems.append(
            Problem(str(entry.xml), 0, str(error).removeprefix(f"{entry.xml}: "), "unreadable-label")
        )
    else:
        if picture is not None:
            return picture, tree
        problems.append(
            Problem(*entry.listed, f"no picture for {entry.xml.name} in {entry.images}", "missing-image")
        )
    return None


def _picture(entry: _Entry, tree: Node) -> Path | None:
    """The picture with the name of the XML file, else the one that the file names."""
    for suffix in (".jpg", ".JPG", ".jpeg", ".png"):
        path = entry.images / (entry.stem + suffix)
        if path.is_file():
            return path
    named = tree.value("filename")
    if named:
        found = find_file(entry.images, named)
        if found is not None and found.suffix.lower() in IMAGE_SUFFIXES:
            return found
    for path in sorted(entry.images.glob("*")):
        if path.stem == Path(entry.stem).name and path.suffix.lower() in IMAGE_SUFFIXES:
            return path
    return None


def _object_names(tree: Node) -> Iterator[str]:
    return (node.value("name") for node in tree.all("object") if node.value("name"))


def _record(
    base: Path,
    entry: _Entry,
    picture: Path,
    tree: Node,
    names: list[str],
    one_based: bool,
    problems: list[Problem],
) -> Record | None:
    try:
        info = check_image(picture)
    except (OSError, ValueError) as error:
        problems.append(Problem(str(picture), 0, str(error).removeprefix(f"{picture}: "), "unreadable-image"))
        return None
    objects = Objects(str(entry.xml), problems)
    for node in tree.all("object"):
        _read_object(node, objects, names, one_based)
    turned = _stored_frame(tree, info, objects)
    return Record(relative_name(picture, base), str(picture), objects.truth(info, stored_frame=turned))


def _read_object(node: Node, objects: Objects, names: list[str], one_based: bool) -> None:
    name = node.value("name")
    if name not in names:
        objects.report(node.line, f"class {name!r} is not one of the {len(names)} classes {names}", "class")
        return
    corners = node.all("bndbox")
    if not corners:
        objects.report(node.line, f"object {name!r} has no bndbox", "row")
    for box in corners:  # an annotation tool put several into one object
        try:
            x1, y1, x2, y2 = (float(box.value(tag).replace("_", "?")) for tag in _CORNERS)
        except ValueError:
            texts = {tag: box.value(tag) for tag in _CORNERS}
            objects.report(box.line, f"corners must be numbers, got {texts}", "row")
            continue
        if one_based:
            x1, y1 = x1 - 1, y1 - 1
        difficult = node.value("difficult", "0") not in ("", "0")
        objects.add((x1, y1, x2, y2), names.index(name), box.line, difficult=difficult)


def _stored_frame(tree: Node, info: ImageInfo, objects: Objects) -> bool:
    """Whether the size that the XML file states is the one before the EXIF turn."""
    size = tree.find("size")
    if size is None:
        return False
    try:
        height, width = float(size.value("height", "0")), float(size.value("width", "0"))
    except ValueError:
        return False
    return objects.stated_size(size.line, height, width, info)
