import math
from pathlib import Path

import pytest

from yolo.report.curves import read_metrics


def test_columns_become_curves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train/loss_step,val/map\n,9,7.5,\n0,19,nan,\n0,19,,0.25\n1,9,3.5,\n")
    curves = read_metrics(path)
    assert curves["train/loss_step"].steps == [9]
    assert curves["train/loss_step"].values == [3.5]  # a resumed run wrote step 9 again
    assert curves["val/map"] == ([19], [0.0], [0.25])
    assert not math.isnan(curves["train/loss_step"].epochs[0])


def test_no_file_is_no_curve(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.csv") == {}


def test_another_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"x\.csv: a table with the column step"):
        read_metrics(tmp_path / "x.csv")
