"""From a model and records to numbers, and the two tools from the command line to their files."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.metrics.sets import truth
from yolo import models
from yolo.checkpoint import Model, save_model
from yolo.data import Annotated, Preprocess, load_image
from yolo.evaluate import aligned, evaluate
from yolo.inference import Inference, choose_device, to_found, with_preprocess
from yolo.types import Detections, Placement, Record

TOOLS = Path(__file__).parent.parent / "tools"
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    detector = models.yolov2_tiny(num_classes=2, width=0.125)
    return Model(detector.eval(), ["kite", "boat"], Preprocess(size=(64, 96)))


def annotated(folder: Path, classes: list[str], count: int = 5) -> Annotated:
    rng = np.random.default_rng(1)
    records = []
    for index in range(count):
        image = rng.integers(0, 255, (40 + index, 70, 3), np.uint8)
        path = folder / f"{index}.png"
        cv2.imwrite(str(path), image)
        records.append(Record(str(index), str(path), truth([[5, 5, 30, 30], [20, 10, 60, 38]], [0, 1])))
    return Annotated(records, classes)


def test_batch_size_and_workers_change_nothing(model: Model, tmp_path: Path) -> None:
    data = annotated(tmp_path, ["kite", "boat"])
    options: dict[str, Any] = {"score_threshold": 0.0001, "device": "cpu"}
    reports = [
        evaluate(model, data, batch_size=size, workers=workers, **options)[0]
        for size, workers in ((1, 0), (4, 1))
    ]
    assert reports[0]["detections"] > 0
    assert reports[0]["per_class"]["boat"]["true_positives"] > 0
    for key in ("map", "voc_map50", "mar_max"):
        assert reports[0][key] == pytest.approx(reports[1][key], abs=1e-6)


def test_settings_are_in_the_report(model: Model, tmp_path: Path) -> None:
    report, _, _ = evaluate(
        model, annotated(tmp_path, ["kite", "boat"]), nms=0.3, kept=7, workers=0, device="cpu"
    )
    wanted = {
        "score_threshold": 0.005,
        "nms": 0.3,
        "kept": 7,
        "max_detections": 100,
        "classes": "present",
        "points": "area",
    }
    wanted |= {
        "resize": "letterbox",
        "size": [64, 96],
        "precision": "fp32",
        "device": "cpu",
        "multi_label": True,
    }
    assert wanted.items() <= report["settings"].items()
    json.dumps(report, allow_nan=False)


def test_a_full_list_of_detections_is_noted(model: Model, tmp_path: Path) -> None:
    data = annotated(tmp_path, ["kite", "boat"])
    report, _, _ = evaluate(model, data, score_threshold=0.0, kept=2, workers=0, device="cpu")
    assert any("5 pictures reached kept=2" in note for note in report["notes"])


def test_classes_meet_by_name() -> None:
    """Case D21: the same names in another order."""
    record = Record("1", "1.png", truth([[0, 0, 1, 1], [0, 0, 2, 2]], [0, 1]))
    (turned,) = aligned([record], ["boat", "kite"], ["kite", "tree", "boat"])
    assert turned.truth.labels.tolist() == [2, 0]
    assert record.truth.labels.tolist() == [0, 1]
    assert aligned([record], ["a", "b"], ["c", "d"], match="index") == [record]


def test_classes_that_do_not_meet_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"classes that the model does not know: ufo; data set: kite, ufo; model: kite, boat"
    ):
        aligned([], ["kite", "ufo"], ["kite", "boat"])
    with pytest.raises(ValueError, match="the data set has 3 classes, the model 2"):
        aligned([], ["a", "b", "c"], ["kite", "boat"], match="index")


def detections(boxes: list[list[float]]) -> Detections:
    count = len(boxes)
    padded = torch.zeros(1, count + 3, 4)
    padded[0, :count] = torch.tensor(boxes)
    return Detections(
        padded, torch.ones(1, count + 3), torch.zeros(1, count + 3, dtype=torch.int64), torch.tensor([count])
    )


def test_to_found_undoes_the_placement_that_was_used() -> None:
    """A 200 x 100 picture on a 100 x 100 canvas: scale 1/2, 25 pixels above."""
    placement = Placement(0.5, 0.5, 0, 25, 200, 100)
    (one,) = to_found(detections([[10, 30, 20, 50], [-5, 20, 110, 80], [0, 0, 50, 20]]), [placement])
    assert one.boxes.tolist() == [[20, 10, 40, 50], [0, 0, 200, 100]]  # the third lies in the padding
    (whole,) = to_found(detections([[-5, 20, 110, 80]]), [placement], clip=False)
    assert whole.boxes.tolist() == [[-10, -10, 220, 110]]


def test_preprocess_can_be_changed(model: Model) -> None:
    changed = with_preprocess(model, "stretch", [128, 64])
    assert (changed.preprocess.resize, changed.preprocess.size) == ("stretch", (128, 64))
    assert with_preprocess(model, None, None).preprocess == model.preprocess
    with pytest.raises(ValueError, match="multiple of 32"):
        with_preprocess(model, None, [100, 64])
    with pytest.raises(ValueError, match="height and width"):
        with_preprocess(model, None, [64])


def test_devices_and_precisions_that_do_not_exist(model: Model) -> None:
    with pytest.raises(ValueError, match="device must be"):
        choose_device("gpu")
    with pytest.raises(ValueError, match="PyTorch sees"):
        choose_device("cuda:99")
    with pytest.raises(ValueError, match="precision must be one of fp32, bf16, fp16, got 'int8'"):
        Inference(model, precision="int8")  # type: ignore[arg-type]


def test_bf16_finds_the_same(model: Model, tmp_path: Path) -> None:
    data = annotated(tmp_path, ["kite", "boat"])
    options: dict[str, Any] = {"score_threshold": 0.0001, "workers": 0, "device": "cpu"}
    full, half = (evaluate(model, data, precision=one, **options)[0] for one in ("fp32", "bf16"))
    assert half["mar_max"] == pytest.approx(full["mar_max"], abs=0.2)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_gpu_finds_what_the_cpu_finds(model: Model, tmp_path: Path, precision: Any) -> None:
    data = annotated(tmp_path, ["kite", "boat"])
    options: dict[str, Any] = {"score_threshold": 0.0001, "workers": 0}
    cpu = evaluate(model, data, device="cpu", **options)[0]
    gpu = evaluate(model, data, device="cuda", precision=precision, **options)[0]
    assert gpu["mar_max"] == pytest.approx(cpu["mar_max"], abs=0.02 if precision == "fp32" else 0.2)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a checkpoint of an untrained network for digits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOLO_CACHE", str(tmp_path / "cache"))
    detector = models.yolov2_tiny(num_classes=10, width=0.125)
    save_model(Model(detector.eval(), DIGITS, Preprocess(size=(96, 96))), tmp_path / "fresh.ckpt")
    return tmp_path


def tool(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(TOOLS / f"{name}.py"), run_name="__main__")


def test_val_writes_its_metrics(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("data=digits", "data.counts=[4,4,6]", "workers=0", "device=cpu", "name=v")
    tool(
        monkeypatch,
        "val",
        "weights=fresh.ckpt",
        *small,
        "split=test",
        "draw=2",
        "save_results=true",
        "preprocess.resize=stretch",
    )
    folder = work / "runs/val/v"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert {"map", "map50", "map75", "voc07_map50", "voc_map50", "per_class"} <= metrics.keys()
    assert metrics["pictures"] == 6
    assert list(metrics["per_class"]) == DIGITS
    assert metrics["settings"]["resize"] == "stretch"
    assert metrics["settings"]["split"] == "test"
    assert len(list((folder / "pictures").iterdir())) == 2
    assert isinstance(json.loads((folder / "results.json").read_text()), list)
    shown = capsys.readouterr().out
    assert "VOC 2007, 11 points" in shown
    assert "max_detections" in shown


def test_val_refuses_a_split_that_is_not_there(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        tool(monkeypatch, "val", "weights=fresh.ckpt", "data=digits", "split=tset")
    assert stop.value.code == 1
    assert (
        capsys.readouterr().err == "val.py: data set digits has the splits train, val, test, got split=tset\n"
    )


def test_predict_writes_pictures_and_list(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    annotated(work, [], count=3)
    tool(
        monkeypatch,
        "predict",
        "weights=fresh.ckpt",
        "source=*.png",
        "score_threshold=0.0001",
        "device=cpu",
        "name=p",
    )
    entries = json.loads((work / "runs/predict/p/predictions.json").read_text())
    assert [entry["name"] for entry in entries] == ["0.png", "1.png", "2.png"]
    assert all(entry["detections"] for entry in entries)
    assert sorted(path.name for path in (work / "runs/predict/p/images").iterdir()) == [
        "0.png",
        "1.png",
        "2.png",
    ]


def test_predict_decodes_as_darknet_where_that_is_wanted(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cv2.imwrite("a.jpg", np.zeros((70, 90, 3), np.uint8))
    asked: list[str] = []
    monkeypatch.setattr(
        "yolo.predict.load_image", lambda path, rounding: asked.append(rounding) or load_image(path)
    )
    for interpolation in ("darknet", "null"):
        options = ["weights=fresh.ckpt", "source=a.jpg", "device=cpu", f"name={interpolation}"]
        tool(monkeypatch, "predict", *options, f"preprocess.interpolation={interpolation}")
    assert asked == ["stb", "libjpeg"]


def test_predict_without_one_readable_picture_fails(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "bad.png").write_bytes(b"nothing")
    with pytest.raises(SystemExit) as stop:
        tool(monkeypatch, "predict", "weights=fresh.ckpt", "source=bad.png", "device=cpu")
    assert stop.value.code == 1
    assert "not one picture could be read" in capsys.readouterr().err
