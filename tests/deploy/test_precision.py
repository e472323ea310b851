"""Folding batch norms and halving layers keep what the network says."""

import logging

import pytest
import torch
from torch import nn

from tests.deploy.making import pictures, toy
from yolo import models
from yolo.deploy.build import Wanted, deployed
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


def test_x03_weights_beyond_float16_stay_in_float32(caplog: pytest.LogCaptureFixture) -> None:
    """One weight of 70000 (float16 ends at 65504): the layer is named and stays wide, all is finite."""
    model = toy()
    model.detector.head.first.weight.data[0, 0, 0, 0] = 70000.0
    with caplog.at_level(logging.WARNING):
        module, kept = deployed(model.detector, Wanted("fp16", size=(64, 96)), half=True)
    assert list(kept) == ["head.first"]
    assert "70000" in caplog.text
    assert "head.first" in caplog.text
    layer = module.network.head.first.layer
    assert layer.weight.dtype == torch.float32
    assert float(layer.weight[0, 0, 0, 0]) == 70000.0
    boxes, scores = module(pictures(2, 64, 96))
    assert boxes.isfinite().all()
    assert scores.isfinite().all()


def test_x03_a_norm_of_a_dead_channel_folds_to_a_huge_scale() -> None:
    model = toy()
    norm = model.detector.backbone.down.norm
    norm.running_var[0], norm.weight.data[0] = 1e-12, 1e6
    module, kept = deployed(model.detector, Wanted("fp16", size=(64, 96)), half=True)
    assert list(kept) == ["backbone.down.conv"]
    assert all(values.isfinite().all() for values in module(pictures(1, 64, 96)))


def test_layers_can_be_kept() -> None:
    plain = folded(toy().detector)
    halve(plain, {"head.first": "asked for"})
    assert plain.head.first.layer.weight.dtype == torch.float32
    assert plain.head.second.weight.dtype == torch.float16
    with pytest.raises(ValueError, match=r"no layer is called head.third; there are backbone.stem.conv"):
        halve(folded(toy().detector), {"head.third": "asked for"})


def test_names_follow_the_cfg() -> None:
    assert layer_names(toy().detector)[-2:] == ["head.first", "head.second"]
