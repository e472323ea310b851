"""Text files as people write them: byte-order marks, CR, blanks at line ends, odd separators in paths."""

import codecs
import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from yolo.looks import EMPTY, PLAIN, kind_of

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif", ".mpo"}
)


def decode_text(data: bytes, where: str | Path) -> str:
    """UTF-8 with or without a byte-order mark, or UTF-16 with one.

    Raises:
        ValueError: It is neither.
    """
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        kind = kind_of(data[:4096])
        if kind != PLAIN:
            raise ValueError(f"{where}: wanted text, this looks like {kind}") from error
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{where}:{line}: not {encoding} text ({error.reason}), save the file as UTF-8"
        ) from error


def read_text(path: str | Path) -> str:
    """A text file, whatever its byte-order mark and line ends.

    Raises:
        ValueError: It is not there or not text.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        folder = Path(path).parent
        why = error.strerror if folder.is_dir() else f"there is no folder {folder}"
        raise ValueError(f"{path}: cannot be read: {why}") from error
    return decode_text(data, path)


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers; CR and LF both end one, blanks around are kept."""
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        if line.strip(" \t\x00\ufeff"):
            yield number, line


def read_names(path: str | Path) -> list[str]:
    """Class names, one a line, blanks inside kept; blank lines at the end are ignored.

    Raises:
        ValueError: The file is missing or empty, or has a blank line between names.
    """
    names: list[str] = []
    text = read_text(path)
    check_kind(path, text, "class names, one a line", PLAIN)
    for number, line in lines_of(text):
        if number != len(names) + 1:
            raise ValueError(f"{path}:{len(names) + 1}: a blank line between class names would shift the ids")
        names.append(line.strip())
    if not names:
        raise ValueError(f"{path}: no class names in it")
    return names


def check_kind(path: str | Path, text: str, wanted: str, *kinds: str) -> None:
    """Raise ValueError, with what it looks like, if the text of a file is none of ``kinds`` and not empty."""
    kind = kind_of(text[:4096].encode("utf-8", "replace"))
    if kind not in (*kinds, EMPTY):
        raise ValueError(f"{path}: wanted {wanted}, this looks like {kind}")


def class_list(given: Sequence[str] | None, found: Sequence[str], where: str | Path) -> list[str]:
    """The given classes, checked; or the found ones where none were given.

    Raises:
        ValueError: A name is empty or occurs twice.
    """
    names = list(found if given is None else given)
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise ValueError(
                f"{where}: class {index} is {name!r} and not text: YAML and the command line turn words such as "
                f"no, on, null and 007 into other things, put the name in quotes"
            )
        if not name.strip():
            raise ValueError(f"{where}: class {index} has an empty name")
        if name in names[:index]:
            raise ValueError(
                f"{where}: class name {name!r} stands twice, as {names.index(name)} and as {index}"
            )
    return names


def check_count(names: Sequence[str], num_classes: int | None, where: str | Path) -> None:
    """Raise ValueError, with both numbers, if there are not ``num_classes`` names."""
    if num_classes is not None and len(names) != num_classes:
        raise ValueError(f"{where}: {len(names)} class names, but the number of classes is {num_classes}")


def agree(
    found: Sequence[str] | None, wanted: Sequence[str] | None, num_classes: int | None, where: str | Path
) -> list[str]:
    """The class names that hold: the wanted ones, or those of the data; all counts must be the same.

    Raises:
        ValueError: There are none, one is empty or stands twice, or two counts differ.
    """
    if found is None and wanted is None:
        raise ValueError(f"{where}: class names are needed (names: a file with one a line, or a list)")
    if found is not None:
        check_count(found, None if wanted is None else len(wanted), where)
    names = class_list(wanted, found or (), where)
    check_count(names, num_classes, where)
    return names


def find_file(base: Path, entry: str, *, allow_outside: bool = False) -> Path | None:
    """The file that ``entry``, a path from a data file, stands for; None when there is none.

    Both separators are understood; a name is tried without the blanks at its ends, then with them, then in
    the composed and decomposed Unicode forms.

    Raises:
        ValueError: The path leaves ``base`` (checked by its text: links inside are the user's own).
    """
    for text in dict.fromkeys((entry.strip(), entry.rstrip("\r\n"))):
        for form in dict.fromkeys((text, text.replace("\\", "/"))):
            if not form or "\x00" in form:
                continue
            path = inside(base, form, allow_outside=allow_outside)
            for name in dict.fromkeys(
                (str(path), *(unicodedata.normalize(kind, str(path)) for kind in ("NFC", "NFD")))
            ):
                if os.path.isfile(name):  # noqa: PTH113 - a third of the time of pathlib's, and lists are long
                    return Path(name)
    return None


def inside(base: Path, entry: str, *, allow_outside: bool = False) -> Path:
    """``base / entry``.

    Raises:
        ValueError: The path leaves ``base``.
    """
    path = os.path.normpath(os.path.join(base, entry))  # noqa: PTH118 - as above
    root = os.path.normpath(base)
    if not allow_outside and path != root and not path.startswith(root.rstrip(os.sep) + os.sep):
        raise ValueError(f"{entry} leads out of {base}, which is refused")
    return Path(path)


def relative_name(path: Path, root: Path) -> str:
    """The path below ``root`` with forward slashes; the whole path when it is not below."""
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.as_posix()


def label_candidates(image: Path) -> list[Path]:
    """Where the label file of a picture may lie: below ``labels`` in the place of ``images``, or beside it.

    Only a whole folder name is swapped, the last one of its kind; only the last suffix is replaced.
    """
    parts = list(PurePosixPath(image.as_posix()).parts)
    beside = image.with_suffix(".txt")
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] in ("images", "JPEGImages"):
            swapped = Path(*parts[:index], "labels", *parts[index + 1 :]).with_suffix(".txt")
            return [swapped, beside]
    return [beside]
