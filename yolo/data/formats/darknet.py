"""Darknet: a ``.data`` file with lists and a names file, or a list and a names file."""

from collections.abc import Sequence
from pathlib import Path

from yolo.data.formats.annotated import Annotated, OnError, Problem, finish
from yolo.data.formats.files import Files, cached
from yolo.data.formats.plain_yaml import class_names
from yolo.data.formats.rows import pictures_of_list, records_of
from yolo.data.formats.text import agree, check_count, find_file, lines_of, read_text
from yolo.looks import looks_like

Names = str | Path | Sequence[str]


def read_darknet(
    source: str | Path,
    names: Names | None = None,
    split: str = "train",
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    allow_outside: bool = False,
    cache_dir: str | Path | None = None,
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
        cache_dir: Keeps what was read for the next start.
        on_error: ``skip`` leaves out what cannot be used and lists it, ``raise`` stops.

    Raises:
        ValueError: A file is missing or contradicts another, nothing is usable, or ``on_error`` is ``raise``
            and something is not.
    """
    path = Path(source)
    listing = path
    if path.suffix.lower() == ".data":
        listing, names = _read_data(path, split, names, allow_outside)
    elif not path.is_file():
        raise ValueError(f"{path}: no such list of pictures (data.root says where the data lies)")
    found = class_names(names) if isinstance(names, str | Path) else names
    listed = agree(found, classes, num_classes, names if isinstance(names, str | Path) else path)
    bases = list(dict.fromkeys((listing.parent, listing.parent.parent, Path.cwd())))
    options = {
        "reader": "darknet",
        "list": listing,
        "bases": bases,
        "classes": listed,
        "outside": allow_outside,
    }

    def build(files: Files) -> Annotated:
        problems: list[Problem] = []
        pictures = pictures_of_list(listing, bases, files, problems, allow_outside=allow_outside)
        return Annotated(records_of(pictures, len(listed), files, problems), listed, problems)

    return finish(str(listing), cached(cache_dir, options, build), on_error)


def _read_data(path: Path, split: str, names: Names | None, allow_outside: bool) -> tuple[Path, Names | None]:
    """List and names of a ``.data`` file."""
    options = read_options(path)
    key = {"val": "valid", "test": "valid"}.get(split, split)
    if names is None and "names" in options:
        names = _beside(path, options["names"], allow_outside)
        count = options.get("classes")
        if count is not None and not count.isdecimal():
            raise ValueError(f"{path}: classes must be a number, got {count!r}")
        check_count(class_names(names), None if count is None else int(count), f"{names} (and {path})")
    if key not in options:
        raise ValueError(f"{path}: no {key!r} in it, it has {sorted(options)}")
    return _beside(path, options[key], allow_outside), names


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
            raise ValueError(
                f"{path}:{number}: wanted key = value of a Darknet .data file, found {text[:40]!r}; "
                f"the file looks like {looks_like(path)}"
            )
        options[key.strip()] = value.strip()
    return options


def _beside(path: Path, entry: str, allow_outside: bool) -> Path:
    """A file that a ``.data`` file names."""
    refusal = None
    for base in (path.parent, path.parent.parent, Path.cwd()):
        try:
            found = find_file(base, entry, allow_outside=allow_outside)
        except ValueError as error:
            refusal = refusal or error
            continue
        if found is not None:
            return found
    if refusal is not None:
        raise ValueError(f"{path}: {refusal} (allow_outside=true permits it)")
    raise ValueError(f"{path}: it names {entry}, which is not below {path.parent}")
