"""What README and docs tell people to type is typed here; the site builds without a warning."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from tests.helpers.paths import shared
from yolo import __main__ as console
from yolo.checkpoint import Model, save_model
from yolo.data import Preprocess
from yolo.data.formats.digits import CLASSES
from yolo.models import build

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A narrow network and two batches: what is tested is that the command is right, not that it learns.
QUICK = {
    "train": [
        "trainer.max_epochs=1", "+trainer.limit_train_batches=2", "trainer.accelerator=cpu", "model.width=0.125",
        "data.batch_size=2", "data.workers=0", "preprocess.size=[64,64]", "multiscale=null", "data.cache=none",
        "callbacks.report=null",
    ],
    "val": ["workers=0", "report=false"],
}  # fmt: skip


class Block(NamedTuple):
    language: str
    reason: str  # why it is not run; empty if it is
    commands: list[list[str]]


def blocks(page: Path) -> Iterator[Block]:
    lines = iter(page.read_text(encoding="utf-8").splitlines())
    before = ""
    for line in lines:
        if line.lstrip().startswith("```"):
            language = line.strip().strip("`").split(" ")[0]
            text = []
            for inner in lines:
                if inner.lstrip().startswith("```"):
                    break
                text.append(inner.strip())
            marked = re.match(r"<!-- not run: (.+) -->", before)
            joined = re.sub(r"\\\n\s*", " ", "\n".join(text))
            commands = [shlex.split(row, comments=True) for row in joined.splitlines()]
            yield Block(language, marked[1] if marked else "", [row for row in commands if row])
        if line.strip():
            before = line.strip()


def tool_of(command: list[str]) -> tuple[str, list[str]] | None:
    """Name and arguments of the project's tool that a line calls."""
    if command[0] == "python" and command[1].startswith("tools/"):
        return Path(command[1]).stem, command[2:]
    return (command[1], command[2:]) if command[0] == "yolo" else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block of commands is marked sh, and holds nothing that the test below cannot run, or says why not."""
    for block in blocks(page):
        calls = (
            [command for command in block.commands if tool_of(command)] if block.language != "text" else []
        )
        if block.language == "sh" and not block.reason:
            assert [c for c in block.commands if c not in calls] == []
        elif block.language != "sh":
            assert calls == [], f"{page.name}: a block of commands without sh"


def place(folder: Path) -> None:
    """What the pages take for granted: a folder of pictures, two small sets of one's own, and a first run."""
    rng = np.random.default_rng(0)
    sets = {"my-set": ("cat", "dog"), "cells": ("red", "white", "platelet")}
    for part in ("pictures", *(f"{name}/images/{split}" for name in sets for split in ("train", "val"))):
        (folder / part).mkdir(parents=True)
        for number in range(4):
            image = rng.integers(0, 255, (96, 128, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / part / f"{number}.jpg"), image)
    for name, classes in sets.items():
        for split in ("train", "val"):
            labels = folder / name / "labels" / split
            labels.mkdir(parents=True)
            for number in range(4):
                label = number % len(classes)
                (labels / f"{number}.txt").write_text(f"{label} 0.5 0.5 0.4 0.4\n0 0.2 0.2 0.1 0.2\n")
        (folder / name / "names.txt").write_text("\n".join(classes) + "\n")
    run = folder / "runs/train/first"
    run.mkdir(parents=True)
    detector = build("yolov2_tiny", {"num_classes": 10, "width": 0.125})
    for path in (run / "best.ckpt", folder / "best.ckpt"):
        save_model(Model(detector, list(CLASSES), Preprocess((64, 64))), path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "data=bccd" in page.read_text(encoding="utf-8"):
        shared("data", "bccd")
    monkeypatch.chdir(tmp_path)
    place(tmp_path)
    for block in blocks(page):
        if block.language != "sh" or block.reason:
            continue
        for command in block.commands:
            called = tool_of(command)
            assert called is not None
            name, arguments = called
            monkeypatch.setattr(sys, "argv", ["yolo", name, *arguments, *quick(name, arguments)])
            status = 0
            try:
                console.main()
            except SystemExit as stop:
                status = int(stop.code or 0)
            assert status == 0, (shlex.join(command), capsys.readouterr().err)


def quick(name: str, arguments: list[str]) -> list[str]:
    """Overrides that make a command take seconds, where it does not set the same option itself for a reason."""
    given = {argument.split("=")[0] for argument in arguments}
    if "checkpoint" in given:  # goes on for an epoch more than the run before it
        return [*(o for o in QUICK[name] if "epochs" not in o), "trainer.max_epochs=2"]
    given -= {"trainer.max_epochs", "preprocess.size"}
    if any(argument.startswith("model=torchvision/") for argument in arguments):
        given.add("model.width")  # they have no such option
    return [option for option in QUICK.get(name, []) if option.lstrip("+").split("=")[0] not in given]


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed (extra docs)")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "index.html").is_file()
