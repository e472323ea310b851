"""Which loss a detector gets, with which options."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers.paths import shared
from tests.losses.test_losses import grid, objects, region, yolo
from yolo.darknet import build_cfg, parse_cfg, plan
from yolo.darknet.heads import generation, loss_options
from yolo.losses import GridLoss, ModernLoss, RegionLoss, YoloV3Loss, YoloV4Loss, build_loss
from yolo.losses.base import of_kind
from yolo.losses.v4 import YoloV4Head
from yolo.models import yolov1_tiny, yolov2, yolov2_tiny, yolov3, yolov3_tiny, yolov4, yolov4_tiny
from yolo.models.detector import Detector, Recipe
from yolo.ops.heads import HeadSpec
from yolo.types import Targets


def detector(specs: list[HeadSpec], kind: str, name: str | None = None, *said: dict[str, Any]) -> Detector:
    result = Detector(nn.Identity(), nn.Identity(), specs, kind)
    result.recipe = None if name is None else Recipe(name, {})
    result.loss_options = said
    return result


@pytest.mark.parametrize(
    ("model", "variant", "expected"),
    [
        (detector(grid(3), "v1"), "darknet", GridLoss),
        (detector(grid(3), "v1"), "modern", GridLoss),
        (detector(region(3), "v2"), "darknet", RegionLoss),
        (detector(region(3), "v2"), "modern", ModernLoss),
        (detector(yolo(3), "v3"), "darknet", YoloV3Loss),
        (detector(yolo(3), "v4"), "darknet", YoloV4Loss),
        (detector(yolo(3), "v4"), "modern", ModernLoss),
    ],
)
def test_generation_chooses(model: Detector, variant: str, expected: type) -> None:
    assert type(build_loss(model, variant)) is expected


def alexeys(loss: nn.Module) -> list[Any]:
    assert isinstance(loss, YoloV4Loss)
    return [head.options for head in of_kind(loss.heads, YoloV4Head)]


def test_published_defaults() -> None:
    (first, second) = alexeys(build_loss(detector(yolo(3), "v4", "yolov4"), "darknet"))
    assert first == second
    assert (first.iou_thresh, first.iou_loss, first.iou_normalizer, first.max_delta) == (
        0.213,
        "ciou",
        0.07,
        5.0,
    )
    tiny = alexeys(build_loss(detector(yolo(3), "v4", "yolov4_tiny"), "darknet"))[0]
    assert (tiny.iou_thresh, tiny.max_delta) == (1.0, None)
    asked = alexeys(build_loss(detector(yolo(3), "v4", "yolov4_tiny"), "darknet", iou_thresh=0.3))[0]
    assert asked.iou_thresh == 0.3


def test_a_cfg_decides_for_its_heads() -> None:
    """Silence means Darknet's own defaults; an option of the call goes first, one of a head before all."""
    said = (
        {"ignore_thresh": 0.6, "iou_loss": "giou"},
        {"iou_thresh": 0.4, "counters_per_class": [10.0, 5.0, 20.0]},
    )
    first, second = alexeys(build_loss(detector(yolo(3), "v4", None, *said), "darknet"))
    assert (first.ignore_thresh, first.iou_loss, first.iou_thresh, first.max_delta) == (
        0.6,
        "giou",
        1.0,
        None,
    )
    assert (second.ignore_thresh, second.iou_loss, second.iou_normalizer) == (0.5, "mse", 0.75)
    assert second.multipliers() == (2.0, 4.0, 1.0)
    given = {"ignore_thresh": 0.9, "heads": [{}, {"ignore_thresh": 0.8}]}
    first, second = alexeys(build_loss(detector(yolo(3), "v4", None, *said), "darknet", **given))
    assert (first.ignore_thresh, second.ignore_thresh) == (0.9, 0.8)


def test_a_v3_cfg_with_keys_of_alexeys_gets_his_loss() -> None:
    plain = build_loss(
        detector(yolo(3), "v3", None, {"ignore_thresh": 0.5}, {"truth_thresh": 1.0}), "darknet"
    )
    assert isinstance(plain, YoloV3Loss)
    assert plain.options[1].ignore_thresh == 0.5
    found = build_loss(detector(yolo(3), "v3", None, {"label_smooth_eps": 0.1}, {}), "darknet")
    assert [each.label_smooth_eps for each in alexeys(found)] == [0.1, 0.0]


@pytest.mark.parametrize("repository", ["pjreddie", "alexeyab"])
def test_every_published_cfg_gets_a_loss(repository: str) -> None:
    count = 0
    for path in sorted(shared("darknet", repository, "cfg").glob("*.cfg")):
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            heads = plan(parse_cfg(text, path.name)).heads
        except ValueError:
            continue  # what the cfg reader refuses is its own tests' business
        specs = [head.spec for head in heads if head.spec is not None]
        if not specs:
            continue  # a classifier
        sections = [head.section for head in heads]
        model = detector(specs, generation(sections), "darknet", *map(loss_options, sections))
        build_loss(model, "darknet")
        build_loss(model, "modern")
        count += 1
    assert count > 10


def test_a_network_from_a_cfg_trains() -> None:
    text = """
[net]
width=64
height=64
channels=3
[convolutional]
filters=16
size=3
stride=32
pad=1
activation=linear
[yolo]
mask=0,1
anchors=10,10, 30,30
classes=3
num=2
iou_loss=ciou
iou_thresh=0.2
"""
    model = build_cfg(text)
    loss = build_loss(model, "darknet")
    assert alexeys(loss)[0].iou_thresh == 0.2
    found = loss(model(torch.rand(2, 3, 64, 64)), objects((0, 2, 5, 5, 40, 30)), (64, 64))
    torch.stack(list(found.values())).sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (detector(yolo(3), "v3"), {"variant": "yolov5"}, "darknet or modern, got 'yolov5'"),
        (detector(yolo(3), "v3"), {"variant": "darknet", "ignore_tresh": 1}, "did you mean ignore_thresh"),
        (
            detector(yolo(3), "v3"),
            {"variant": "darknet", "iou_loss": "ciou"},
            "Yolo3Options has no option 'iou_loss'",
        ),
        (
            detector(yolo(3), "v4"),
            {"variant": "darknet", "iou_loss": "l2"},
            "iou_loss must be mse, iou.* got 'l2'",
        ),
        (detector(yolo(3), "v4"), {"variant": "darknet", "heads": [{}]}, "for each of the 2 heads, got 1"),
        (detector(yolo(3), "v4"), {"variant": "darknet", "classes_multipliers": [1]}, "3 classes, got 1"),
        (detector(yolo(3) + region(3), "v3"), {"variant": "darknet"}, "one kind, got region, yolo"),
        (detector(grid(3) + grid(3), "v1"), {"variant": "darknet"}, "one grid head, got 2"),
        (detector(region(3), "v2", None, {"classfix": 1.0}), {"variant": "darknet"}, "classfix=1"),
    ],
)
def test_mistakes_are_named(model: Detector, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_loss(model, **options)


def scenes(count: int, each: int, classes: int, side: int) -> Targets:
    generator = torch.Generator().manual_seed(3)
    corner = torch.rand(count * each, 2, generator=generator) * side * 0.7
    far = corner + side * (0.05 + 0.25 * torch.rand(count * each, 2, generator=generator))
    labels = torch.randint(classes, (count * each,), generator=generator)
    return Targets(torch.cat((corner, far), dim=1), labels, torch.arange(count).repeat_interleave(each))


@pytest.mark.parametrize("classes", [1, 20, 80])
@pytest.mark.parametrize(
    "build", [yolov1_tiny, yolov2, yolov2_tiny, yolov3, yolov3_tiny, yolov4, yolov4_tiny]
)
def test_the_first_value_of_a_fresh_network_is_small(build: Any, classes: int) -> None:
    """Of the default loss, with one object a picture and with ten."""
    torch.manual_seed(0)
    model = build(num_classes=classes, width=0.125).eval()
    side = model.fixed_size[0] if model.fixed_size is not None else 256
    with torch.no_grad():
        logits = model(torch.rand(2, 3, side, side))
        for each in (1, 10):
            found = build_loss(model)(logits, scenes(2, each, classes, side), (side, side))
            assert sum(found.values()).item() < 10, (each, found)
