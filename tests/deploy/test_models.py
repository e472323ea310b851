"""Every network of this project through export: a batch and a size never traced, all precisions built."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.deploy.making import needs_export, pictures, rtx_module
from yolo import models
from yolo.checkpoint import Model
from yolo.data import Preprocess
from yolo.deploy import EngineOptions, Metadata, Suppression, Wanted
from yolo.deploy.build import deployed, describe
from yolo.deploy.calibrate import measure
from yolo.deploy.onnx import export_onnx, load, save
from yolo.deploy.precision import folded
from yolo.deploy.quantize import insert_pairs
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.deploy.tensorrt import build_engine
from yolo.models.build import DETECTORS

needs_export()
CLASSES = ["a", "b", "c", "d"]


def small(name: str) -> Model:
    """A thin network whose scores are spread out, so that there is something to suppress."""
    torch.manual_seed(0)
    arguments = {"num_classes": len(CLASSES), "width": 0.0625}
    detector = models.build(name, arguments).eval()
    size = detector.fixed_size or (64, 96)
    images = pictures(3, *(detector.fixed_size or (160, 128)), seed=5) / 255.0
    with torch.no_grad():
        for spread in (True, False):  # first how far the raw outputs reach, then where they lie
            for predictor, spec, output in zip(
                detector.predictors, detector.specs, detector(images), strict=True
            ):
                wanted = 0.2 if spec.kind == "grid" else 0.7
                axes = (0,) if spec.kind == "grid" else (0, 2, 3)
                if spread:
                    predictor.weight *= min(100.0, wanted / float(output.std(dim=axes).mean()))
                else:
                    predictor.bias += torch.randn(predictor.bias.shape) * wanted - output.mean(dim=axes)
    return Model(detector, CLASSES, Preprocess(size))


def busy(model: Model, images: torch.Tensor, multi_label: bool = False) -> Suppression:
    """A threshold that about sixty predictions of the first picture pass, between two scores far apart."""
    scores = TorchRuntime(model).every(images)[1][0]
    best = (scores.flatten() if multi_label else scores.amax(dim=-1)).sort(descending=True).values[:80]
    gap = int((best[40:-1] - best[41:]).argmax()) + 40
    threshold = float(best[gap] + best[gap + 1]) / 2
    return Suppression(threshold, max_detections=100, candidates=300, multi_label=multi_label)


def check(name: str, folder: Path) -> Path:
    """Export with suppression and free axes, run, compare; returns the file."""
    model = small(name)
    fixed = model.detector.fixed_size
    images = pictures(3, *(fixed or (160, 128)), seed=5)
    rule = busy(model, images)
    wanted = Wanted(rule=rule, size=fixed)
    about = describe(model, wanted)
    module, _ = deployed(model.detector, wanted, half=False)
    path = folder / f"{name}.onnx"
    export_onnx(module, path, about)
    runtime, reference = OnnxRuntime(path), TorchRuntime(model, rule)
    boxes, scores = reference.every(images)
    got_boxes, got_scores = runtime.every(images)
    shown = scores.amax(dim=-1) > 1e-3
    assert float((got_boxes - boxes)[shown].abs().max()) < 1e-3 * max(images.shape[2:])
    assert float((got_scores - scores).abs().max()) < 1e-4
    found, expected = runtime(images), reference(images)
    assert expected.count.min() > 0
    assert found.count.tolist() == expected.count.tolist()
    assert torch.equal(found.labels, expected.labels)
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.boxes, expected.boxes, rtol=0, atol=1e-3 * max(images.shape[2:]))
    return path


def build(path: Path) -> Metadata:
    about = build_engine(path, path.with_suffix(".engine"), EngineOptions("tensorrt_rtx", targets=(89,)))
    assert about.engine["bytes"] > 10_000
    return about


def as_int8(path: Path, model: Model, size: tuple[int, int]) -> Path:
    """The same graph with pairs around every layer."""
    graph = load(path)
    ranges = measure(folded(model.detector), [pictures(1, *size) / 255.0], "max")
    assert insert_pairs(graph, ranges)
    target = path.with_name(f"int8_{path.name}")
    save(graph, target, replace(OnnxRuntime(path).about, precision="int8"))
    return target


FAMILIES = ("yolov1_tiny", "yolov2_tiny", "yolov3_tiny", "yolov4_tiny")
EVERY = [name if name in FAMILIES else pytest.param(name, marks=pytest.mark.slow) for name in DETECTORS]


@pytest.mark.parametrize("name", EVERY)
def test_every_model_runs_and_builds(name: str, tmp_path: Path) -> None:
    """fp32 and int8 with suppression and every axis free that can be; fp16 without, at one size."""
    path = check(name, tmp_path)
    rtx_module()
    model = small(name)
    size = model.preprocess.size
    ((low, _, high),) = build(path).engine["profiles"]
    assert (low[0], high[0]) == (1, 32)
    assert (low[1:] == high[1:]) == (model.detector.fixed_size is not None)
    assert build(as_int8(path, model, size)).precision == "int8"
    wanted = Wanted("fp16", batch=1, size=size)
    about = describe(model, wanted)
    module, _ = deployed(model.detector, wanted, half=True)
    export_onnx(module, tmp_path / "fp16.onnx", about)
    assert build(tmp_path / "fp16.onnx").precision == "fp16"
