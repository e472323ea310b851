"""Darknet's suppression by distance."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.paths import shared
from yolo import models
from yolo.checkpoint import Model
from yolo.darknet import load_darknet
from yolo.darknet.suppress import resolve_kind, suppress_by_distance
from yolo.data import Preprocess
from yolo.inference import Inference
from yolo.types import Found, Placement


def found(boxes: list[list[float]], labels: list[int]) -> Found:
    scores = np.linspace(0.9, 0.5, len(boxes), dtype=np.float32)
    return Found(np.array(boxes, np.float32), scores, np.array(labels))


def test_the_penalty_is_counted_by_hand() -> None:
    """IoU 80 / 120; centres 2 apart, diagonal of 12 x 10: (4 / 244) ** 0.6 = 0.0848 less makes 0.5818."""
    pair = found([[0, 0, 10, 10], [2, 0, 12, 10]], [0, 0])
    assert suppress_by_distance(pair, 100, 100, 0.58, 9).boxes.tolist() == [[0, 0, 10, 10]]
    assert len(suppress_by_distance(pair, 100, 100, 0.584, 9).boxes) == 2


def test_distances_are_fractions_of_the_picture() -> None:
    """The same boxes in a picture four times as wide: (4 / 16) / (144 / 16 + 100) = 0.0023, less 0.0261."""
    pair = found([[0, 0, 10, 10], [2, 0, 12, 10]], [0, 0])
    assert len(suppress_by_distance(pair, 100, 400, 0.58, 9).boxes) == 1
    assert len(suppress_by_distance(pair, 100, 400, 0.639, 9).boxes) == 1
    assert len(suppress_by_distance(pair, 100, 400, 0.642, 9).boxes) == 2


def test_other_classes_and_the_best_stay() -> None:
    boxes = [[0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]]
    kept = suppress_by_distance(found(boxes, [0, 1, 0, 0]), 50, 50, 0.45, 9)
    assert kept.labels.tolist() == [0, 1, 0]
    assert kept.boxes.tolist() == [boxes[0], boxes[1], boxes[3]]
    assert suppress_by_distance(found(boxes, [0, 1, 0, 0]), 50, 50, 0.45, 2).labels.tolist() == [0, 1]
    assert suppress_by_distance(found([[0, 0, 1, 1]], [0]), 50, 50, 0.45, 9).labels.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("yolov3-tiny/yolov3-tiny", "iou"), ("yolo-fastest/yolo-fastest-1.1_coco/yolo-fastest-1.1", "distance")],
)
def test_the_cfg_names_the_kind(name: str, kind: str) -> None:
    detector, _ = load_darknet(shared("weights", *f"{name}.weights".split("/")))
    assert resolve_kind("cfg", detector) == kind


def test_what_cannot_be_is_refused() -> None:
    assert resolve_kind("cfg", models.yolov4_tiny(width=0.125)) == "distance"
    assert resolve_kind("cfg", models.yolov3_tiny(width=0.125)) == "iou"
    assert resolve_kind("cfg", None) == "iou"
    with pytest.raises(ValueError, match="nms_kind must be one of iou, distance, cfg, got 'soft'"):
        resolve_kind("soft", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="an exported file suppresses by IoU"):
        resolve_kind("distance", None)


def test_inference_suppresses_so_and_clips_afterwards(tmp_path: Path) -> None:
    torch.manual_seed(0)
    detector = models.yolov2_tiny(num_classes=2, width=0.125).eval()
    model = Model(detector, ["a", "b"], Preprocess((64, 64), "stretch"))
    images = torch.randint(0, 255, (1, 3, 64, 64), dtype=torch.uint8)
    places = [Placement(64 / 100, 64 / 50, 0, 0, 100, 50)]
    options = {"score_threshold": 0.001, "multi_label": True, "device": "cpu"}
    (every,) = Inference(model, iou_threshold=1.0, max_detections=5000, clip=False, **options)(images, places)
    (ours,) = Inference(model, nms_kind="distance", max_detections=50, **options)(images, places)
    wanted = suppress_by_distance(every, 50, 100, 0.45, 50)
    assert 10 < len(ours.labels) <= len(wanted.labels) <= 50
    assert ours.boxes.min() >= 0
    assert ours.boxes[:, 2].max() <= 100
    assert set(ours.scores.tolist()) <= set(wanted.scores.tolist())
    with pytest.raises(ValueError, match="suppresses within a class"):
        Inference(model, nms_kind="distance", class_agnostic=True, device="cpu")
