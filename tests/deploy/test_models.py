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


def test_one_of_each_kind_of_graph(tmp_path: Path) -> None:
    """The cheapest with a passthrough, softmax and a free size; all others are in the slow test."""
    check("yolov2", tmp_path)


def build(path: Path) -> None:
    built = build_engine(path, path.with_suffix(".engine"), EngineOptions("tensorrt_rtx", targets=(89,)))
    assert built.engine["bytes"] > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DETECTORS))
def test_every_model_runs_and_builds(name: str, tmp_path: Path) -> None:
    """fp32 with suppression and every axis free that can be; fp16 and int8 at one size."""
    path = check(name, tmp_path)
    pytest.importorskip(
        "tensorrt_rtx", reason="tensorrt-rtx is not installed (it is no dependency of this project)"
    )
    build(path)
    model = small(name)
    size = model.preprocess.size
    for precision in ("fp16", "int8"):
        wanted = Wanted("fp16" if precision == "fp16" else "fp32", size=size)
        about = describe(model, wanted)
        module, _ = deployed(model.detector, wanted, half=precision == "fp16")
        path = tmp_path / f"{precision}.onnx"
        export_onnx(module, path, about)
        if precision == "int8":
            graph = load(path)
            insert_pairs(graph, measure(folded(model.detector), [pictures(1, *size) / 255.0], "max"))
            save(graph, path, about)
        build(path)
