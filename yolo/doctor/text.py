"""A diagnosis as tables for the terminal and as JSON."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from yolo.doctor.examine import Diagnosis
from yolo.doctor.findings import Finding, Level, by_kind, kind_of, listed

SHOWN = 5  # findings of one kind that are written out
STYLES: dict[Level, str] = {"lost": "bold red", "warning": "yellow", "note": "dim"}


def diagnosis_tables(diagnosis: Diagnosis, shown: int = SHOWN) -> Iterator[Table | str]:
    """What the terminal shows: the splits, the classes, every kind of finding with its first examples."""
    yield _splits(diagnosis)
    yield _classes(diagnosis)
    for (level, code), findings in by_kind(diagnosis.findings).items():
        kind = kind_of(code)
        style = STYLES[level]
        where = spread(findings)
        yield f"[{style}]{level:>7}[/]  {len(findings)} x {kind.title}{escape(f': {where}' if where else '')}"
        yield f"         [dim]{kind.advice}[/]"
        for finding in findings[:shown]:
            yield f"           {escape(diagnosis.short(str(finding)))}"
        if len(findings) > shown:
            yield f"           ... and {len(findings) - shown} more"
    yield verdict(diagnosis)


def verdict(diagnosis: Diagnosis) -> str:
    """The last line."""
    if not diagnosis.lost:
        return f"{diagnosis.name}: training would lose nothing"
    counts = Counter(kind_of(finding.code).title for finding in diagnosis.lost)
    what = listed([f"{number} x {title}" for title, number in counts.items()], 8)
    return f"{diagnosis.name}: training would lose data: {what}"


def spread(findings: Sequence[Finding]) -> str:
    """Where findings are: by split, and by folder where a split has pictures in several."""
    parts = []
    for split, number in Counter(finding.split for finding in findings if finding.split).items():
        own = [finding for finding in findings if finding.split == split]
        folders = Counter(Path(finding.picture).parent.name for finding in own if finding.picture)
        inside = ", ".join(f"{count} in {folder}/" for folder, count in folders.most_common(6))
        parts.append(f"{number} in {split}" + (f" ({inside})" if len(folders) > 1 else ""))
    return ", ".join(parts)


def _splits(diagnosis: Diagnosis) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title=escape(diagnosis.name), title_justify="left", padding=(0, 1, 0, 0)
    )
    for heading in ("split", "pictures", "boxes", "without objects", "difficult", "crowds"):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for name, tally in diagnosis.splits.items():
        row = (tally.pictures, tally.boxes, tally.empty, tally.difficult, tally.crowds)
        table.add_row(escape(name), *map(str, row))
    return table


def _classes(diagnosis: Diagnosis) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="boxes by class", title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("class", overflow="fold")
    for heading in (*diagnosis.splits, "all", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    total = sum(used.total for used in diagnosis.usage.values()) or 1
    for name, used in diagnosis.usage.items():
        cells = [str(used.boxes.get(split, 0)) for split in diagnosis.splits]
        table.add_row(escape(name), *cells, str(used.total), f"{used.total / total:.1%}")
    return table


def write_json(diagnosis: Diagnosis, path: Path) -> None:
    """Write everything that was found, nothing left out."""
    limits = diagnosis.limits
    content = {
        "name": diagnosis.name,
        "folder": diagnosis.base,
        "lost": len(diagnosis.lost),
        "settings": {**asdict(limits), "preprocess": diagnosis.preprocess.to_dict()},
        "splits": {name: asdict(tally) for name, tally in diagnosis.splits.items()},
        "classes": {name: asdict(used) for name, used in diagnosis.usage.items()},
        "counts": {code: len(found) for (_, code), found in by_kind(diagnosis.findings).items()},
        "findings": [{"level": finding.level, **asdict(finding)} for finding in diagnosis.findings],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
