"""Darknet: a ``.data`` file with lists and a names file, or a list and a names file."""

from collections.abc import Sequence
from pathlib import Path

from yolo.data.formats.annotated import Annotated, OnError, Problem, class_list, finish
from yolo.data.formats.rows import pictures_of_list, records_of
from yolo.data.formats.text import check_count, lines_of, read_names, read_text

Names = str | Path | Sequence[str]


def read_darknet(
    source: str | Path,
    names: Names | None = None,
    split: str = "train",
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    allow_outside: bool = False,
    on_error: OnError = "skip",
) -> Annotated:
    """Read a Darknet data set; labels as in :func:`yolo.data.formats.yolo.read_yolo`.

    Darknet takes relative paths from the folder it was started in. Here they are looked for below the folder
    of the file that names them, then below the folder above it, then below the current one.

    Args:
        source: A ``.data`` file (``classes``, ``train``, ``valid``, ``names``) or a list of pictures.
        names: A names file, or the names; a ``.data`` file names its own.
        split: ``train`` or ``valid`` (``val`` and ``test`` mean the same) of a ``.data`` file.
        classes: The names that are expected; as many as there are in the names file.
        num_classes: How many are expected.
        allow_outside: Whether lists may name files outside those folders.
        on_error: ``skip`` leaves out what cannot be used and lists it, ``raise`` stops.

    Raises:
        ValueError: A file is missing or contradicts another, nothing is usable, or ``on_error`` is ``raise``
            and something is not.
    """
    path = Path(source)
    problems: list[Problem] = []
    listing = path
    if path.suffix.lower() == ".data":
        options = read_options(path)
        key = {"val": "valid", "test": "valid"}.get(split, split)
        if key not in options:
            raise ValueError(f"{path}: no {key!r} in it, it has {sorted(options)}")
        listing = _beside(path, options[key])
        if names is None and "names" in options:
            names = _beside(path, options["names"])
        count = options.get("classes")
        if count is not None and not count.isdigit():
            raise ValueError(f"{path}: classes must be a number, got {count!r}")
        if isinstance(names, Path) and count is not None:
            check_count(read_names(names), int(count), f"{names} (and {path})")
    elif not path.is_file():
        raise ValueError(f"{path}: no such list of pictures (data.root says where the data lies)")
    found = read_names(names) if isinstance(names, str | Path) else names
    if found is None and classes is None:
        raise ValueError(f"{path}: class names are needed (names: a file with one a line, or a list)")
    where = names if isinstance(names, str | Path) else path
    if found is not None:
        check_count(found, None if classes is None else len(classes), where)
    listed = class_list(classes, found or (), where)
    check_count(listed, num_classes, where)
    bases = list(dict.fromkeys((listing.parent, listing.parent.parent, Path.cwd())))
    pictures = pictures_of_list(listing, bases, problems, allow_outside=allow_outside)
    records = records_of(pictures, len(listed), problems)
    return finish(str(listing), Annotated(records, listed, problems), on_error)


def read_options(path: str | Path) -> dict[str, str]:
    """The ``key = value`` lines of a ``.data`` file; ``#`` and ``;`` start comments.

    Raises:
        ValueError: A line is something else.
    """
    options: dict[str, str] = {}
    for number, line in lines_of(read_text(path)):
        text = line.strip()
        if text[0] in "#;":
            continue
        key, sign, value = text.partition("=")
        if not sign or text.startswith("["):
            hint = "a network description (.cfg)" if text.startswith("[") else repr(text[:40])
            raise ValueError(f"{path}:{number}: wanted key = value of a Darknet .data file, found {hint}")
        options[key.strip()] = value.strip()
    return options


def _beside(path: Path, entry: str) -> Path:
    """A file that a ``.data`` file names."""
    bases = (path.parent, path.parent.parent, Path.cwd())
    for base in bases:
        candidate = base / entry.replace("\\", "/")
        if candidate.is_file():
            return candidate
    raise ValueError(f"{path}: it names {entry}, which is not below {path.parent}")
