"""Runs side by side, as text and as a page."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from yolo.report.compare import Run, number_rows, option_rows, read_run
from yolo.report.curves import Series

ROOT = Path(__file__).parents[2]
CSV = """\
epoch,step,speed/images_per_second,train/loss_epoch,val/map,val/map50
0,9,40,7.5,,
0,9,,,0.1,0.3
1,19,60,{loss},,
1,19,,,{map},0.5
"""


def make(folder: Path, map_: float, loss: float, config: str = "data: {batch_size: 16}\nname: x\n") -> Path:
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra/config.yaml").write_text(config)
    (folder / "metrics.csv").write_text(CSV.format(map=map_, loss=loss))
    return folder


def call(*arguments: Any) -> None:
    names = runpy.run_path(str(ROOT / "tools/report.py"), run_name="report")
    names["main"]([str(one) for one in arguments])


def test_numbers_of_a_training_run(tmp_path: Path) -> None:
    run = read_run(make(tmp_path / "a", 0.25, 3.5), {})
    assert run.numbers == {
        "best epoch": "2",
        "best epoch: mAP, IoU .5 to .95": "0.250",
        "best epoch: mAP, IoU .5": "0.500",
        "last loss": "3.500",
        "steps": "20",
        "pictures a second, median": "50.0",
    }
    assert run.curves["val/map"] == Series([9, 19], [0.0, 1.0], [0.1, 0.25])


def test_the_best_epoch_need_not_be_the_last(tmp_path: Path) -> None:
    run = read_run(make(tmp_path / "a", 0.05, 3.5), {})
    assert (run.numbers["best epoch"], run.numbers["best epoch: mAP, IoU .5"]) == ("1", "0.300")


def test_only_options_that_differ_are_shown(tmp_path: Path) -> None:
    one = read_run(make(tmp_path / "a", 0.2, 1), {"data": {"batch_size": 16, "name": "x"}, "name": "a"})
    other = read_run(
        make(tmp_path / "b", 0.2, 1), {"data": {"batch_size": 8, "name": "x"}, "seed": 1, "name": "b"}
    )
    assert option_rows([one, other]) == [("data.batch_size", "16", "8"), ("seed", "\u2013", "1")]
    evaluation = Run(
        "val", {}, {"split": "test", "data.batch_size": "4"}, {}
    )  # of another kind: nothing to differ from
    assert option_rows([one, other, evaluation]) == [
        ("data.batch_size", "16", "8", "4"),
        ("seed", "\u2013", "1", "\u2013"),
    ]
    assert option_rows([one, evaluation]) == []


def test_an_evaluation_beside_a_training_run(tmp_path: Path) -> None:
    folder = tmp_path / "val"
    folder.mkdir()
    numbers = {
        "map": 0.4,
        "map50": 0.7,
        "map75": None,
        "voc_map50": 0.69,
        "darknet_map50": 0.71,
        "pictures": 72,
    }
    (folder / "metrics.json").write_text(json.dumps(numbers))
    rows = number_rows([read_run(make(tmp_path / "a", 0.2, 1), {}), read_run(folder, {})])
    assert ("evaluation: mAP, IoU .5", "\u2013", "0.700") in rows
    assert ("evaluation: mAP, IoU .75", "\u2013", "\u2013") in rows
    assert ("last loss", "1.000", "\u2013") in rows


def test_the_tool_writes_text_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = make(tmp_path / "runs/train/a", 0.2, 1.5)
    b = make(tmp_path / "runs/train/b", 0.3, 2.5, "data: {batch_size: 4}\nname: y\n")
    call("compare", a, b, "--output", tmp_path / "out/compare.html")
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "best epoch: mAP, IoU .5 to .95 0.200 0.300" in lines
    assert "data.batch_size 16 4" in lines
    text = (tmp_path / "out/compare.html").read_text("utf-8")
    assert "<td>data.batch_size</td><td>16</td><td>4</td>" in text
    assert text.count("data:image/png") == 4  # two scores, the loss, the speed
    assert (tmp_path / "out/report/compare_val_map.png").is_file()


@pytest.mark.parametrize("case", ["no such", "empty", "broken csv", "broken json", "broken config", "twice"])
def test_what_is_no_run_is_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["report.py"])
    folder = tmp_path / "run"
    if case != "no such":
        folder.mkdir()
    if case == "broken csv":
        (folder / "metrics.csv").write_text("nothing\n")
    if case == "broken json":
        (folder / "metrics.json").write_text("{}")
    if case in ("broken config", "twice"):
        make(folder / "x", 0.1, 1, "a: [" if case == "broken config" else "a: 1")
        folder /= "x"
    with pytest.raises(SystemExit) as stop:
        call("compare", folder, *([folder] if case == "twice" else []), "--output", tmp_path / "c.html")
    err = capsys.readouterr().err
    assert (stop.value.code, err.count("\n")) == (1, 1)
    assert err.startswith("report.py: ")
    assert not (tmp_path / "c.html").exists()
