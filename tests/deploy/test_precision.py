"""Folding batch norms and halving layers keep what the network says."""

import pytest
import torch
from torch import nn

from tests.deploy.making import pictures, toy
from yolo import models
from yolo.deploy.precision import folded, halve, layer_names

MODELS = ("yolov1_tiny", "yolov2", "yolov3_tiny", "yolov4_tiny")


@pytest.mark.parametrize("name", MODELS)
def test_folding_keeps_the_outputs(name: str) -> None:
    torch.manual_seed(0)
    detector = models.build(name, {"num_classes": 3, "width": 0.0625}).eval()
    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2.0)
    plain = folded(detector)
    assert not [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]
    assert [m for m in detector.modules() if isinstance(m, nn.BatchNorm2d)], "the original must stay as it is"
    images = pictures(2, *(detector.fixed_size or (64, 96))) / 255.0
    with torch.no_grad():
        for want, got in zip(detector(images), plain(images), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_kernel_under_two_norms_is_left_alone() -> None:
    detector = toy().detector
    detector.backbone.fine.conv.weight = detector.backbone.down.conv.weight
    assert [m for m in folded(detector).modules() if isinstance(m, nn.BatchNorm2d)]


def test_layers_can_be_kept() -> None:
    plain = folded(toy().detector)
    halve(plain, {"head.first": "asked for"})
    assert plain.head.first.layer.weight.dtype == torch.float32
    assert plain.head.second.weight.dtype == torch.float16
    with pytest.raises(ValueError, match=r"no layer is called head.third; there are backbone.stem.conv"):
        halve(folded(toy().detector), {"head.third": "asked for"})


def test_names_follow_the_cfg() -> None:
    assert layer_names(toy().detector)[-2:] == ["head.first", "head.second"]
