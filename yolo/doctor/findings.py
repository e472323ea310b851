"""What the doctor can find, in words, and how much it matters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from yolo.data import Problem

Box = tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels of the picture
Level = Literal["lost", "warning", "note"]
LEVELS: tuple[Level, ...] = ("lost", "warning", "note")


class Kind(NamedTuple):
    """One kind of finding."""

    title: str
    advice: str
    level: Level = "warning"  # of findings that cost nothing; what costs a picture or an object is "lost"


KINDS: dict[str, Kind] = {
    # pictures
    "unreadable": Kind("pictures that cannot be read", "restore the file or take it off the list"),
    "truncated": Kind(
        "pictures cut short or damaged", "fetch the file again: what is missing cannot be guessed"
    ),
    "missing-image": Kind("annotations without a picture", "restore the picture or remove the annotation"),
    "no-image": Kind("annotations of a picture that is not in the file", "mend image_id"),
    "extension": Kind("files whose name says another format", "rename: other tools go by the name"),
    "exif": Kind(
        "pictures with an EXIF turn",
        "harmless here, boxes and pixels are turned alike; tools that ignore EXIF will disagree",
        "note",
    ),
    "turned": Kind("boxes drawn before the EXIF turn", "turned with the picture; look at one to be sure"),
    "copy": Kind("copies of a picture in one split", "keep one: copies weigh double", "note"),
    "leak": Kind(
        "pictures of one split seen again in another",
        "the score of the second split is too good: split by scene or by film",
    ),
    "overlap": Kind("pictures that two splits share", "take them out of one of the two"),
    "shared": Kind("held-out splits that share pictures", "harmless while neither is trained on", "note"),
    "duplicate-image": Kind("pictures listed or annotated twice", "keep one entry"),
    "unlabelled": Kind("pictures without annotation", "label them, or they teach that nothing is there"),
    "no-label": Kind(
        "pictures without a label file", "they teach that nothing is there: add an empty file if so"
    ),
    "unlisted": Kind("pictures in no split", "add them to a list if they were meant to be used", "note"),
    "empty": Kind("pictures without objects", "right for background; else label them", "note"),
    "crowded": Kind(
        "pictures with very many objects", "raise metric.max_detections and kept above the count"
    ),
    # label files
    "unreadable-label": Kind("label files that cannot be read", "mend the file"),
    "missing-label": Kind(
        "pictures listed without an annotation", "restore the file or take it off the list"
    ),
    "orphan-label": Kind("label files without a picture", "restore the picture or remove the file"),
    "row": Kind("rows that are no object", "mend the row"),
    "outside-root": Kind(
        "paths that leave the data set", "move the files, or allow_outside=true if you trust it"
    ),
    "size": Kind("annotations made for another picture size", "check that the boxes fit"),
    "ignore": Kind("objects marked ignore", "read as difficult: neither trained on nor scored", "note"),
    "download": Kind("scripts in a data file", "never executed", "note"),
    "unreadable-split": Kind("splits that cannot be read", "mend what the message names"),
    # boxes
    "degenerate": Kind("boxes without area", "draw them again or remove them"),
    "outside": Kind("boxes outside the picture", "check the units and the size that the tool had seen"),
    "clipped": Kind("boxes over the edge", "cut at the edge; many of them hint at wrong units"),
    "duplicate": Kind("boxes that are there twice", "counted once; remove one"),
    "doubled": Kind("boxes nearly on top of each other, of one class", "most are one object drawn twice"),
    "contradiction": Kind(
        "one place, two classes", "decide for one, unless one object sits in the other: both are trained on"
    ),
    "tiny": Kind(
        "boxes too small at the training size", "raise preprocess.size, or cut the pictures into tiles"
    ),
    # classes
    "class": Kind("objects of a class that is not in the list", "add the class, or mend its name"),
    "misspelt": Kind("class names that look like another", "one class under two names? merge them"),
    "unused-class": Kind("classes without a box", "remove them from the list, or find their labels"),
    "unused-category": Kind(
        "categories of the files that no box uses", "harmless: no class is made of them", "note"
    ),
    "untrained": Kind(
        "classes that are scored but never trained", "split again so that each split has every class"
    ),
    "unscored": Kind(
        "classes that are trained but never scored", "split again so that each split has every class"
    ),
    "rare": Kind("classes with few boxes to train on", "collect more, or do not trust their score"),
}


@dataclass(frozen=True)
class Finding:
    """Something in a data set that a person should look at."""

    code: str  # a key of KINDS
    split: str
    message: str
    file: str = ""
    line: int = 0  # 1 is the first; 0: the file as a whole
    lost: bool = False  # whether training goes without a picture or an object because of it
    picture: str = ""  # path of the picture to show
    box: Box | None = None
    other: str = ""  # path of the picture that it is compared with

    @property
    def level(self) -> Level:
        return "lost" if self.lost else kind_of(self.code).level

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        about = f" ({self.picture})" if self.file.endswith(".json") and self.picture else ""
        return f"{where}: {self.message}{about}" if where else self.message

    @classmethod
    def of(cls, problem: Problem, split: str) -> "Finding":
        """What a reader has found."""
        return cls(
            problem.code,
            split,
            problem.message,
            problem.file,
            problem.line,
            problem.lost,
            problem.picture,
            problem.box,
        )


def kind_of(code: str) -> Kind:
    """A kind by its code; readers may know some that have no words here."""
    return KINDS.get(code, Kind(code, "see the message"))


def by_kind(findings: Iterable[Finding]) -> dict[tuple[Level, str], list[Finding]]:
    """Findings by level and code: what costs data first, then in the order of ``KINDS``."""
    order = list(KINDS)
    groups: dict[tuple[Level, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.level, finding.code), []).append(finding)

    def rank(key: tuple[Level, str]) -> tuple[int, int]:
        return LEVELS.index(key[0]), order.index(key[1]) if key[1] in order else len(order)

    return {key: groups[key] for key in sorted(groups, key=rank)}


def listed(names: Sequence[str], most: int = 6) -> str:
    """``a, b, c and 4 more``."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
