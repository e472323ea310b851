"""mAP50 of the COCO models as ``darknet detector map`` measured it, by the functions that tools/val.py calls.

What is scored must be Darknet's to the last pixel (``preprocess.interpolation=darknet``). Pixels off by 1 to 3 move
scores by up to 0.008, which changes the order of a few detections; in tiny_val a class with a single object, found
second instead of first, moves the mean by half of 1 / 80 alone.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.utils import instantiate

from tests.helpers.paths import shared
from yolo.checkpoint import load_model
from yolo.data import Annotated
from yolo.evaluate import evaluate
from yolo.inference import with_preprocess
from yolo.metrics import DetectionMetric
from yolo.types import Found, Record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MODELS = {  # coco128_train, tiny_val: area under the curve, mean over all 80 classes
    "yolov3-tiny/yolov3-tiny": (0.2444, 0.1679),
    "yolo-fastest/yolo-fastest-1.1_coco/yolo-fastest-1.1": (0.2906, 0.1830),
    "yolo-fastest/yolo-fastest-1.1_coco/yolo-fastest-1.1-xl": (0.3931, 0.2455),
    "yolo-fastest/yolo-fastest-1.0_coco/yolo-fastest": (0.2445, 0.1603),
    "yolo-fastest/yolo-fastest-1.0_coco/yolo-fastest-xl": (0.3474, 0.2175),
    "mobilenet-yolo/MobileNetV2-YOLOv3-Nano/COCO/MobileNetV2-YOLOv3-Nano-coco": (0.3193, 0.2018),
    "yolo-lite/coco_trial6": (0.1200, 0.0841),
}
SPLITS = ("coco128_train", "tiny_val")
POINTS = {  # other ways to average
    ("yolov3-tiny/yolov3-tiny", "coco128_train", 101): 0.2463,
    ("yolov3-tiny/yolov3-tiny", "tiny_val", 101): 0.1689,
    ("yolo-fastest/yolo-fastest-1.1_coco/yolo-fastest-1.1", "tiny_val", 11): 0.1879,
    ("yolo-fastest/yolo-fastest-1.1_coco/yolo-fastest-1.1", "tiny_val", 101): 0.1840,
}
WITHIN = 0.0001  # the last digit that Darknet prints


def settings(split: str) -> Any:
    """configs/val.yaml with metric=darknet and the pictures of Darknet."""
    options = ["data=coco228", "metric=darknet", "weights=x", f"data.root={shared('data', 'coco228')}"]
    options += ["preprocess.resize=stretch", "preprocess.interpolation=darknet", "data.cache_dir=null"]
    with initialize_config_module("yolo.configs", version_base="1.3"):
        return compose("val", [*options, f"data.val_split={split}"])


def weights_of(name: str) -> Path:
    return shared("weights", *f"{name}.weights".split("/"))


@cache
def evaluated(name: str, split: str) -> tuple[float, list[Found], list[Record], list[str]]:
    cfg = settings(split)
    model = with_preprocess(load_model(weights_of(name)), **cfg.preprocess)
    annotated: Annotated = instantiate(cfg.data.val, _convert_="all")()
    options = {"match": "index", "batch_size": 8, "workers": 0, "device": "cpu"}
    report, found, records = evaluate(model, annotated, **cfg.metric, **options)  # type: ignore[arg-type]
    number = report["darknet_map50"]
    assert number is not None
    return number, found, records, model.classes


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", MODELS)
def test_the_number_is_darknets(name: str, split: str) -> None:
    assert evaluated(name, split)[0] == pytest.approx(MODELS[name][SPLITS.index(split)], abs=WITHIN)


@pytest.mark.parametrize(("name", "split", "points"), POINTS)
def test_other_points(name: str, split: str, points: Any) -> None:
    _, found, records, classes = evaluated(name, split)
    metric = DetectionMetric(classes, 0.005, class_set="all", points=points)
    metric.update(found, records)
    # as compiled, Darknet takes 3 * 0.1 for 3 / 10, a hair more than a recall of 0.3: one class misses one of 11 points
    slip = 1 / 11 / 80 if points == 11 else 0.0
    assert metric.compute()["darknet_map50"] - slip == pytest.approx(POINTS[name, split, points], abs=WITHIN)
