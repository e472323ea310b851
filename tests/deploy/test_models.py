"""Every network of this project through export: a batch and a size never traced, all precisions built."""

from pathlib import Path

import pytest
import torch

from tests.deploy.making import pictures
from yolo import models
from yolo.checkpoint import Model
from yolo.data import Preprocess
from yolo.deploy import EngineOptions, Suppression, Wanted
from yolo.deploy.build import deployed, describe
from yolo.deploy.calibrate import measure
from yolo.deploy.onnx import export_onnx, load, save
from yolo.deploy.precision import folded
from yolo.deploy.quantize import insert_pairs
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.deploy.tensorrt import build_engine
from yolo.models.build import DETECTORS

CLASSES = ["a", "b", "c", "d"]


def small(name: str) -> Model:
    """A thin network whose scores are spread out, so that there is something to suppress."""
    torch.manual_seed(0)
    arguments = {"num_classes": len(CLASSES), "width": 0.0625}
    detector = models.build(name, arguments).eval()
    for predictor, spec in zip(detector.predictors, detector.specs, strict=True):
        predictor.weight.data *= 30.0 if spec.kind != "grid" else 3.0
        predictor.bias.data += torch.randn(predictor.bias.shape) * (0.5 if spec.kind != "grid" else 0.1)
    return Model(detector, CLASSES, Preprocess(detector.fixed_size or (64, 96)))


def busy(model: Model, images: torch.Tensor, multi_label: bool = False) -> Suppression:
    """A threshold that about sixty predictions of the first picture pass, between two scores far apart."""
    scores = TorchRuntime(model).every(images)[1][0]
    best = (scores.flatten() if multi_label else scores.amax(dim=-1)).sort(descending=True).values[:80]
    gap = int((best[40:-1] - best[41:]).argmax()) + 40
    threshold = float(best[gap] + best[gap + 1]) / 2
    return Suppression(threshold, max_detections=100, candidates=300, multi_label=multi_label)


def check(name: str, folder: Path) -> None:
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


def test_one_of_each_kind_of_graph(tmp_path: Path) -> None:
    """The cheapest with a passthrough, softmax and a free size; all others are in the slow test."""
    check("yolov2", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DETECTORS if name != "yolov2"])
def test_detections_equal_detect(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DETECTORS))
def test_rtx_builds_every_model(name: str, tmp_path: Path) -> None:
    """fp32 and fp16 with suppression, int8 without; free batch and, where possible, free size."""
    pytest.importorskip(
        "tensorrt_rtx", reason="tensorrt-rtx is not installed (it is no dependency of this project)"
    )
    model = small(name)
    fixed = model.detector.fixed_size
    rule = Suppression(max_detections=50, candidates=200)
    for precision in ("fp32", "fp16", "int8"):
        wanted = Wanted(
            "fp16" if precision == "fp16" else "fp32", rule if precision != "int8" else None, None, fixed
        )
        about = describe(model, wanted)
        module, _ = deployed(model.detector, wanted, half=precision == "fp16")
        path = tmp_path / f"{precision}.onnx"
        export_onnx(module, path, about)
        if precision == "int8":
            graph = load(path)
            size = fixed or (64, 96)
            insert_pairs(graph, measure(folded(model.detector), [pictures(1, *size) / 255.0], "max"))
            save(graph, path, about)
        built = build_engine(path, path.with_suffix(".engine"), EngineOptions("tensorrt_rtx", targets=(89,)))
        assert built.engine["bytes"] > 10_000
