"""Kind C of the bug reports: the command line and what is named in files."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig

from tests.cases.inputs import case, copied, counts, expected
from yolo.checkpoint import load_model
from yolo.cli import answer, main
from yolo.darknet import load_darknet
from yolo.data import read_darknet, read_yolo
from yolo.data.formats.plain_yaml import class_names
from yolo.inference import Shot
from yolo.metrics import DetectionMetric
from yolo.report import write_metrics, write_predictions, write_results
from yolo.types import Found

Run = Callable[..., tuple[int, str, list[DictConfig]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Call a tool with configs/train.yaml; gives exit status, stderr and the config that its work began with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("YOLO_DEBUG", raising=False)

    def call(*arguments: str) -> tuple[int, str, list[DictConfig]]:
        begun: list[DictConfig] = []
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        status = 0
        try:
            answer("train", "Train.")
            main("train")(begun.append)()
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, capsys.readouterr().err, begun

    return call


def lines(name: str, file: str = "overrides.txt") -> list[str]:
    return (case(name) / file).read_text("utf-8").splitlines()


def assert_quoting_is_shown(run: Run, override: str) -> None:
    """The message shows how to write it, and what it shows is taken with the very value."""
    status, error, begun = run(override)
    assert (status, begun) == (2, [])
    (shown,) = shlex.split(re.search(r'".*"', error)[0])
    status, error, (config,) = run(shown)
    assert status == 0, error
    key, _, value = override.partition("=")
    assert str(config[key.lstrip("+")]) == value


def test_c01_values_with_special_letters(run: Run) -> None:
    bare, quoted, brackets, blank = lines("C01")
    assert_quoting_is_shown(run, bare)
    assert_quoting_is_shown(run, brackets)
    for accepted, value in ((quoted, "runs/epoch=9-step=100.ckpt"), (blank, "runs/my model.ckpt")):
        status, error, (config,) = run(accepted)
        assert status == 0, error
        assert config.weights == value


@pytest.mark.parametrize(
    ("number", "nearest"),
    [
        (1, "trainer."),
        (2, "trainer"),
        (3, "hydra.output_subdir"),
        (4, "trainer"),
        (5, "trainer"),
        (6, "preprocess.size|train"),
    ],
)
def test_c02_mistyped_keys(run: Run, number: int, nearest: str) -> None:
    status, error, begun = run(lines("C02")[number - 1])
    assert (status, begun) == (2, [])
    assert error.count("\n") == 1
    assert re.search(rf"the nearest is '.*({nearest}).*'", error), error


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.max_epochs=five", "trainer.max_epochs is a number"),
        ("preprocess.size=416,256", r"write preprocess\.size=\[416,256\]"),
        ("traner.max_epochs=5", "the nearest is 'trainer.max_epochs'"),
        ("trainer.max_epoch=5", "the nearest is 'trainer.max_epochs'"),
    ],
)
def test_c02_with_the_keys_of_this_project(run: Run, override: str, message: str) -> None:
    status, error, begun = run(override)
    assert (status, begun) == (2, [])
    assert re.search(message, error), error


def test_c03_names_stay_text(run: Run) -> None:
    names = ["yes", "no", "on", "off", "null", "007", "12:30:45", "1_000", "y"]
    assert class_names(case("C03") / "data.yaml") == names
    assert class_names(case("C03") / "data_map.yaml") == ["no", "kite", "3"]
    for wrong in (True, None, 7, 45045):  # what a typed YAML or the command line makes of them
        with pytest.raises(ValueError, match=rf"class 1 is {wrong} and not text.*in quotes"):
            read_yolo(case("D01"), ["kite", wrong])


def test_c04_blanks_in_names_and_files(tmp_path: Path) -> None:
    want = expected("C04")
    folder = copied("C04", tmp_path)
    annotated = read_yolo(folder / "images", folder / "obj.names")
    names = annotated.classes
    assert names == ["traffic light", "stop sign", "0 zero", "license plate (rear)", "犬"]
    assert len(names) == want["names"]
    assert counts(annotated)[1] == want["boxes"]
    found = [
        Found(one.truth.boxes, np.full(len(one.truth.labels), 0.5, np.float32), one.truth.labels)
        for one in annotated.records
    ]
    shots = [
        Shot(one.path, Path(one.image_id), np.full((64, 64, 3), 90, np.uint8)) for one in annotated.records
    ]
    write_predictions(zip(shots, found, strict=True), names, tmp_path, save_txt=True, save_crops=True)
    again = read_yolo(tmp_path / "images", folder / "obj.names")  # labels/ stands beside images/
    assert [one.image_id for one in again.records] == [one.image_id for one in annotated.records]
    for one, other in zip(again.records, annotated.records, strict=True):
        assert one.truth.labels.tolist() == other.truth.labels.tolist()
    predictions = json.loads((tmp_path / "predictions.json").read_text("utf-8"))
    assert [one["name"] for one in predictions] == [one.image_id for one in annotated.records]
    write_results(found, annotated.records, names, tmp_path / "results.json")
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    labels = [label for one in annotated.records for label in one.truth.labels]
    assert [row["category"] for row in results] == [names[label] for label in labels]
    metric = DetectionMetric(names)
    metric.update(found, annotated.records)
    write_metrics(metric.compute(), tmp_path / "metrics.json")
    assert list(json.loads((tmp_path / "metrics.json").read_text("utf-8"))["per_class"]) == names


def test_c05_names_files() -> None:
    folder = case("C05")
    assert class_names(folder / "obj.names") == expected("C05")["names"]
    with pytest.raises(ValueError, match=r"obj\.data\): 2 class names, but the number of classes is 3"):
        read_darknet(folder / "obj.data")
    with pytest.raises(ValueError, match=r"missing\.data: it names nosuch\.names"):
        read_darknet(folder / "missing.data")


def test_c06_files_in_each_others_place() -> None:
    cfg, data, names = case("W01") / "one.cfg", case("C05") / "obj.data", case("C05") / "obj.names"
    weights, listing = case("W01") / "v0.1.weights", case("D09") / "train.txt"

    def refusal(function: Callable[..., object], *arguments: object, **options: object) -> str:
        with pytest.raises(ValueError, match=r"\S") as caught:
            function(*arguments, **options)
        return str(caught.value)

    assert refusal(load_model, cfg).endswith("one.cfg: not a checkpoint that can be read safely: "
                                             "it looks like a Darknet cfg")  # fmt: skip
    assert refusal(load_model, data).endswith("it looks like a Darknet .data file")
    assert "not a Darknet cfg" in refusal(load_darknet, weights, data)
    assert "no weights file at all" in refusal(load_darknet, data, cfg)
    assert "looks like a Darknet cfg" in refusal(read_darknet, cfg, names)
    assert "looks like Darknet weights" in refusal(read_darknet, weights, names)
    assert "looks like a Darknet .data file" in refusal(read_darknet, listing, data)
    assert "looks like a list of pictures" in refusal(read_darknet, listing, listing)
    assert "looks like a Darknet cfg" in refusal(class_names, cfg)
    assert "looks like Darknet weights" in refusal(class_names, weights)


def test_c07_letters_that_need_quotes(run: Run) -> None:
    bare, quoted, comment, apostrophe = lines("C07")
    for override in (bare.replace("data=", "weights="), "weights=#1", "weights=it's"):
        assert_quoting_is_shown(run, override)
    status, error, (config,) = run(quoted.replace("data=", "weights="))
    assert (status, config.weights) == (0, "data/犬.yaml"), error
    for override in (bare, comment, apostrophe):  # as they stand
        status, error, begun = run(override)
        assert (status, begun) == (2, [])
        assert "needs quotes" in error or "no option" in error
