"""The label file that YOLO and Darknet share: ``class cx cy width height`` a line, parts of the picture."""

import math
from pathlib import Path

from yolo.data.formats.annotated import Objects, Problem, problem_of
from yolo.data.formats.files import Files
from yolo.data.formats.text import (
    IMAGE_SUFFIXES,
    check_kind,
    decode_text,
    find_file,
    label_candidates,
    lines_of,
    relative_name,
)
from yolo.data.image import ImageInfo
from yolo.looks import LIST, PLAIN
from yolo.types import Record


def pictures_of_list(
    listing: Path, bases: list[Path], files: Files, problems: list[Problem], *, allow_outside: bool = False
) -> list[tuple[Path, Path]]:
    """The pictures that a list file names, each with the folder that its entry starts from.

    Args:
        listing: One path a line; ``#`` starts a comment.
        bases: Folders that a relative path may start from, tried in this order.
        files: Reads the list.
        problems: Takes what is missing.
        allow_outside: Whether a path may leave those folders.
    """
    found: list[tuple[Path, Path]] = []
    seen: set[Path] = set()
    text = decode_text(files.read(listing), listing)
    check_kind(listing, text, LIST, LIST, PLAIN)
    for number, line in lines_of(text):
        refusal: ValueError | None = None
        for base in bases:
            try:
                picture = find_file(base, line, allow_outside=allow_outside)
            except ValueError as error:
                refusal = refusal or error
                continue
            if picture is not None:
                if picture in seen:
                    message = f"{line.strip()} is listed twice"
                    problems.append(Problem(str(listing), number, message, "duplicate-image", lost=False))
                else:
                    seen.add(picture)
                    found.append((picture, base))
                break
        else:
            if line.lstrip().startswith("#"):
                continue
            if refusal is not None:
                message = f"{refusal} (allow_outside=true permits it)"
                problems.append(Problem(str(listing), number, message, "outside-root"))
            else:
                files.exists(bases[0] / line.strip())
                message = f"no picture {line.strip()!r} below {bases[0]}"
                problems.append(Problem(str(listing), number, message, "missing-image"))
    return found


def pictures_of_folder(folder: Path, files: Files) -> list[tuple[Path, Path]]:
    """Every picture below a folder, sorted."""
    return [(path, folder) for path in files.below(folder) if path.suffix.lower() in IMAGE_SUFFIXES]


def records_of(
    pictures: list[tuple[Path, Path]], num_classes: int, files: Files, problems: list[Problem]
) -> list[Record]:
    """Read the labels of pictures, each given with the folder that its name is told from."""
    records = []
    for picture, base in pictures:
        try:
            info = files.image(picture)
        except (OSError, ValueError) as error:
            problems.append(problem_of(picture, error, "unreadable-image"))
            continue
        label = next((path for path in label_candidates(picture) if files.exists(path)), None)
        objects = Objects(str(label), problems, str(picture))
        if label is None:
            message = "no label file, taken as a picture without objects"
            problems.append(Problem(str(picture), 0, message, "no-label", lost=False))
        else:
            try:
                text = decode_text(files.read(label), label)
            except (OSError, ValueError) as error:
                problems.append(problem_of(label, error, "unreadable-label"))
                continue
            for number, line in lines_of(text):
                _read_row(line, number, objects, num_classes, info)
        records.append(
            Record(relative_name(picture, base), str(picture), objects.truth(info), size=info.size)
        )
    return records


def _read_row(line: str, number: int, objects: Objects, num_classes: int, info: ImageInfo) -> None:
    tokens = line.split()
    if tokens[0].startswith("#"):
        return
    try:
        label, box = _parse(tokens, num_classes)
    except ValueError as error:
        objects.report(number, str(error), "row")
        return
    if not 0 <= label < num_classes:
        objects.report(number, f"class {tokens[0]}, valid ids are 0 to {num_classes - 1}", "class")
        return
    cx, cy, width, height = box
    if not (0 < cx <= 1 and 0 < cy <= 1):  # Darknet's rule
        hint = "; the values look like pixels" if max(box) > 2 else ""
        objects.report(number, f"centre ({cx:.7g}, {cy:.7g}) is not within 0 to 1{hint}", "outside")
        return
    if width > 1 or height > 1:
        objects.report(
            number, f"size ({width:.7g}, {height:.7g}) is over 1, cut to it", "clipped", lost=False
        )
        width, height = min(width, 1.0), min(height, 1.0)
    rows, cols = info.size
    x1, y1 = (cx - width / 2) * cols, (cy - height / 2) * rows
    objects.add((x1, y1, x1 + width * cols, y1 + height * rows), int(label), number)


def _parse(tokens: list[str], num_classes: int) -> tuple[float, tuple[float, float, float, float]]:
    """Class and box of a row; the box around the polygon if it is one."""
    values = [_number(token) for token in tokens]
    if not values[0].is_integer():
        raise ValueError(f"the class must be a whole number from 0 to {num_classes - 1}, got {tokens[0]!r}")
    if len(values) == 5:
        cx, cy, width, height = values[1:]
        if width <= 0 or height <= 0:
            raise ValueError(f"width and height must be positive, got {width:.7g} and {height:.7g}")
        return values[0], (cx, cy, width, height)
    if len(values) >= 7 and len(values) % 2:
        xs, ys = [[min(max(value, 0.0), 1.0) for value in values[start::2]] for start in (1, 2)]
        if min(xs) == max(xs) or min(ys) == max(ys):
            raise ValueError(f"the polygon of {len(xs)} points has no area")
        width, height = max(xs) - min(xs), max(ys) - min(ys)
        return values[0], ((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2, width, height)
    raise ValueError(f"{len(values)} columns, wanted class cx cy width height (5), or class and a polygon")


def _number(token: str) -> float:
    try:
        value = float(token) if "_" not in token else math.nan
    except ValueError:
        hint = " (columns are separated by blanks, not by commas)" if "," in token else ""
        raise ValueError(f"{token!r} is not a number{hint}") from None
    if not math.isfinite(value):
        raise ValueError(f"{token!r} is not a finite number")
    return value
