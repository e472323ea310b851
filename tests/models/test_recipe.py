"""Anchors over heads, widths, and what is refused."""

from typing import Any

import pytest
import torch

from yolo.models import build, yolov2, yolov3, yolov3_tiny
from yolo.models.darknet import scaled
from yolo.models.recipe import share_anchors


def test_another_number_of_anchors_is_shared_evenly_small_to_fine() -> None:
    anchors = [[60, 60], [10, 10], [40, 40], [20, 20], [50, 50], [30, 30]]
    shared, masks = share_anchors(anchors, (), [], [32, 16, 8])
    assert shared == tuple((float(w), float(h)) for w, h in anchors)
    assert [[shared[i][0] for i in mask] for mask in masks] == [[60, 50], [40, 30], [10, 20]]


def test_as_many_anchors_as_published_keep_the_published_masks() -> None:
    anchors = [[index + 1, index + 1] for index in range(6)]
    detector = yolov3_tiny(num_classes=3, anchors=anchors, width=0.25)
    assert [spec.mask for spec in detector.specs] == [(3, 4, 5), (0, 1, 2)]
    assert detector.specs[1].anchors == ((1, 1), (2, 2), (3, 3))
    assert detector.recipe is not None
    assert detector.recipe.arguments["anchors"] == anchors


def test_yolov2_takes_any_number_of_anchors() -> None:
    detector = yolov2(num_classes=3, anchors=[[50, 50], [100, 90], [10, 20]], width=0.25)
    assert detector(torch.rand(1, 3, 64, 64).expand(2, -1, -1, -1))[0].shape == (2, 3 * 8, 2, 2)


@pytest.mark.parametrize(
    ("anchors", "message"),
    [
        ([[10, 10]] * 4, "multiple of 3, the number of heads, got 4"),
        ([], "multiple of 3, the number of heads, got 0"),
        ([[10, 10, 10]], r"a width and a height in pixels, got \[10, 10, 10\]"),
        ([[10, 10], [10, 0], [10, 10]], "must be positive"),
    ],
)
def test_anchors_that_do_not_fit_are_refused(anchors: Any, message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        yolov3(anchors=anchors, width=0.25)


@pytest.mark.parametrize(
    ("channels", "width", "result"),
    [(64, 1.0, 64), (64, 0.25, 16), (100, 1.0, 100), (16, 0.1, 8), (64, 1.3, 80)],
)
def test_width_rounds_to_eight(channels: int, width: float, result: int) -> None:
    assert scaled(channels, width) == result


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="width must be above 0, got 0"):
        yolov2(width=0)
    for classes, said in ((0, "0"), ("six", "'six'"), (2.5, "2.5")):
        with pytest.raises(ValueError, match=f"a whole number of classes, at least one, got {said}"):
            yolov2(num_classes=classes, width=0.25)


def test_build_knows_only_published_names_and_options() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'os\.system'; known are yolov1, "):
        build("os.system", {"command": "true"})
    with pytest.raises(ValueError, match="yolov3 has no option 'depth'; it has num_classes, anchors, width"):
        build("yolov3", {"depth": 1})
