"""YOLO txt: pictures from a folder, a list or a dataset.yaml, a label file beside each."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from yolo.data.formats.annotated import Annotated, OnError, Problem, finish
from yolo.data.formats.files import Files, cached
from yolo.data.formats.plain_yaml import Plain, class_names, names_of, read_plain_yaml
from yolo.data.formats.rows import pictures_of_folder, pictures_of_list, records_of
from yolo.data.formats.text import agree, inside

Names = str | Path | Sequence[str]


def read_yolo(
    source: str | Path | Sequence[str | Path],
    names: Names | None = None,
    split: str | None = None,
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    allow_outside: bool = False,
    cache_dir: str | Path | None = None,
    on_error: OnError = "skip",
) -> Annotated:
    """Read YOLO txt labels.

    A label file has the name of its picture with the suffix ``.txt`` and lies in the folder ``labels`` that
    stands for the last folder ``images`` of the path, or beside the picture. Rows are ``class cx cy width
    height``, parts of the picture as it is shown, or ``class`` and the points of a polygon, of which the box
    around is taken. As in Darknet a row whose centre is not within 0 < c <= 1 is no object; sizes over 1 are
    cut to 1.

    Args:
        source: A folder of pictures, a list of them (``.txt``), several of these, or a ``dataset.yaml`` of
            the YOLO world, which is read as text: nothing in it is executed.
        names: A names file (one a line, or a YAML file with ``names``), or the names; a dataset.yaml has its
            own.
        split: ``train``, ``val`` or ``test`` of a dataset.yaml.
        classes: The names that are expected; as many as there are in ``names``.
        num_classes: How many are expected.
        allow_outside: Whether lists may name files outside their folder.
        cache_dir: Keeps what was read for the next start.
        on_error: ``skip`` leaves out what cannot be used and lists it, ``raise`` stops.

    Raises:
        ValueError: A file is missing or contradicts another, nothing is usable, or ``on_error`` is ``raise``
            and something is not.
    """
    problems: list[Problem] = []
    sources = [Path(part) for part in ([source] if isinstance(source, str | Path) else source)]
    where = ", ".join(map(str, sources))
    found: Sequence[str] | None = None
    if len(sources) == 1 and sources[0].suffix.lower() in (".yaml", ".yml"):
        where = f"{where} {split}"
        found, sources = _read_yaml(sources[0], split, allow_outside, problems)
    if names is not None:
        found = class_names(names) if isinstance(names, str | Path) else list(names)
    listed = agree(found, classes, num_classes, names if isinstance(names, str | Path) else where)
    for part in sources:
        if not part.exists():
            raise ValueError(
                f"{part}: no such folder or list of pictures (data.root says where the data lies)"
            )
    options = {"reader": "yolo", "sources": sources, "classes": listed, "allow_outside": allow_outside}
    result = cached(cache_dir, options, lambda files: _read(sources, listed, allow_outside, files))
    return finish(where, replace(result, problems=problems + result.problems), on_error)


def _read(sources: list[Path], classes: list[str], allow_outside: bool, files: Files) -> Annotated:
    problems: list[Problem] = []
    pictures = []
    for part in sources:
        if part.is_dir():
            pictures += pictures_of_folder(part, files)
        else:
            pictures += pictures_of_list(part, [part.parent], files, problems, allow_outside=allow_outside)
    return Annotated(records_of(pictures, len(classes), files, problems), classes, problems)


def _read_yaml(
    path: Path, split: str | None, allow_outside: bool, problems: list[Problem]
) -> tuple[list[str], list[Path]]:
    """Names and sources of a dataset.yaml; ``download`` in it, a script, is left alone."""
    data = read_plain_yaml(path)
    if "download" in data:
        message = "download is left alone: nothing from a data file is executed"
        problems.append(Problem(str(path), 0, message, "download", lost=False))
    names = names_of(data.get("names"), path)
    count = data.get("nc")
    if isinstance(count, str) and count.strip() != str(len(names)):
        raise ValueError(f"{path}: {len(names)} class names, but nc is {count}")
    wanted = data.get(split or "")
    parts: list[Plain] = wanted if isinstance(wanted, list) else [wanted] if wanted else []
    if not parts:
        known = [key for key in ("train", "val", "test") if data.get(key)]
        raise ValueError(f"{path}: no split {split!r} in it, it has {known}")
    root = data.get("path", "")
    base = inside(path.parent, root if isinstance(root, str) else "", allow_outside=allow_outside)
    if root and not base.is_dir():
        raise ValueError(f"{path}: the folder {base} (path: {root}) does not exist, the pictures are missing")
    return names, [inside(base, str(part).replace("\\", "/"), allow_outside=allow_outside) for part in parts]
