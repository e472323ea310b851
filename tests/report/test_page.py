"""Whole reports: one file that needs nothing else, with every part, and never at the cost of a run."""

import logging
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table as RichTable

from tests.metrics.sets import found, score
from yolo.anchors import Assignment
from yolo.data import Annotated, Preprocess, load_image, read_digits
from yolo.metrics.pictures import picture
from yolo.models import yolov2_tiny
from yolo.report.page import Page, Table, Text, never_fatal
from yolo.report.run import Priors, Validated, evaluation_report, export_report, training_report
from yolo.report.sections import Started
from yolo.types import Found

METRICS = """\
epoch,step,lr,speed/images_per_second,train/box_epoch,train/box_step,train/loss_epoch,train/loss_step,val/map,val/map50
,9,0.1,,,,,,,
0,9,,,,2.5,,7.1,,
0,9,,,,,,,0.1,0.3
0,9,,50,2.4,,7.0,,,
1,19,,55,1.4,,4.0,,0.2,0.5
"""
STARTED = Started(["python", "tools/train.py", "name=a b"], "seed: 3\n", 3)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Annotated:
    return read_digits(
        tmp_path_factory.mktemp("digits"), "val", counts=(2, 6, 2), size=(96, 96), scale=(24, 48)
    )


def detections(scenes: Annotated) -> list[Found]:
    """Every object but the first of each picture, and one false alarm."""
    results = []
    for one in scenes.records:
        boxes = np.concatenate([one.truth.boxes[1:], [[0, 0, 5, 5]]])
        results.append(found(boxes, np.linspace(0.9, 0.6, len(boxes)), [*one.truth.labels[1:], 3]))
    return results


class Links(HTMLParser):
    """Everything that a browser would fetch, the headings, and tags that stay open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "poster")]
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def headings(text: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", text)


def test_a_training_report_has_all_of_it(tmp_path: Path, scenes: Annotated) -> None:
    (tmp_path / "metrics.csv").write_text(METRICS)
    (tmp_path / "report").mkdir()
    Page(tmp_path, "").photo("batch_0", load_image(scenes.records[0].path))
    pictures = [
        picture(one, record, 10, 0.0) for one, record in zip(detections(scenes), scenes.records, strict=True)
    ]
    priors = Priors(Preprocess((96, 96)), yolov2_tiny(num_classes=10, width=0.125).specs, Assignment())
    splits = {"train": scenes, "val": scenes}
    path = training_report(tmp_path, scenes.classes, splits, STARTED, Validated(pictures, 2), priors)
    text = path.read_text("utf-8")
    wanted = (
        "Scores Classes Training Curves Confusion Worst_pictures First_batches Anchors Data How_it_was_run"
    )
    assert headings(text) == [*(name.replace("_", " ") for name in wanted.split()), "Configuration"]
    links = Links(text)
    assert links.open == []
    assert [one for one in links.sources if not one.startswith(("data:image/", "#"))] == []
    assert "python tools/train.py &#39;name=a b&#39;" in text
    plots = {one.stem for one in (tmp_path / "report").glob("*.png")}
    assert plots >= {"losses", "scores", "learning_rate", "speed", "precision_recall", "f1", "class_ap"}
    assert plots >= {"calibration", "confusion", "anchors", "data_classes", "data_objects"}
    assert len(list((tmp_path / "report").glob("worst_*.jpg"))) == 6


def test_a_run_that_logged_nothing_still_has_a_report(tmp_path: Path, scenes: Annotated) -> None:
    path = training_report(tmp_path, scenes.classes, {"train": scenes}, STARTED)
    assert headings(path.read_text()) == ["Data", "How it was run", "Configuration"]


@pytest.mark.parametrize("kind", ["usual", "nothing found", "nothing there"])
def test_an_evaluation_report(tmp_path: Path, scenes: Annotated, kind: str) -> None:
    records = scenes.records if kind != "nothing there" else []
    results = detections(scenes) if kind == "usual" else [found() for _ in records]
    report = score(scenes.classes, results[: len(records)], records)
    report["settings"] |= {"weights": "best.ckpt", "split": "val"}
    path = evaluation_report(
        tmp_path, report, results[: len(records)], records, scenes.classes, {"val": scenes}, STARTED, 2.0
    )
    text = path.read_text("utf-8")
    assert "How it was run" in headings(text)
    assert ("Worst pictures" in headings(text)) == (kind != "nothing there")
    if kind == "usual":
        assert "pictures a second" in text
        assert f"{report['map50']:.3f}" in text


def test_an_export_report(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"x" * 2_000_000)
    table = RichTable(title="against PyTorch fp32")
    table.add_column("")
    table.add_column("ONNX Runtime fp32 cpu")
    table.add_row("verdict", "passed")
    text = export_report(tmp_path, tmp_path / "x.onnx", True, [table], STARTED).read_text("utf-8")
    assert headings(text)[0] == "Against pytorch fp32"
    assert "<b>2.0</b><span>MB</span>" in text
    assert "<td>verdict</td><td>passed</td>" in text


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    page = Page(tmp_path, "<script>alert(1)</script>")
    page.add("A & b", Text("<img src=x>", literal=True), Table(("<i>",), [("</table>",)]))
    text = page.write().read_text("utf-8")
    assert "<script" not in text
    assert Links(text).sources == ["#a-&-b"]


def test_a_failing_report_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), never_fatal("report"):
        raise KeyError("two\nlines")
    assert [record.getMessage() for record in caplog.records] == ["no report: KeyError: 'two\\nlines'"]
