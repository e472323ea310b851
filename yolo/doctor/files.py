"""Files that lie in the data set and are not part of it: pictures without annotation, labels without picture."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from yolo.data import read_coco, read_voc
from yolo.data.formats.text import IMAGE_SUFFIXES, label_candidates
from yolo.doctor.findings import Finding
from yolo.doctor.source import Reader, innermost


def check_files(readers: Iterable[Reader], pictures: Iterable[str]) -> Iterator[Finding]:
    """Look through the folders of the pictures and of their labels.

    Args:
        readers: Of all splits.
        pictures: Every picture that a split knows, also those that could not be read.
    """
    inner = [innermost(reader) for reader in readers]
    known = {Path(path) for path in pictures}
    folders = sorted({path.parent for path in known})
    lying = {folder: _files(folder) for folder in folders}
    left = [
        path
        for files in lying.values()
        for path in files
        if path.suffix.lower() in IMAGE_SUFFIXES and path not in known
    ]
    if any(reader.func is read_voc for reader in inner):
        yield from _xml(inner, folders, known, left)
    elif inner and all(reader.func is read_coco for reader in inner):
        for path in left:
            yield Finding("unlabelled", "", "in no annotation file", str(path), picture=str(path))
    else:
        yield from _txt(known, left)


def _xml(inner: list[Reader], folders: list[Path], known: set[Path], left: list[Path]) -> Iterator[Finding]:
    homes = {str(reader.keywords.get("annotations", "Annotations")) for reader in inner}
    sheets = {
        (folder, path.stem): path
        for folder in folders
        for home in (folder, *(folder.parent / name for name in sorted(homes)))
        for path in _files(home)
        if path.suffix.lower() == ".xml"
    }
    for path in left:
        if (path.parent, path.stem) in sheets:
            yield Finding("unlisted", "", "annotated, but in no split", str(path), picture=str(path))
        else:
            yield Finding("unlabelled", "", "no XML file", str(path), picture=str(path))
    yield from _orphans(sheets, known | set(left))


def _txt(known: set[Path], left: list[Path]) -> Iterator[Finding]:
    for path in left:
        yield Finding("unlisted", "", "in no list", str(path), picture=str(path))
    every = known | set(left)
    sheets: dict[tuple[Path, str], Path] = {}
    done: set[tuple[Path, Path]] = set()
    for picture in sorted(every):
        for candidate in label_candidates(picture):
            if (picture.parent, candidate.parent) not in done:
                done.add((picture.parent, candidate.parent))
                for path in _files(candidate.parent):
                    if path.suffix.lower() == ".txt" and _has_rows(path):
                        sheets[picture.parent, path.stem] = path
    yield from _orphans(sheets, every)


def _orphans(sheets: dict[tuple[Path, str], Path], every: set[Path]) -> Iterator[Finding]:
    """Label files for which no folder has a picture; several folders may share one of labels."""
    stems = {(path.parent, path.stem) for path in every}
    served = {sheet for key, sheet in sheets.items() if key in stems}
    for path in sorted(set(sheets.values()) - served):
        yield Finding("orphan-label", "", "no picture of this name", str(path), lost=True)


def _files(folder: Path) -> list[Path]:
    """The files of one folder, sorted."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_file())


def _has_rows(path: Path) -> bool:
    """Whether a text file begins like a label file; class lists and lists of pictures often lie beside."""
    with path.open("rb") as file:
        tokens = file.readline(4096).split()
    try:
        return len([float(token) for token in tokens]) >= 5
    except ValueError:
        return False
