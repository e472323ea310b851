"""Small sets with one thing wrong, and what the doctor says of them."""

from collections.abc import Mapping
from pathlib import Path

from tests.data.making import picture, write
from yolo.data import Preprocess
from yolo.doctor import Diagnosis, Finding, Limits, examine, open_source
from yolo.doctor.source import Reader

ROW = "0 0.5 0.5 0.25 0.25\n"
Rows = Mapping[str, str | None]  # picture name: its label file; None for none


def yolo_set(root: Path, splits: Mapping[str, Rows], names: str = "[cat, dog]") -> Path:
    """Write a data.yaml with pictures of noise, all different; give its path."""
    seed = 0
    for split, rows in splits.items():
        for name, text in rows.items():
            seed += 1
            picture(root / "images" / split / name, seed=seed)
            if text is not None:
                write((root / "labels" / split / name).with_suffix(".txt"), text)
    lines = [f"{split}: images/{split}" for split in splits]
    return write(root / "data.yaml", "\n".join(["path: .", *lines, f"names: {names}"]) + "\n")


def diagnose(source: Path | Mapping[str, Reader], **limits: float) -> Diagnosis:
    """What the doctor finds with small limits: nothing is rare or tiny unless asked for."""
    readers = open_source(source) if isinstance(source, Path) else source
    values = {"tiny": 0, "rare": 0, **limits}
    return examine("made up", readers, Preprocess((64, 64)), Limits(**values), threads=1)  # type: ignore[arg-type]


def of(diagnosis: Diagnosis, code: str) -> list[Finding]:
    """The findings of one kind."""
    return [finding for finding in diagnosis.findings if finding.code == code]
