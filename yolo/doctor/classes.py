"""Class names and how often each is used."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from yolo.data import Annotated
from yolo.doctor.findings import Finding, listed


@dataclass
class Usage:
    """How often a class occurs."""

    boxes: dict[str, int] = field(default_factory=dict)  # by split
    pictures: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.boxes.values())


def count(parts: Mapping[str, Annotated], classes: Sequence[str]) -> dict[str, Usage]:
    """Boxes and pictures of every class in every split; crowds are no objects."""
    usage = {name: Usage() for name in classes}
    for split, found in parts.items():
        boxes = np.zeros(len(classes), np.int64)
        pictures = np.zeros(len(classes), np.int64)
        for record in found.records:
            labels = record.truth.labels[~record.truth.crowd]
            own = np.bincount(labels, minlength=len(classes))
            boxes += own
            pictures += own > 0
        for label, name in enumerate(classes):
            usage[name].boxes[split] = int(boxes[label])
            usage[name].pictures[split] = int(pictures[label])
    return usage


def check_classes(usage: Mapping[str, Usage], stray: Mapping[str, int], *, rare: int) -> Iterator[Finding]:
    """Judge the class list by what is used.

    Args:
        usage: Of the classes in the list.
        stray: Boxes of every class that stands in the files and not in the list.
        rare: Boxes that a class needs in the training split.
    """
    classes = list(usage)
    for name, boxes in stray.items():
        near = alike(name, classes)
        hint = f"; {'the nearest is' if len(near) == 1 else 'near are'} {listed(near)}" if near else ""
        if not boxes:
            yield Finding("unused-category", "", f"{name!r} is in the files and used by no box")
        elif near:
            yield Finding("misspelt", "", f"{name!r} ({boxes} boxes) is not in the class list{hint}")
    for number, name in enumerate(classes):
        for other in classes[number + 1 :]:
            if same_word(name, other):
                text = f"{name!r} ({usage[name].total} boxes) and {other!r} ({usage[other].total} boxes)"
                yield Finding("misspelt", "", text)
    unused = [name for name in classes if not usage[name].total]
    if unused:
        text = f"{len(unused)} of {len(classes)} classes have no box: {listed(unused, 20)}"
        yield Finding("unused-class", "", text)
    yield from _balance(usage, rare)


def _balance(usage: Mapping[str, Usage], rare: int) -> Iterator[Finding]:
    for name, used in usage.items():
        held = {split: boxes for split, boxes in used.boxes.items() if split != "train" and boxes}
        trained = used.boxes.get("train")
        if trained is None or not used.total:
            continue
        if not trained:
            where = ", ".join(f"{boxes} in {split}" for split, boxes in held.items())
            yield Finding("untrained", "train", f"{name!r}: no box in train, {where}")
        elif trained < rare:
            yield Finding("rare", "train", f"{name!r}: {trained} boxes in train")
        if trained and not held and len(used.boxes) > 1:
            yield Finding("unscored", "", f"{name!r}: {trained} boxes in train, none held out")


def alike(name: str, classes: Sequence[str]) -> list[str]:
    """The classes that a stray name may stand for."""
    same = [other for other in classes if same_word(name, other)]
    close = difflib.get_close_matches(_plain(name), [_plain(other) for other in classes], 3, 0.75)
    likely = [other for other in classes if _plain(other) in close]
    words = [other for other in classes if set(_words(name)) and set(_words(name)) <= set(_words(other))]
    return same or likely or words


def same_word(one: str, other: str) -> bool:
    """Whether two names differ by case, blanks, a plural or one letter alone; digits count as they are."""
    a, b = _plain(one), _plain(other)
    if a == b or (min(len(a), len(b)) > 2 and (a + "s" == b or b + "s" == a)):
        return True
    if re.sub(r"\D", "", a) != re.sub(r"\D", "", b) or max(len(a), len(b)) < 6 or abs(len(a) - len(b)) > 1:
        return False
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return max(len(a), len(b)) - sum(block.size for block in blocks) <= 1


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.casefold())
