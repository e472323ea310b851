"""What every reader hands over, and the one place where boxes are checked."""

import logging
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yolo.data.image import ImageInfo, turn_boxes
from yolo.types import Record, Truth

log = logging.getLogger(__name__)

OnError = Literal["skip", "raise"]
Corners = tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels of the picture
SLACK = 1e-4  # of a picture's side: overhang up to this is rounding in the label file, not a mistake
SHOWN = 10  # problems of one kind that are written out


class Problem(NamedTuple):
    """Something in the data that a person should look at."""

    file: str
    line: int  # 1 is the first; 0: the file as a whole
    message: str
    code: str = "other"  # a word to count by
    lost: bool = True  # whether a picture or an object is left out because of it
    picture: str = ""  # path of the picture that it is about
    box: Corners | None = None  # as the file has it

    def __str__(self) -> str:
        if self.line:
            return f"{self.file}:{self.line}: {self.message}"
        about = f" ({self.picture})" if self.file.endswith(".json") and self.picture else ""
        return f"{self.file}: {self.message}{about}"


def problem_of(path: str | Path, error: Exception, code: str) -> Problem:
    """The problem that an exception about a file describes."""
    text = str(error).removeprefix(f"{path}:")
    match = re.match(r"(\d+): ", text)
    line = int(match[1]) if match else 0
    return Problem(str(path), line, text[match.end() :] if match else text.strip(), code)


@dataclass(frozen=True)
class Annotated:
    """A data set as read: nothing is decoded yet."""

    records: list[Record]
    classes: list[str]
    problems: list[Problem] = field(default_factory=list)
    category_ids: tuple[int, ...] = ()  # COCO: the ids of the classes in the file, for result files

    @property
    def ids_by_name(self) -> dict[str, int]:
        """COCO: the id that the file has for each class; empty for other formats."""
        return {
            name: number for name, number in zip(self.classes, self.category_ids, strict=False) if number >= 0
        }

    @property
    def lost(self) -> list[Problem]:
        """The problems that cost a picture or an object."""
        return [problem for problem in self.problems if problem.lost]

    def summary(self) -> str:
        """Counts, then the first problems of every kind with file and line."""
        boxes = sum(len(record.truth.labels) for record in self.records)
        lines = [f"{len(self.records)} pictures, {boxes} boxes, {len(self.classes)} classes"]
        for code, count in Counter(problem.code for problem in self.problems).most_common():
            same = [problem for problem in self.problems if problem.code == code]
            lines.append(f"{count} x {code}{'' if any(p.lost for p in same) else ' (nothing lost)'}")
            lines += [f"  {problem}" for problem in same[:SHOWN]]
            if count > SHOWN:
                lines.append(f"  ... and {count - SHOWN} more")
        return "\n".join(lines)


def finish(name: str, result: Annotated, on_error: OnError) -> Annotated:
    """Say what was found, before anything is trained on it.

    Raises:
        ValueError: ``on_error`` is ``raise`` and something is lost, or there is not one picture.
    """
    if on_error not in ("skip", "raise"):
        raise ValueError(f"on_error must be skip or raise, got {on_error!r}")
    if result.lost and on_error == "raise":
        raise ValueError(
            f"{name}: {len(result.lost)} problems in the data (data.on_error=raise)\n{result.summary()}"
        )
    if not result.records:
        raise ValueError(f"{name}: not one usable picture\n{result.summary()}")
    if result.problems:
        log.warning("%s: %s", name, result.summary())
    return result


@dataclass
class Objects:
    """Collects the objects of one picture; :meth:`truth` checks them."""

    file: str
    problems: list[Problem]
    picture: str = ""
    boxes: list[Corners] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    difficult: list[bool] = field(default_factory=list)
    area: list[float] = field(default_factory=list)  # NaN: take the box's
    lines: list[int] = field(default_factory=list)

    def add(
        self,
        box: Corners,
        label: int,
        line: int,
        *,
        crowd: bool = False,
        difficult: bool = False,
        area: float = float("nan"),
    ) -> None:
        """Note one object, x1, y1, x2, y2 in pixels."""
        self.boxes.append(box)
        self.labels.append(label)
        self.lines.append(line)
        self.crowd.append(crowd)
        self.difficult.append(difficult)
        self.area.append(area)

    def report(
        self,
        line: int,
        message: str,
        code: str,
        *,
        lost: bool = True,
        box: Corners | None = None,
    ) -> None:
        """Note a problem in this file."""
        self.problems.append(Problem(self.file, line, message, code, lost, self.picture, box))

    def stated_size(self, line: int, height: float, width: float, info: ImageInfo) -> bool:
        """Compare the size that the annotation states with the picture's, report a difference.

        Returns:
            Whether the annotation was made on the picture before its EXIF turn.
        """
        if (height, width) == info.size or not 0 < height < math.inf or not 0 < width < math.inf:
            return False  # many tools write 0 for "do not know"
        text = f"the file says {width:g}x{height:g}, the picture has {info.size[1]}x{info.size[0]} pixels"
        if (height, width) == (info.height, info.width):
            message = f"{text}: drawn before the EXIF turn, boxes turned with it"
            self.report(line, message, "turned", lost=False)
            return True
        self.report(line, f"{text}: the boxes are taken as they are", "size", lost=False)
        return False

    def truth(self, info: ImageInfo, *, stored_frame: bool = False) -> Truth:
        """Clip to the picture, drop what is degenerate, outside or double, and report all of it.

        Args:
            info: Size and turn of the picture.
            stored_frame: The boxes were drawn on the picture before its EXIF turn.
        """
        if not self.boxes:
            return no_truth()
        boxes = np.array(self.boxes, np.float64)
        if stored_frame:
            boxes = turn_boxes(boxes, info)
        height, width = info.size
        limits = np.array((width, height, width, height))
        clipped = boxes.clip(0, limits)
        keys = list(
            zip(self.labels, self.crowd, map(tuple, clipped.astype(np.float32).tolist()), strict=True)
        )
        sides = clipped[:, 2:] - clipped[:, :2]
        keep = np.ones(len(boxes), bool)
        fine = (sides > 0).all() and (np.abs(boxes - clipped) <= SLACK * limits).all()
        if not fine or len(set(keys)) < len(keys):
            first: dict[object, int] = {}
            for index, key in enumerate(keys):
                earlier = first.setdefault(key, index)
                keep[index] = self._judge(index, boxes[index], clipped[index], (width, height), earlier)
        area = np.array(self.area, np.float64)
        area = np.where(np.isfinite(area), area, sides[:, 0] * sides[:, 1])
        return Truth(
            clipped[keep].astype(np.float32),
            np.array(self.labels, np.int64)[keep],
            np.array(self.crowd, np.bool_)[keep],
            np.array(self.difficult, np.bool_)[keep],
            area[keep].astype(np.float32),
        )

    def _judge(
        self,
        index: int,
        box: NDArray[np.float64],
        inside: NDArray[np.float64],
        size: tuple[int, int],
        earlier: int,
    ) -> bool:
        """Whether a box is kept; whatever is said about it is reported."""
        line, picture = self.lines[index], f"the picture of {size[0]}x{size[1]}"
        given: Corners = tuple(box.tolist())
        text = "(" + ", ".join(f"{value:.7g}" for value in box) + ")"
        if not np.isfinite(box).all():
            self.report(line, f"box {text} is not finite", "degenerate", box=given)
            return False
        if box[2] <= box[0] or box[3] <= box[1]:
            self.report(line, f"box {text} has no area", "degenerate", box=given)
            return False
        if inside[2] <= inside[0] or inside[3] <= inside[1]:
            self.report(line, f"box {text} lies outside {picture}", "outside", box=given)
            return False
        if (np.abs(box - inside) > SLACK * np.array(size * 2)).any():
            message = f"box {text} reaches over the edge of {picture}, clipped"
            self.report(line, message, "clipped", lost=False, box=given)
        if earlier != index:
            other = f"line {self.lines[earlier]}" if self.lines[earlier] else f"object {earlier + 1}"
            message = f"box {text} is the same as in {other}"
            self.report(line, message, "duplicate", lost=False, box=given)
            return False
        return True


def no_truth() -> Truth:
    """A picture without objects."""
    none = np.zeros(0, np.bool_)
    return Truth(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), none, none, np.zeros(0, np.float32))
