"""The inputs of the bug reports of cases/CASES.md and what each of them expects."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.helpers.paths import shared
from yolo.data import Annotated


def case(name: str) -> Path:
    """The folder of a case."""
    return shared("cases", "inputs", name)


def expected(name: str) -> dict[str, Any]:
    """Its expected.json, or case.json where the case is all numbers."""
    folder = case(name)
    file = folder / "expected.json"
    return json.loads((file if file.exists() else folder / "case.json").read_text("utf-8"))


def copied(name: str, folder: Path) -> Path:
    """A copy of a case that a test may change or write into."""
    return Path(shutil.copytree(case(name), folder / name))


def counts(annotated: Annotated) -> tuple[int, int]:
    """Pictures and boxes."""
    return len(annotated.records), sum(len(record.truth.labels) for record in annotated.records)


def rows(annotated: Annotated) -> list[list[int]]:
    """Labels, picture by picture."""
    return [record.truth.labels.tolist() for record in annotated.records]
