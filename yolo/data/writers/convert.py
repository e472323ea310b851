"""From one format to another, with proof: what was written is read again and compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from yolo.data.formats.annotated import Annotated
from yolo.data.writers.coco import write_coco
from yolo.data.writers.plan import Format, Options, Plan, make_plan
from yolo.data.writers.rows import write_darknet, write_yolo
from yolo.data.writers.voc import write_voc

WRITERS = {"yolo": write_yolo, "coco": write_coco, "voc": write_voc, "darknet": write_darknet}
TOLERANCE = 1e-3  # pixels that a corner may move


@dataclass(frozen=True)
class Converted:
    """What became of a set."""

    pictures: int
    boxes: int
    losses: list[str]  # what the new set does not hold, in words
    shift: float  # pixels: how far a corner is from where it was, at most


def convert(
    parts: Mapping[str, Annotated], form: Format, root: Path, options: Options | None = None
) -> Converted:
    """Write a data set in another format.

    Args:
        parts: The splits as read, with one class list.
        form: ``yolo``, ``coco``, ``voc`` or ``darknet``.
        root: The folder to make; pictures are copied into it.
        options: How.

    Raises:
        ValueError: The folder is in use, or what was written does not read as it should.
    """
    if form not in get_args(Format):
        raise ValueError(f"format is {', '.join(get_args(Format))}, got {form!r}")
    plan = make_plan(parts, form, root, options or Options())
    root.mkdir(parents=True, exist_ok=True)
    readers = WRITERS[form](plan)
    shift = max(_compare(plan, split, reader()) for split, reader in readers.items())
    entries = [entry for split in plan.splits.values() for entry in split]
    return Converted(len(entries), sum(len(entry.truth.labels) for entry in entries), plan.losses, shift)


def _compare(plan: Plan, split: str, found: Annotated) -> float:
    """How far a corner moved; raises where anything else is different."""
    entries = plan.splits[split]
    records = {Path(record.path).name: record for record in found.records}
    shift = 0.0
    for entry in entries:
        record = records.get(entry.name)
        if record is None:
            raise ValueError(
                f"{plan.root}: {entry.name} of {split} cannot be read again, do not use this set"
            )
        wanted, got = entry.truth, record.truth
        same = all(
            np.array_equal(getattr(wanted, name), getattr(got, name))
            for name in ("labels", "crowd", "difficult")
        )
        moved = float(np.abs(wanted.boxes - got.boxes).max(initial=0)) if same else np.inf
        if moved > TOLERANCE:
            raise ValueError(
                f"{plan.root}: {entry.name} of {split} does not read as it was, do not use this set"
            )
        shift = max(shift, moved)
    if len(found.records) != len(entries) or found.classes != plan.classes:
        raise ValueError(
            f"{plan.root}: {split} reads as {len(found.records)} pictures, classes {found.classes}; "
            f"wanted {len(entries)}, {plan.classes}; do not use this set"
        )
    return shift
