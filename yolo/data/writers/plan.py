"""What a format can hold, and where the pictures of a new set go."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yolo.data.formats.annotated import Annotated
from yolo.data.image import image_size
from yolo.types import Record, Truth

Format = Literal["yolo", "coco", "voc", "darknet"]


@dataclass(frozen=True)
class Options:
    """How a set is written.

    Args:
        link: Hard links to the pictures where the file system allows it, instead of copies.
        keep_flagged: YOLO and Darknet know neither difficult objects nor crowds: write them as plain objects; they
            are left out otherwise, as training leaves them out.
        one_based: VOC: corners count pixels from 1 and include the last one, as in VOC proper; otherwise they are
            the edges in pixels from 0, as labelImg writes them.
        round_corners: VOC: whole numbers.
    """

    link: bool = False
    keep_flagged: bool = False
    one_based: bool = False
    round_corners: bool = False


class Entry(NamedTuple):
    """One picture of the new set."""

    record: Record  # as it was read
    truth: Truth  # what the format can hold of it
    name: str  # file name, unique in the set
    size: tuple[int, int]  # height, width as shown, pixels


@dataclass(frozen=True)
class Plan:
    """A set, ready to be written."""

    root: Path
    classes: list[str]
    splits: dict[str, list[Entry]]
    category_ids: tuple[int, ...]
    options: Options
    losses: list[str] = field(default_factory=list)  # what the new set does not hold, in words

    def place(self, entry: Entry, folder: Path) -> None:
        """Put the picture of an entry into a folder of the new set."""
        target = folder / entry.name
        if target.exists():  # a picture of two splits that share a folder
            return
        folder.mkdir(parents=True, exist_ok=True)
        if self.options.link:
            try:
                target.hardlink_to(Path(entry.record.path).resolve())
            except OSError:  # another file system
                shutil.copyfile(entry.record.path, target)
        else:
            shutil.copyfile(entry.record.path, target)


def make_plan(parts: Mapping[str, Annotated], form: Format, root: Path, options: Options) -> Plan:
    """Decide names and what can be held; nothing is written.

    Raises:
        ValueError: The folder has something in it, or there is nothing to write.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ValueError(f"{root} exists and is not an empty folder: nothing is written over")
    if not parts:
        raise ValueError("no split to convert")
    first = next(iter(parts.values()))
    names = unique_names(record.path for part in parts.values() for record in part.records)
    counts = dict.fromkeys(("left", "plain", "crowd", "areas", "ids", "rounded", "merged"), 0)
    splits = {
        split: [
            Entry(
                record,
                _held(record.truth, form, options, counts),
                names[record.path],
                record.size or image_size(record.path),
            )
            for record in part.records
        ]
        for split, part in parts.items()
    }
    if form != "coco":
        counts["ids"] = sum(record.coco_id is not None for part in parts.values() for record in part.records)
    renamed = sum(Path(path).name != name for path, name in names.items())
    words = {
        "left": "difficult objects and crowds left out, as training does (keep_flagged=true keeps them)",
        "plain": "difficult objects and crowds written as plain objects",
        "crowd": "crowds written as difficult objects",
        "areas": "areas that are not those of the boxes",
        "ids": "image ids",
        "rounded": "boxes rounded to whole pixels",
        "merged": "boxes that are the same as another once rounded",
    }
    losses = [f"{number} {words[key]}" for key, number in counts.items() if number]
    losses += [f"{renamed} file names changed, so that all differ"] if renamed else []
    return Plan(root, first.classes, splits, first.category_ids, options, losses)


def unique_names(paths: Iterable[str]) -> dict[str, str]:
    """A file name for every path; two never differ by case or suffix alone, since labels go by the stem."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for path in paths:
        if path in names:
            continue
        name, place = Path(path), Path(path).parent
        stem = name.stem
        while stem.casefold() in taken and place.name:
            stem, place = f"{place.name}_{stem}", place.parent
        number = 2
        while stem.casefold() in taken:
            stem, number = f"{name.stem}_{number}", number + 1
        taken.add(stem.casefold())
        names[path] = stem + name.suffix
    return names


def _held(truth: Truth, form: Format, options: Options, counts: dict[str, int]) -> Truth:
    flagged = truth.crowd | truth.difficult
    sides = truth.boxes[:, 2:] - truth.boxes[:, :2]
    plain = sides.prod(axis=1)
    if form == "coco":
        return truth
    if form == "voc":
        counts["crowd"] += int(truth.crowd.sum())
        truth = replace(truth, crowd=np.zeros_like(truth.crowd), difficult=flagged)
        if options.round_corners:
            truth = _rounded(truth, counts)
    elif options.keep_flagged:
        counts["plain"] += int(flagged.sum())
        none = np.zeros_like(flagged)
        truth = replace(truth, crowd=none, difficult=none)
    elif flagged.any():
        counts["left"] += int(flagged.sum())
        plain = plain[~flagged]
        truth = select(truth, ~flagged)
    if len(plain) == len(truth.area):
        counts["areas"] += int((np.abs(truth.area - plain) > 1e-3 * plain).sum())
    return truth


def select(truth: Truth, keep: NDArray[np.bool_] | NDArray[np.int64]) -> Truth:
    """Some of the objects."""
    boxes, labels = truth.boxes[keep], truth.labels[keep]
    return Truth(boxes, labels, truth.crowd[keep], truth.difficult[keep], truth.area[keep])


def _rounded(truth: Truth, counts: dict[str, int]) -> Truth:
    """Whole pixels, at least one each way; boxes that become one are one."""
    whole = np.rint(truth.boxes)
    thin = whole[:, 2:] <= whole[:, :2]
    whole[:, :2] = np.where(thin, np.floor(truth.boxes[:, :2]), whole[:, :2])
    whole[:, 2:] = np.where(thin, np.ceil(truth.boxes[:, 2:]), whole[:, 2:])
    counts["rounded"] += int((whole != truth.boxes).any(axis=1).sum())
    keys = np.column_stack([whole, truth.labels])
    _, first = np.unique(keys, axis=0, return_index=True)
    counts["merged"] += len(keys) - len(first)
    return select(replace(truth, boxes=whole), np.sort(first))


def shortest(value: np.float32) -> str:
    """The fewest digits that give this float32 again."""
    return np.format_float_positional(value, unique=True, trim="-")
