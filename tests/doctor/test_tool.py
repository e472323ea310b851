"""tools/data.py from the command line."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.doctor.sets import ROW, yolo_set
from tests.helpers.paths import shared
from yolo import __main__ as console
from yolo.data import load_image


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the tool in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["yolo", "data", *arguments])
        status = 0
        try:
            console.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Done(status, *capsys.readouterr())

    return call


def counts(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "check.json").read_text("utf-8"))["counts"]
    return found


def test_check_exits_with_0_when_nothing_is_lost_and_with_1_when_something_is(
    run: Run, tmp_path: Path
) -> None:
    source = yolo_set(tmp_path / "set", {"train": {"a.png": ROW}}, names="[cat]")
    done = run("check", f"source={source}", "name=good")
    assert (done.returncode, "training would lose nothing" in done.stdout) == (0, True), done.stderr
    (tmp_path / "set/labels/train/a.txt").write_text("0 0.5 0.5 0 0.25\n")
    done = run("check", f"source={source}", "name=bad")
    assert (done.returncode, "training would lose data: 1 x rows" in done.stdout) == (1, True), done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "runs/data/bad/check.json").read_text())["lost"] == 1


def test_words_for_what_is_wrong(run: Run, tmp_path: Path) -> None:
    for arguments, status, text in (
        (["check", "source=nowhere"], 1, "data.py: nowhere: no such file or folder"),
        (["chek", "data=bccd"], 2, "data.py: no 'chek': the first word is check, convert or show"),
        (["check", f"source={tmp_path}"], 1, f"data.py: {tmp_path}: no data set is recognised in it"),
        (["check", "limits.tiny=-1", "source=x"], 1, "data.py: x: no such file or folder"),
    ):
        done = run(*arguments)
        assert done.returncode == status, done.stderr
        assert done.stderr.startswith(text)
        assert done.stderr.count("\n") == 1


def test_bccd(run: Run, tmp_path: Path) -> None:
    shared("data", "bccd")
    done = run("check", "data=bccd", "name=bccd")
    assert done.returncode == 1, done.stderr
    for place in ("Annotations/BloodImage_00338.xml:163", "Annotations/BloodImage_00343.xml:55"):
        assert f"{place}: box (" in done.stdout
    found = counts(tmp_path / "runs/data/bccd")
    assert found["degenerate"] == 2
    assert not {"leak", "overlap", "unreadable", "truncated"} & found.keys()
    page = (tmp_path / "runs/data/bccd/check.html").read_text("utf-8")
    assert page.count('<img src="data:image/jpeg;base64,') == 9  # two without area, seven doubled
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page), "the page needs nothing else"
    assert "<script" not in page


def test_chess(run: Run, tmp_path: Path) -> None:
    shared("data", "chess")
    done = run("check", "data=chess", "name=chess")
    assert done.returncode == 1, done.stderr
    assert "75 in val (49 in valid/, 26 in test/)" in done.stdout
    assert "category 1 'bishop' is not one of the 12 classes" in done.stdout
    assert "near are black-bishop, white-bishop" in done.stdout
    assert "'pieces' is in the files and used by no box" in done.stdout
    found = counts(tmp_path / "runs/data/chess")
    assert {code: found[code] for code in ("class", "duplicate", "empty", "unused-category", "leak")} == {
        "class": 1, "duplicate": 1, "empty": 1, "unused-category": 1, "leak": 75
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "status", "expected"),
    [
        ("cards", 0, {}),
        ("coco228", 0, {"unlisted": 50, "empty": 4}),
        ("deeppcb", 0, {}),
        ("fod", 0, {"leak": 6}),
    ],
)
def test_other_real_sets(run: Run, tmp_path: Path, data: str, status: int, expected: dict[str, int]) -> None:
    shared("data", data)
    done = run("check", f"data={data}", "name=x")
    assert done.returncode == status, done.stderr
    found = counts(tmp_path / "runs/data/x")
    assert {code: found[code] for code in expected} == expected
    if data in ("cards", "deeppcb"):
        assert found == {}


def test_convert_says_what_is_lost_and_how_to_go_on(run: Run, tmp_path: Path) -> None:
    shared("data", "chess")
    done = run("convert", "data=chess", "format=darknet", "output=made", "pictures=link")
    assert done.returncode == 0, done.stderr
    said = done.stderr + done.stdout
    assert "not in made: 289 x license of images" in said
    assert "not in made: 1 problems of chess itself" in said
    assert "318 pictures, 3244 boxes, no corner moved by more than" in said
    assert "python tools/train.py data=darknet data.root=made data.num_classes=12" in said
    done = run("check", "data=darknet", "data.root=made", "data.num_classes=12", "name=again")
    assert done.returncode == 0, done.stderr
    assert counts(tmp_path / "runs/data/again")["leak"] == 75


def test_show_draws_what_training_sees(run: Run, tmp_path: Path) -> None:
    source = yolo_set(tmp_path / "set", {"train": {"a.png": ROW, "b.png": ROW, "c.png": ROW}})
    options = ["count=2", "versions=2", "preprocess.size=[64,96]", "augment=mosaic"]
    for name in ("one", "two"):
        done = run("show", f"source={source}", f"name={name}", *options)
        assert done.returncode == 0, done.stderr
    sheets = sorted((tmp_path / "runs/data/one/train").iterdir())
    assert len(sheets) == 2
    assert load_image(sheets[0]).shape == (64, 3 * 96 + 2 * 6, 3)
    for sheet in sheets:
        assert sheet.read_bytes() == (tmp_path / "runs/data/two/train" / sheet.name).read_bytes()
    done = run("show", f"source={source}", "split=val")
    assert (done.returncode, "has the splits train, got split=val" in done.stderr) == (1, True)
