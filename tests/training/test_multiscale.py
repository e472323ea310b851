"""The drawn sizes and what a resize does to boxes."""

from functools import partial

import pytest
import torch

from yolo.checkpoint import Model
from yolo.data import Preprocess
from yolo.losses import build_loss
from yolo.metrics import DetectionMetric
from yolo.models import build
from yolo.training import DetectionModule, cosine
from yolo.training.multiscale import MultiScale, resize_batch
from yolo.types import Targets


def test_416_draws_the_sizes_of_the_paper() -> None:
    assert MultiScale().sizes((416, 416), 32) == [(s, s) for s in range(320, 609, 32)]


def test_a_wide_size_keeps_its_aspect_in_multiples_of_the_stride() -> None:
    found = MultiScale().sizes((320, 640), 32)
    assert (320, 640) in found
    assert all(h % 32 == 0 and w % 32 == 0 and 0.5 <= h / w < 0.58 for h, w in found)
    assert (288, 928) in MultiScale().sizes((288, 1024), 32)


def test_a_draw_holds_for_whole_windows_and_changes_between_them() -> None:
    scale = MultiScale(every=10)
    drawn = [scale.draw((416, 416), 32, accumulate=4, seed=1, epoch=0, batch=b) for b in range(240)]
    windows = [set(drawn[start : start + 40]) for start in range(0, 240, 40)]  # 10 steps of 4 batches
    assert all(len(window) == 1 for window in windows)
    assert len(set(drawn)) >= 4
    assert drawn == [scale.draw((416, 416), 32, accumulate=4, seed=1, epoch=0, batch=b) for b in range(240)]
    assert drawn[::4] == [
        scale.draw((416, 416), 32, accumulate=1, seed=1, epoch=0, batch=b) for b in range(60)
    ]
    assert drawn != [scale.draw((416, 416), 32, accumulate=4, seed=1, epoch=1, batch=b) for b in range(240)]


def test_boxes_follow_the_pixels() -> None:
    images = torch.zeros(1, 3, 64, 32)
    images[:, :, 16:32, 8:16] = 1.0
    targets = Targets(
        torch.tensor([[8.0, 16.0, 16.0, 32.0]]),
        torch.zeros(1, dtype=torch.long),
        torch.zeros(1, dtype=torch.long),
    )
    larger, moved = resize_batch(images, targets, (128, 96))
    assert moved.boxes.tolist() == [[24.0, 32.0, 48.0, 64.0]]
    x1, y1, x2, y2 = moved.boxes[0].int().tolist()
    assert larger[0, 0, y1 + 2 : y2 - 2, x1 + 2 : x2 - 2].min() == 1.0
    assert float(larger.sum()) == pytest.approx(float(images.sum()) * 6, rel=0.02)
    assert larger[0, 0, :, : x1 - 3].max() == 0.0


def test_impossible_ranges_are_refused() -> None:
    with pytest.raises(ValueError, match="low <= high"):
        MultiScale(low=1.5, high=0.5)


@pytest.mark.parametrize(
    ("name", "size", "scale", "wanted"),
    [
        ("yolov2_tiny", (96, 160), None, [(96, 160)]),
        ("yolov2_tiny", (96, 96), MultiScale(low=1.0, high=1.0), [(96, 96)]),
        ("yolov2_tiny", (96, 96), MultiScale(low=0.67, high=1.34), [(64, 64), (96, 96), (128, 128)]),
        ("yolov1_tiny", (448, 448), MultiScale(), [(448, 448)]),  # its linear layers take nothing else
    ],
)
def test_a_training_knows_its_sizes(
    name: str, size: tuple[int, int], scale: MultiScale | None, wanted: list[tuple[int, int]]
) -> None:
    detector = build(name, {"num_classes": 1, "width": 0.125})
    module = DetectionModule(
        Model(detector, ["one"], Preprocess(size)), build_loss(detector), DetectionMetric(["one"]),
        partial(torch.optim.SGD, lr=0.1), cosine, multiscale=scale,
    )  # fmt: skip
    assert module.sizes == wanted
