"""Published weights on real pictures: the exported file scores what PyTorch scores."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.paths import shared
from yolo.checkpoint import Model, load_model
from yolo.data import Annotated, read_darknet
from yolo.deploy import Int8Options, Suppression, Wanted, export
from yolo.deploy.pictures import load_images
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.deploy.score import EVALUATION, find, score
from yolo.metrics import DetectionMetric

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TINY = ("yolov3-tiny", "yolov3-tiny.weights")
FASTEST = ("yolo-fastest", "yolo-fastest-1.1_coco", "yolo-fastest-1.1.weights")


def published(parts: tuple[str, ...]) -> Model:
    model = load_model(shared("weights", *parts))
    return replace(model, preprocess=replace(model.preprocess, resize="stretch"))


def split(name: str) -> Annotated:
    folder = shared("data", "coco228")
    return read_darknet(folder / f"{name}.txt", folder / "coco.names")


@pytest.mark.parametrize(("parts", "darknet"), [(TINY, 0.2444), (FASTEST, 0.2906)], ids=["tiny", "fastest"])
def test_suppression_inside_scores_the_same(parts: tuple[str, ...], darknet: float, tmp_path: Path) -> None:
    """Darknet's own mAP50 on these 128 pictures, as a mean over all 80 classes, stands beside it."""
    model, pictures = published(parts), split("coco128_train")
    paths = [record.path for record in pictures.records]
    rule: Suppression = EVALUATION
    wanted = Wanted(rule=rule, size=model.preprocess.size)
    done = export(model, tmp_path / "model.onnx", wanted, list(load_images(paths, 4)))
    assert done.passed, done.rows
    numbers = []
    for runtime in (TorchRuntime(model, rule), OnnxRuntime(done.path)):
        metric = DetectionMetric(model.classes, rule.score_threshold, class_set="all")
        metric.update(find(runtime, paths), pictures.records)
        numbers.append(metric.compute())
    torch_number, onnx_number = (one["map50"] for one in numbers)
    assert onnx_number == pytest.approx(torch_number, abs=1e-3)
    assert numbers[1]["darknet_map50"] == pytest.approx(darknet, abs=3e-3)


def test_int8_of_yolov3_tiny(tmp_path: Path) -> None:
    """Calibrated on 128 pictures: at most 0.02 mAP50 lost on them and on 50 others, a quarter of the size."""
    model = published(TINY)
    seen, unseen = split("coco128_train"), split("tiny_val")
    gate = list(load_images([record.path for record in unseen.records], 8))
    size = model.preprocess.size
    plain = export(model, tmp_path / "fp32.onnx", Wanted(size=size), gate)
    int8 = Int8Options(list(load_images([record.path for record in seen.records])))
    small = export(model, tmp_path / "int8.onnx", Wanted("int8", size=size), gate, int8=int8)
    assert small.passed, small.rows
    assert small.path.stat().st_size <= 0.30 * plain.path.stat().st_size
    for pictures in (seen, unseen):
        before, after = (score(OnnxRuntime(done.path), pictures)["map50"] for done in (plain, small))
        assert before is not None
        assert after is not None
        assert after >= before - 0.02
