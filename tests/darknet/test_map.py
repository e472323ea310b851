"""mAP50 of the eight COCO models as ``darknet detector map`` measured it, and what keeps the last digit away.

With Darknet's own pixels (its JPEG arithmetic, tests/helpers/jpeg.py, and no rounding to bytes after resizing) the
numbers are Darknet's. The tools decode with libjpeg and feed bytes. That moves scores by up to 0.008, which changes
the order of a few detections: 12 of the 14 numbers stay within 0.003, the two in ``MOVED`` do not. In tiny_val a
class with a single object, found second instead of first, moves the mean by half of 1 / 80 alone.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from numpy.typing import NDArray

from tests.helpers import jpeg
from tests.helpers.paths import shared
from yolo.checkpoint import load_model
from yolo.darknet import CfgDetector, load_darknet
from yolo.darknet.suppress import resolve_kind, suppress_by_distance
from yolo.data import Annotated
from yolo.data.preprocess import resize_aligned
from yolo.evaluate import aligned, evaluate
from yolo.inference import to_found, with_preprocess
from yolo.metrics import DetectionMetric
from yolo.ops import detect
from yolo.types import Found, Placement

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
MOVED = {  # what the tools say where they are further away
    ("yolov3-tiny/yolov3-tiny", "tiny_val"): 0.1743,
    ("yolo-fastest/yolo-fastest-1.1_coco/yolo-fastest-1.1-xl", "coco128_train"): 0.3895,
}
POINTS = {  # other ways to average, tiny_val
    ("yolov3-tiny/yolov3-tiny", 101): 0.1689,
    ("yolo-fastest/yolo-fastest-1.1_coco/yolo-fastest-1.1", 11): 0.1879,
    ("yolo-fastest/yolo-fastest-1.1_coco/yolo-fastest-1.1", 101): 0.1840,
}


def weights_of(name: str) -> Path:
    return shared("weights", *f"{name}.weights".split("/"))


def settings(split: str, *overrides: str) -> Any:
    """configs/val.yaml with metric=darknet and the pictures of Darknet."""
    options = ["data=coco228", "metric=darknet", "weights=x", f"data.root={shared('data', 'coco228')}"]
    options += ["preprocess.resize=stretch", "preprocess.interpolation=darknet", "data.cache_dir=null"]
    with initialize_config_module("yolo.configs", version_base="1.3"):
        return compose("val", [*options, f"data.val_split={split}", *overrides])


@cache
def annotated(split: str) -> Annotated:
    return instantiate(settings(split).data.val, _convert_="all")()


@cache
def pixels(path: str) -> NDArray[np.uint8]:
    return jpeg.decode(path)


@cache
def found_in(name: str, split: str) -> tuple[list[Found], list[str]]:
    """Detections from Darknet's pixels, by the functions that the tools use."""
    detector, classes = load_darknet(weights_of(name))
    assert isinstance(detector, CfgDetector)
    rows, cols = detector.eval().input_size
    by_distance = resolve_kind("cfg", detector) == "distance"
    found = []
    for record in annotated(split).records:
        image = pixels(record.path)
        height, width = image.shape[:2]
        canvas = torch.from_numpy(resize_aligned(image.astype(np.float32), rows, cols)).permute(2, 0, 1)[None]
        with torch.inference_mode():
            result = detect(
                detector(canvas / 255), detector.specs, score_threshold=0.005, multi_label=True,
                iou_threshold=1.0 if by_distance else 0.45, max_detections=10_000,
            )  # fmt: skip
        (one,) = to_found(result, [Placement(cols / width, rows / height, 0, 0, width, height)], clip=False)
        found.append(suppress_by_distance(one, height, width, 0.45, 10_000) if by_distance else one)
    return found, classes


def score(name: str, split: str, points: Any = "area") -> float:
    found, classes = found_in(name, split)
    metric = DetectionMetric(classes, 0.005, class_set="all", points=points)
    data = annotated(split)
    metric.update(found, aligned(data.records, data.classes, classes, match="index"))
    result = metric.compute()["darknet_map50"]
    assert result is not None
    return result


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", MODELS)
def test_from_darknets_pixels_comes_darknets_number(name: str, split: str) -> None:
    within = 0.0025 if name == "yolo-lite/coco_trial6" else 0.0005
    assert score(name, split) == pytest.approx(MODELS[name][SPLITS.index(split)], abs=within)


@pytest.mark.parametrize(("name", "points"), POINTS)
def test_other_points(name: str, points: int) -> None:
    assert score(name, "tiny_val", points) == pytest.approx(POINTS[name, points], abs=0.002)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", MODELS)
def test_the_tools_stay_within_three_thousandths_but_for_two(name: str, split: str) -> None:
    cfg = settings(split)
    model = with_preprocess(load_model(weights_of(name)), **cfg.preprocess)
    options = {"match": "index", "batch_size": 8, "workers": 0, "device": "cpu"}
    report, _, _ = evaluate(model, annotated(split), **cfg.metric, **options)  # type: ignore[arg-type]
    darknets = MODELS[name][SPLITS.index(split)]
    assert report["darknet_map50"] == pytest.approx(MOVED.get((name, split), darknets), abs=0.003)
    if (name, split) in MOVED:
        assert report["darknet_map50"] == pytest.approx(darknets, abs=0.007)
