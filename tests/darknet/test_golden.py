"""The fifteen real models against OpenCV's head tensors and AlexeyAB's detections."""

import numpy as np
import pytest
import torch

from tests.darknet.golden import models, picture, set_epsilon
from tests.helpers.paths import shared
from yolo.darknet import CfgDetector, load_darknet
from yolo.darknet.names import COCO, VOC
from yolo.ops.detect import detect

NAMES = [
    *("yolov3-tiny", "yolo-fastest-1.1", "yolo-fastest-1.1-xl", "yolo-fastest-1.0", "yolo-fastest-1.1-body"),
    *("mbv2-nano-coco", "mbv2-nano-voc", "mbv2-fastest-voc-v1", "mbv2-fastest-voc-v2", "yoloface-500k"),
    *("yoloface-500k-v2", "yoloface-50k", "yolo-lite-voc-trial3-noBatch", "yolo-lite-voc-trial3"),
    "yolo-lite-coco-trial6",
]
Row = tuple[str, float, float, float, float, float]  # class, percent, left, top, width, height


def load(name: str) -> tuple[CfgDetector, dict, torch.Tensor]:
    about = models()[name]
    detector, _ = load_darknet(shared(*about["weights"].split("/")), shared(*about["cfg"].split("/")))
    return detector.eval(), about, picture(shared(*about["input"].split("/")))


def test_all_models_are_tested() -> None:
    assert sorted(models()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_head_tensors_are_opencvs(name: str) -> None:
    detector, about, image = load(name)
    set_epsilon(detector, 1e-6)  # OpenCV's: nothing else is different
    with torch.inference_mode():
        outputs = detector(image)
    with np.load(shared(*about["heads_file"].split("/"))) as heads:
        assert len(heads) == len(outputs)
        for output, head in zip(outputs, heads.values(), strict=True):
            found = output[0].numpy()
            assert found.shape == head.shape
            assert np.abs(found - head).max() < 2e-3


@pytest.mark.parametrize("name", NAMES)
def test_detections_are_darknets(name: str) -> None:
    detector, about, image = load(name)
    with torch.inference_mode():
        candidates = detect(
            detector(image), detector.specs, score_threshold=0.25, iou_threshold=1.0, multi_label=True
        )
    rows = as_rows(candidates, detector.num_classes)
    kinds = {head.section.text("nms_kind", "default") for head in detector.plan.heads}
    ours = greedy(rows, 0.45, by_distance=kinds != {"default"})
    same(ours, [tuple(row) for row in about["alexeyab_on_input"]])


@pytest.mark.parametrize("name", NAMES)
def test_detections_are_opencvs(name: str) -> None:
    detector, about, image = load(name)
    with torch.inference_mode():
        found = detect(
            detector(image), detector.specs, score_threshold=0.25, iou_threshold=0.45, multi_label=True
        )
    wanted = [
        (n, 100 * score, x1, y1, x2 - x1, y2 - y1) for n, score, (x1, y1, x2, y2) in about["opencv_on_input"]
    ]
    ours = as_rows(found, detector.num_classes)
    if name.startswith("yolo-lite"):  # OpenCV's region layer drops more by a threshold of its own
        ours = [row for row in ours if any(row[0] == one[0] and abs(row[1] - one[1]) < 1 for one in wanted)]
    same(ours, wanted)


def as_rows(found, num_classes: int) -> list[Row]:
    names = {80: COCO, 20: VOC, 1: [None]}[num_classes]
    count = int(found.count[0])
    columns = (found.labels[0, :count], found.scores[0, :count], found.boxes[0, :count])
    return [
        (names[label], 100 * score, x1, y1, x2 - x1, y2 - y1)
        for label, score, (x1, y1, x2, y2) in zip(*(column.tolist() for column in columns), strict=True)
    ]


def greedy(rows: list[Row], threshold: float, by_distance: bool) -> list[Row]:
    """Darknet's suppression; ``nms_kind=greedynms`` takes IoU - (d^2 / c^2) ** 0.6."""
    kept: list[Row] = []
    for row in rows:
        if not any(row[0] == one[0] and overlap(row[2:], one[2:], by_distance) > threshold for one in kept):
            kept.append(row)
    return kept


def overlap(a: tuple[float, ...], b: tuple[float, ...], by_distance: bool) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(np.add(a[:2], a[2:]), np.add(b[:2], b[2:]))
    inside = np.prod(np.clip(high - low, 0, None))
    iou = inside / (a[2] * a[3] + b[2] * b[3] - inside)
    if not by_distance:
        return iou
    span = np.maximum(np.add(a[:2], a[2:]), np.add(b[:2], b[2:])) - np.minimum(a[:2], b[:2])
    apart = np.add(a[:2], np.divide(a[2:], 2)) - np.add(b[:2], np.divide(b[2:], 2))
    return iou - (np.sum(apart**2) / np.sum(span**2)) ** 0.6


def same(ours: list[Row], wanted: list[tuple]) -> None:
    """Class equal, percent rounded alike, every side within a pixel; one partner each."""
    assert len(ours) == len(wanted), (ours, wanted)
    left = list(ours)
    for name, percent, *box in wanted:
        fits = [
            row
            for row in left
            if row[0] in (name, None)
            and abs(row[1] - percent) < 0.6
            and np.abs(np.subtract(row[2:], box)).max() <= 1
        ]
        assert fits, (name, percent, box, left)
        left.remove(fits[0])
