"""What a training run logged: metrics.csv as named curves."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Series(NamedTuple):
    """One logged number over the run."""

    steps: list[int]  # optimiser steps
    epochs: list[float]  # NaN where none was logged
    values: list[float]


Curves = Mapping[str, Series]


def read_metrics(path: Path) -> dict[str, Series]:
    """Read the ``metrics.csv`` of a run.

    Returns:
        Every column but step and epoch; none if there is no file. What is not a number is left out, and of
        rows for the same step (a resumed run repeats some) the last one stays.

    Raises:
        ValueError: The file is not such a table.
    """
    if not path.is_file():
        return {}
    points: dict[str, dict[int, tuple[float, float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if "step" not in (rows.fieldnames or ()):
            raise ValueError(f"{path}: a table with the column step is wanted, got {rows.fieldnames}")
        for row in rows:
            step = _number(row["step"])
            if step is None:
                continue
            epoch = _number(row.get("epoch"))
            for name, text in row.items():
                value = _number(text) if name not in ("step", "epoch") else None
                if value is not None:
                    points.setdefault(name, {})[int(step)] = (math.nan if epoch is None else epoch, value)
    return {
        name: Series(sorted(of), [of[step][0] for step in sorted(of)], [of[step][1] for step in sorted(of)])
        for name, of in points.items()
    }


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except (ValueError, TypeError):
        return None
    return value if math.isfinite(value) else None
