"""The whole export: the gate passes good files, rejects bad ones, never says passed of what was not run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.deploy.making import RULE, needs_export, pictures, rtx_module, toy
from yolo.checkpoint import Model
from yolo.deploy import EngineOptions, Exported, Int8Options, Tolerance, Wanted, export
from yolo.deploy.onnx import load, save
from yolo.deploy.parity import TOLERANCES, compare, reject
from yolo.deploy.pictures import batches, images_of, load_images, picture_files
from yolo.deploy.report import parity_table, score_table, sensitivity_table, write_report
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.deploy.triton import config

needs_export()
IMAGES = [np.ascontiguousarray(image.permute(1, 2, 0).numpy()) for image in pictures(4, 90, 130, seed=3)]


def test_gate_passes_what_agrees(model: Model, dynamic: Path) -> None:
    row = compare(TorchRuntime(model, RULE), OnnxRuntime(dynamic), [pictures(3, 64, 96)], TOLERANCES["fp32"])
    assert row.verdict == "passed"
    assert row.detections > 10
    assert row.matched == 1.0
    assert row.pictures == 3
    assert row.raw_box_px is not None
    assert row.raw_box_px < 0.01


def spoilt(path: Path, target: Path, name: str, change: float) -> Path:
    """A copy with one weight of the graph shifted."""
    import onnx

    model = load(path)
    about = OnnxRuntime(path).about
    (weight,) = [one for one in model.graph.initializer if one.name == name]
    values = onnx.numpy_helper.to_array(weight) + np.float32(change)
    weight.CopyFrom(onnx.numpy_helper.from_array(values, name))
    save(model, target, about)
    return target


def test_gate_sees_one_wrong_weight(model: Model, dynamic: Path, tmp_path: Path) -> None:
    bad = spoilt(dynamic, tmp_path / "bad.onnx", "network.head.first.bias", 0.5)
    row = compare(TorchRuntime(model, RULE), OnnxRuntime(bad), [pictures(3, 64, 96)], TOLERANCES["fp32"])
    assert row.verdict.startswith("failed: ")
    assert any(fault.startswith("raw box px") for fault in row.faults)
    assert any(fault.startswith("raw score") for fault in row.faults)


def test_gate_counts_what_has_no_partner(model: Model, dense: Path) -> None:
    """A file that finds nothing does not pass for want of differences."""
    blind = OnnxRuntime(dense, RULE)
    blind.suppress = lambda outputs: TorchRuntime(model).suppress(  # type: ignore[method-assign]
        [torch.full_like(y, -20.0) for y in model.detector(torch.zeros(3, 3, 64, 96))]
    )
    row = compare(TorchRuntime(model, RULE), blind, [pictures(3, 64, 96)], TOLERANCES["fp32"])
    assert row.matched == 0.0
    assert "matched 0.0000 under 0.999" in row.verdict


def test_gate_takes_nan_for_infinitely_far(model: Model, dense: Path, tmp_path: Path) -> None:
    bad = spoilt(dense, tmp_path / "nan.onnx", "network.head.second.bias", float("nan"))
    row = compare(
        TorchRuntime(model, RULE), OnnxRuntime(bad, RULE), [pictures(1, 64, 96)], TOLERANCES["fp32"]
    )
    assert row.raw_score == float("inf")
    assert row.faults


def test_export_passes_and_reports(tmp_path: Path) -> None:
    done = export(toy(), tmp_path / "model.onnx", Wanted(batch=1, size=(64, 96)), IMAGES)
    assert done.passed
    assert done.path == tmp_path / "model.onnx"
    assert [row.verdict for row in done.rows] == ["passed"]
    write_report(done, {}, tmp_path / "parity.json")
    assert json.loads((tmp_path / "parity.json").read_text())["rows"][0]["verdict"] == "passed"
    assert parity_table(done).row_count == 10


def test_over_tolerance_is_rejected(tmp_path: Path) -> None:
    impossible = Tolerance(max_box_px=0.0, max_score=0.0, min_matched=1.0)
    done = export(
        toy(), tmp_path / "model.onnx", Wanted("fp16", batch=1, size=(64, 96)), IMAGES, tolerance=impossible
    )
    assert not done.passed
    assert done.path == tmp_path / "model.onnx.rejected"
    assert done.path.is_file()
    assert not (tmp_path / "model.onnx").exists()
    assert done.rows[0].verdict.startswith("failed")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_engine_that_cannot_run_here_did_not_pass(tmp_path: Path) -> None:
    rtx_module()
    options = EngineOptions("tensorrt_rtx", targets=(89,))
    wanted = Wanted(batch=1, size=(64, 96))
    done = export(toy(), tmp_path / "m.engine", wanted, IMAGES, format="engine", engine=options)
    assert [row.verdict.split(":")[0] for row in done.rows] == ["passed", "not run"]
    assert "needs an NVIDIA GPU" in done.rows[1].verdict
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("m.engine", "m.engine.json", "m.engine.layers.json", "m.onnx"),
    ]


def test_int8(tmp_path: Path) -> None:
    """The layer asked for stays wide and says why; so does one whose error is over the limit."""
    int8 = Int8Options(IMAGES, method="max", probes=2, keep=("head.first",), max_error=1.0)
    done = export(toy(), tmp_path / "q.onnx", Wanted("int8", batch=1, size=(64, 96)), IMAGES, int8=int8)
    assert done.about.precision == "int8"
    assert done.about.kept == {"head.first": "asked for"}
    assert len(done.sensitivity) == 6
    assert sensitivity_table(done).row_count == 6
    assert OnnxRuntime(done.path if done.passed else done.graph).about.kept == done.about.kept
    with pytest.raises(ValueError, match="needs pictures to calibrate on"):
        export(toy(), tmp_path / "r.onnx", Wanted("int8"), IMAGES)
    with pytest.raises(ValueError, match=r"keep: no layer is called head.x; there are backbone.stem.conv"):
        export(toy(), tmp_path / "r.onnx", Wanted("int8"), IMAGES, int8=Int8Options(IMAGES, keep=("head.x",)))
    with pytest.raises(ValueError, match="needs opset 19 or 20, got 18"):
        export(
            toy(),
            tmp_path / "r.onnx",
            Wanted("int8"),
            IMAGES,
            int8=Int8Options(IMAGES, rest="fp16"),
            opset=18,
        )
    assert not list(tmp_path.glob("r.onnx*"))


def test_triton_repository(tmp_path: Path) -> None:
    done = export(toy(), tmp_path / "models", Wanted(batch=1, size=(64, 96)), IMAGES, format="triton")
    assert done.path == tmp_path / "models" / "detector"
    assert (done.path / "1" / "model.onnx").read_bytes() == (tmp_path / "models.onnx").read_bytes()
    assert (done.path / "labels.txt").read_text() == "ant\nbee\ncat\n"
    text = (done.path / "config.pbtxt").read_text()
    assert 'input [ { name: "images", data_type: TYPE_UINT8, dims: [ 1, 3, 64, 96 ] } ]' in text
    assert "max_batch_size: 0" in text


def test_triton_config_with_free_batch_and_size(dynamic: Path) -> None:
    text = config(OnnxRuntime(dynamic).about, "toy")
    assert 'name: "images", data_type: TYPE_UINT8, dims: [ 3, -1, -1 ]' in text
    assert 'name: "boxes", data_type: TYPE_FP32, dims: [ 50, 4 ]' in text
    assert 'name: "count", data_type: TYPE_INT64, dims: [ 1 ], reshape: { shape: [ ] }' in text
    assert "max_batch_size: 32" in text
    assert "dynamic_batching { }" in text


def test_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format must be one of onnx, engine, triton, got 'tflite'"):
        export(toy(), tmp_path / "x", Wanted(), IMAGES, format="tflite")  # type: ignore[arg-type]


def test_pictures(tmp_path: Path) -> None:
    scenes = images_of(None, 3)
    assert len(scenes) == 3
    assert scenes[0].dtype == np.uint8
    files = picture_files(None, tmp_path, 2)
    assert len(files) == 2
    assert len(images_of(tmp_path, 5)) >= 2
    preprocess = toy().preprocess
    parts = batches(scenes, preprocess, 2)
    assert [part.shape for part in parts] == [(2, 3, 64, 96)] * 2
    assert torch.equal(parts[1][1], parts[0][0])  # filled up from the start
    assert len(list(load_images(files * 4, 3))) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        images_of(tmp_path / "empty", 1)


def test_rejecting_renames(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_text("x")
    assert reject(path) == tmp_path / "a.onnx.rejected"
    assert not path.exists()


def test_tables_of_scores(tmp_path: Path) -> None:
    report = {"map50": 0.5, "map": None, "darknet_map50": 0.25}
    assert score_table({"a": report}).row_count == 1  # type: ignore[dict-item]
    done = Exported(tmp_path, tmp_path, OnnxRuntime.__new__(OnnxRuntime), [])  # type: ignore[arg-type]
    assert done.passed
