"""The first weights: what a network says before it has learnt anything."""

import math

import pytest
import torch

from yolo.models import build
from yolo.models.initial import prior_bias
from yolo.ops.heads import HeadSpec


def test_a_yolo_head_starts_with_rare_objects_and_equal_classes() -> None:
    spec = HeadSpec("yolo", 4, 16, ((10.0, 10.0), (20.0, 20.0)), (0, 1))
    bias = prior_bias(spec).view(2, 9)
    assert torch.equal(bias[0], bias[1])
    assert bias[0, :4].tolist() == [0, 0, 0, 0]
    assert bias[0, 4].sigmoid().item() == pytest.approx(1.5 / (2 * 26 * 26))
    assert bias[0, 5:].sigmoid().tolist() == pytest.approx([0.25] * 4)


def test_one_class_has_a_finite_bias() -> None:
    assert prior_bias(HeadSpec("region", 1, 32, ((10.0, 10.0),), (0,))).tolist() == pytest.approx(
        [0, 0, 0, 0, math.log(0.01 / 0.99), 0]
    )


def test_a_grid_head_starts_with_a_quarter_picture_in_mid_cell() -> None:
    spec = HeadSpec("grid", 2, 64, boxes_per_cell=3, side=2)
    classes, confidences, boxes = prior_bias(spec).split([2 * 4, 3 * 4, 3 * 4 * 4])
    assert classes.unique().tolist() == [0.5]
    assert confidences.unique().tolist() == pytest.approx([0.05])
    assert boxes.unique().tolist() == [0.5]


@pytest.mark.parametrize("name", ["yolov1_tiny", "yolov2_tiny", "yolov3_tiny", "yolov4_tiny"])
def test_outputs_of_a_fresh_network_stay_near_the_prior(name: str) -> None:
    torch.manual_seed(0)
    arguments = {"num_classes": 3, "width": 0.5, **({"image_size": 128} if "v1" in name else {})}
    detector = build(name, arguments).train()
    for output, spec in zip(detector(torch.rand(4, 3, 128, 128)), detector.specs, strict=True):
        bias = prior_bias(spec).view(1, -1, *[1] * (output.dim() - 2))
        assert 0.01 < (output - bias).std() < 0.3
