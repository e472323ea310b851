"""YOLO and Darknet: a text file per picture, ``class cx cy width height`` in parts of the picture."""

import json
from functools import partial
from pathlib import Path

from yolo.data.formats.annotated import Annotated
from yolo.data.formats.darknet import read_darknet
from yolo.data.formats.yolo import read_yolo
from yolo.data.writers.plan import Entry, Plan

Readers = dict[str, partial[Annotated]]


def write_yolo(plan: Plan) -> Readers:
    """``images/SPLIT``, ``labels/SPLIT``, ``names.txt`` and a ``data.yaml`` that names them."""
    for split, entries in plan.splits.items():
        for entry in entries:
            plan.place(entry, plan.root / "images" / split)
            _write_rows(entry, plan.root / "labels" / split)
    _write_names(plan, "names.txt")
    lines = [f"{split}: images/{split}" for split in plan.splits]
    lines += [
        "names:",
        *(f"  {label}: {json.dumps(name, ensure_ascii=False)}" for label, name in enumerate(plan.classes)),
    ]
    source = plan.root / "data.yaml"
    source.write_text("\n".join(lines) + "\n", "utf-8")
    names = plan.root / "names.txt"
    return {
        split: partial(read_yolo, source=plan.root / "images" / split, names=names) for split in plan.splits
    }


def write_darknet(plan: Plan) -> Readers:
    """Pictures with their labels beside them, a list per split, ``obj.names`` and ``obj.data``.

    Darknet takes the paths from the folder it is started in: start it in the folder of the set.
    """
    names = {"val": "valid"}
    for split, entries in plan.splits.items():
        folder = names.get(split, split)
        for entry in entries:
            plan.place(entry, plan.root / folder)
            _write_rows(entry, plan.root / folder)
        text = "".join(f"{folder}/{entry.name}\n" for entry in entries)
        (plan.root / f"{folder}.txt").write_text(text, "utf-8")
    _write_names(plan, "obj.names")
    data = [f"classes = {len(plan.classes)}"]
    data += [f"{names.get(split, split)} = {names.get(split, split)}.txt" for split in plan.splits]
    data += ["names = obj.names", "backup = backup"]
    (plan.root / "obj.data").write_text("\n".join(data) + "\n", "utf-8")
    (plan.root / "backup").mkdir()
    return {
        split: partial(
            read_darknet,
            source=plan.root / f"{names.get(split, split)}.txt",
            names=plan.root / "obj.names",
        )
        for split in plan.splits
    }


def _write_names(plan: Plan, name: str) -> None:
    (plan.root / name).write_text("".join(f"{one}\n" for one in plan.classes), "utf-8")


def _write_rows(entry: Entry, folder: Path) -> None:
    """Twelve digits: float32 corners come back as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    height, width = entry.size
    lines = []
    for (x1, y1, x2, y2), label in zip(entry.truth.boxes.tolist(), entry.truth.labels.tolist(), strict=True):
        values = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height)
        lines.append(f"{label} " + " ".join(f"{value:.12g}" for value in values) + "\n")
    (folder / entry.name).with_suffix(".txt").write_text("".join(lines), "utf-8")
