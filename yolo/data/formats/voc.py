"""Pascal VOC: an XML file per picture; ImageSets, or XML files beside the pictures."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from yolo.data.formats.annotated import Annotated, Objects, OnError, Problem, finish, problem_of
from yolo.data.formats.files import Files, cached
from yolo.data.formats.text import (
    IMAGE_SUFFIXES,
    check_count,
    class_list,
    decode_text,
    find_file,
    inside,
    lines_of,
    relative_name,
)
from yolo.data.formats.xml import Node, parse_xml
from yolo.data.image import ImageInfo
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
    cache_dir: str | Path | None = None,
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
        cache_dir: Keeps what was read for the next start.
        on_error: ``skip`` leaves out what cannot be used and lists it, ``raise`` stops.

    Raises:
        ValueError: The split is not there, nothing in it is usable, or ``on_error`` is ``raise`` and
            something is not.
    """
    base = Path(root)
    splits: Sequence[str | None] = [split] if split is None or isinstance(split, str) else split
    options = {"reader": "voc", "root": base, "splits": splits, "classes": classes, "count": num_classes}
    options |= {"images": images, "annotations": annotations, "one_based": one_based}

    def build(files: Files) -> Annotated:
        problems: list[Problem] = []
        parsed: list[tuple[_Entry, Path, Node]] = []
        for name in splits:
            for entry in _entries(base, name, images, annotations, files, problems):
                opened = _open_entry(entry, files, problems)
                if opened is not None:
                    parsed.append((entry, *opened))
        found = sorted({name for _, _, tree in parsed for name in _object_names(tree)})
        names = class_list(classes, found, base)
        check_count(names, num_classes, base)
        records = _records(base, parsed, names, one_based, files, problems)
        return Annotated(records, names, problems)

    return finish(f"{base} {split or ''}".strip(), cached(cache_dir, options, build), on_error)


def _entries(
    base: Path, split: str | None, images: str, annotations: str, files: Files, problems: list[Problem]
) -> Iterator[_Entry]:
    """The pictures of a split: by a list, or by the XML files of a folder."""
    if not base.is_dir():
        raise ValueError(f"{base}: no such folder (data.root says where the data lies)")
    part, _, name = (split or "").rpartition("/")
    home = inside(base, part) if part else base
    listing = home / "ImageSets" / "Main" / f"{name}.txt"
    if split is not None and listing.is_file():
        yield from _listed(listing, home, images, annotations, files, problems)
        return
    folder = inside(base, split) if split else base
    if not folder.is_dir():
        raise ValueError(f"{base}: split {split!r} is neither {listing} nor the folder {folder}")
    with_folders = (folder / annotations).is_dir()
    for xml in files.below(folder / annotations if with_folders else folder):
        if xml.suffix.lower() == ".xml":
            yield _Entry(xml, folder / images if with_folders else xml.parent, xml.stem, (str(xml), 0))


def _listed(
    listing: Path, home: Path, images: str, annotations: str, files: Files, problems: list[Problem]
) -> Iterator[_Entry]:
    for number, line in lines_of(decode_text(files.read(listing), listing)):
        stem = line.strip()
        tokens = stem.split()
        if len(tokens) == 2 and tokens[1] in ("-1", "0", "1"):  # VOC's lists of a class have two columns
            stem = tokens[0]
        try:
            xml = inside(home / annotations, stem + ".xml")
        except ValueError as error:
            problems.append(Problem(str(listing), number, str(error), "outside-root"))
            continue
        yield _Entry(xml, home / images, stem, (str(listing), number))


def _open_entry(entry: _Entry, files: Files, problems: list[Problem]) -> tuple[Path, Node] | None:
    try:
        tree = parse_xml(files.read(entry.xml), entry.xml)
        picture = _picture(entry, tree)
    except FileNotFoundError:
        files.exists(entry.xml)
        problems.append(Problem(*entry.listed, f"no annotation {entry.xml}", "missing-label"))
    except (OSError, ValueError) as error:
        problems.append(problem_of(entry.xml, error, "unreadable-label"))
    else:
        if picture is not None:
            return picture, tree
        files.below(entry.images)
        message = f"no picture for {entry.xml.name} in {entry.images}"
        problems.append(Problem(*entry.listed, message, "missing-image"))
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


def _records(
    base: Path,
    parsed: list[tuple[_Entry, Path, Node]],
    names: list[str],
    one_based: bool,
    files: Files,
    problems: list[Problem],
) -> list[Record]:
    records: dict[str, Record] = {}
    for entry, picture, tree in parsed:
        try:
            info = files.image(picture)
        except (OSError, ValueError) as error:
            problems.append(problem_of(picture, error, "unreadable-image"))
            continue
        objects = Objects(str(entry.xml), problems, str(picture))
        for node in tree.all("object"):
            _read_object(node, objects, names, one_based)
        turned = _stored_frame(tree, info, objects)
        name = relative_name(picture, base)
        if name in records:
            message = f"{picture.name} has another annotation already, both are kept"
            objects.report(0, message, "duplicate-image", lost=False)
            name = f"{name} ({relative_name(entry.xml, base)})"
        records[name] = Record(name, str(picture), objects.truth(info, stored_frame=turned), size=info.size)
    return list(records.values())


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
