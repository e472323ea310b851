"""What holds for every published network; counts at full size on the meta device, the rest in small."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import yolo.models
from tests.helpers.paths import shared
from yolo.models import Classifier, Detector, Recipe, build, count_floats, darknet_layers, flops, parts
from yolo.models.layers import Local
from yolo.models.v2 import TINY_VOC_ANCHORS, VOC_ANCHORS

SMALL_V1 = {"num_classes": 3, "width": 0.25, "image_size": 128}
SMALL = {"num_classes": 3, "width": 0.25}
DETECTORS = {
    "yolov1": SMALL_V1,
    "yolov1_tiny": SMALL_V1,
    "yolov2": SMALL,
    "yolov2_tiny": SMALL,
    "yolov3": SMALL,
    "yolov3_spp": SMALL,
    "yolov3_tiny": SMALL,
    "yolov4": SMALL,
    "yolov4_tiny": SMALL,
}
SIZED = [name for name in DETECTORS if "v1" not in name]
CLASSIFIERS = {"darknet19": "yolov2", "darknet53": "yolov3", "cspdarknet53": "yolov4"}

# name of the cfg, floats in its weights file, side of its input, billions of multiply-adds times two
PUBLISHED: list[tuple[str, dict[str, Any], str, int, int, float]] = [
    ("yolov1", {}, "yolov1", 197_328_243, 448, 40.421),
    ("yolov1_tiny", {}, "yolov1-tiny", 27_099_950, 448, 3.216),
    ("yolov2", {}, "yolov2", 50_983_561, 608, 62.938),
    ("yolov2", {"num_classes": 20, "anchors": VOC_ANCHORS}, "yolov2-voc", 50_676_061, 416, 29.36),
    ("yolov2_tiny", {}, "yolov2-tiny", 11_237_145, 416, 5.406),
    (
        "yolov2_tiny",
        {"num_classes": 20, "anchors": TINY_VOC_ANCHORS, "hidden": 1024},
        "yolov2-tiny-voc",
        15_867_885,
        416,
        6.971,
    ),
    ("yolov3", {}, "yolov3", 62_001_757, 608, 140.692),
    ("yolov3", {"num_classes": 20}, "yolov3-voc", 61_678_657, 416, 65.428),
    ("yolov3_spp", {}, "yolov3-spp", 63_052_381, 608, 141.449),
    ("yolov3_tiny", {}, "yolov3-tiny", 8_858_734, 416, 5.565),
    ("yolov4", {}, "yolov4", 64_429_405, 608, 128.389),
    ("yolov4_tiny", {}, "yolov4-tiny", 6_062_814, 416, 6.908),
    ("darknet19", {}, "darknet19", 20_856_776, 256, 7.291),
    ("darknet53", {}, "darknet53", 41_645_640, 256, 18.57),
    ("cspdarknet53", {}, "csdarknet53-omega", 27_677_512, 256, 13.067),
]
BACKBONES = {"darknet19": 19_831_776, "darknet53": 40_620_640, "cspdarknet53": 26_652_512}


def make(name: str, arguments: dict[str, Any] | None = None) -> Any:
    function: Callable[..., Any] = vars(yolo.models)[name]
    return function(**(DETECTORS.get(name, SMALL) if arguments is None else arguments))


def on_meta(name: str, arguments: dict[str, Any]) -> Any:
    with torch.device("meta"):
        return make(name, arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "cfg", "floats", "side", "billions"), PUBLISHED, ids=[row[2] for row in PUBLISHED]
)
def test_as_published(
    name: str, arguments: dict[str, Any], cfg: str, floats: int, side: int, billions: float
) -> None:
    """Every layer has the filters, kernel, stride and weights that the cfg gives it, in its order."""
    network = on_meta(name, arguments)
    assert count_floats(network) == floats
    assert flops(network, side, side) / 1e9 == pytest.approx(billions, abs=6e-4)
    facts = json.loads(shared("darknet", "facts.json").read_text())[cfg]
    wanted = [layer for layer in facts["layers"] if layer["floats"]]
    found = list(darknet_layers(network))
    assert len(found) == len(wanted)
    for (layer, norm), fact in zip(found, wanted, strict=True):
        assert count_floats(layer) + (count_floats(norm) if norm else 0) == fact["floats"], fact
        if fact["type"] == "convolutional":
            assert isinstance(layer, nn.Conv2d)
            assert layer.out_channels == fact["filters"]
            assert (*layer.kernel_size, *layer.stride, *layer.padding) == (
                *(2 * [fact["size"]]),
                *(2 * [fact["stride"]]),
                *(2 * [fact["pad"]]),
            )
            assert bool(fact["bn"]) == (norm is not None)
        else:
            assert isinstance(layer, Local if fact["type"] == "local" else nn.Linear)


@pytest.mark.parametrize(("name", "floats"), BACKBONES.items())
def test_backbones_hold_the_published_partial_files(name: str, floats: int) -> None:
    assert count_floats(on_meta(name, {}).backbone) == floats


def test_defaults_have_the_published_anchors_and_scales() -> None:
    v4 = on_meta("yolov4", {}).specs
    assert [spec.stride for spec in v4] == [8, 16, 32]
    assert [spec.xy_scale for spec in v4] == [1.2, 1.1, 1.05]
    assert v4[0].anchors == ((12, 16), (19, 36), (40, 28))
    v3 = on_meta("yolov3", {}).specs
    assert [spec.stride for spec in v3] == [32, 16, 8]
    assert v3[0].anchors == ((116, 90), (156, 198), (373, 326))
    tiny = on_meta("yolov4_tiny", {}).specs
    assert [spec.mask for spec in tiny] == [(3, 4, 5), (1, 2, 3)]
    (v2,) = on_meta("yolov2", {}).specs
    assert v2.softmax
    assert v2.anchors[0] == pytest.approx((0.57273 * 32, 0.677385 * 32))


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 160)])
def test_outputs_have_the_shapes_of_their_specs(name: str, height: int, width: int) -> None:
    if name not in SIZED:
        height = width = 128
    detector = make(name).train()
    outputs = detector(torch.rand(2, 3, height, width))
    assert len(outputs) == len(detector.specs)
    for output, spec in zip(outputs, detector.specs, strict=True):
        cells = () if spec.kind == "grid" else (height // spec.stride, width // spec.stride)
        assert output.shape == (2, spec.channels, *cells)
        assert output.isfinite().all()


@pytest.mark.parametrize("name", [*DETECTORS, *CLASSIFIERS])
def test_every_parameter_gets_a_gradient(name: str) -> None:
    network = make(name).train()
    outputs = network(torch.rand(2, 3, 128, 128))
    outputs = [outputs] if isinstance(network, Classifier) else outputs
    torch.autograd.backward([output.square().mean() for output in outputs])
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", DETECTORS)
def test_state_and_recipe_build_the_same_network(name: str) -> None:
    detector = make(name).eval()
    recipe = json.loads(json.dumps(vars(detector.recipe)))
    assert Recipe(**recipe) == detector.recipe
    again = build(recipe["name"], recipe["arguments"]).eval()
    assert again.specs == detector.specs
    images = torch.rand(1, 3, 128, 128)
    with torch.no_grad():
        before = detector(images)
        assert not torch.equal(again(images)[0], before[0])  # fresh weights
        again.load_state_dict(copy.deepcopy(detector.state_dict()))
        assert all(torch.equal(a, b) for a, b in zip(again(images), before, strict=True))


@pytest.mark.parametrize("name", DETECTORS)
def test_channels_last_gives_the_same_outputs(name: str) -> None:
    detector = make(name).eval()
    images = torch.rand(2, 3, 128, 128)
    with torch.no_grad():
        plain = detector(images)
        detector.to(memory_format=torch.channels_last)
        for a, b in zip(detector(images.to(memory_format=torch.channels_last)), plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DETECTORS)
def test_export_sees_no_dependence_on_values(name: str) -> None:
    detector = make(name).eval()
    images = torch.rand(2, 3, 128, 128)
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(detector, (images,), dynamic_shapes=(batch,))
    more = torch.rand(3, 3, 128, 128)
    with torch.no_grad():
        for a, b in zip(program.module()(more), detector(more), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DETECTORS)
def test_parts_share_out_every_parameter(name: str) -> None:
    detector = make(name)
    backbone, neck, predictors = parts(detector)
    assert neck
    assert sorted(map(id, [*backbone, *neck, *predictors])) == sorted(map(id, detector.parameters()))
    assert len(predictors) == 2 * len(detector.specs)


@pytest.mark.parametrize(("classifier", "detector"), CLASSIFIERS.items())
def test_a_classifier_lends_its_backbone(classifier: str, detector: str) -> None:
    source, target = make(classifier), make(detector)
    target.backbone.load_state_dict(source.backbone.state_dict())
    images = torch.rand(1, 3, 64, 96)
    source.eval()
    target.eval()
    with torch.no_grad():
        assert torch.equal(source.backbone(images)[-1], target.backbone(images)[-1])
        assert source(images).shape == (1, 3)


def test_darknet19_averages_after_its_last_convolution() -> None:
    """Both orders give the same numbers in float64; which one is computed is what the cfg says."""
    classifier = make("darknet19").double().eval()
    shapes: list[torch.Size] = []
    classifier.predictor.register_forward_hook(lambda *call: shapes.append(call[2].shape))
    classifier(torch.rand(1, 3, 64, 96, dtype=torch.double))
    assert shapes == [(1, 3, 2, 3)]


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize(("height", "width"), [(100, 64), (64, 100), (0, 64)])
def test_a_size_that_is_no_multiple_is_refused(name: str, height: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"multiple of 32.*{height}x{width}"):
        on_meta(name, SMALL)(torch.empty(1, 3, height, width, device="meta"))


@pytest.mark.parametrize("name", ["yolov1", "yolov1_tiny"])
def test_v1_takes_only_its_size(name: str) -> None:
    with pytest.raises(ValueError, match="takes only 448x448, got 416x416"):
        on_meta(name, {})(torch.empty(1, 3, 416, 416, device="meta"))
    with pytest.raises(ValueError, match="multiple of 64 pixels, got 416x416"):
        on_meta(name, {"image_size": 416})
    with pytest.raises(ValueError, match="square, got 448x512"):
        on_meta(name, {"image_size": [448, 512]})
    assert on_meta(name, {"image_size": [320, 320]}).fixed_size == (320, 320)


def test_v1_drops_out_only_while_training() -> None:
    detector: Detector = make("yolov1")
    images = torch.rand(2, 3, 128, 128)
    for layer in detector.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.0
    detector.train()
    assert not torch.equal(detector(images)[0], detector(images)[0])
    detector.eval()
    assert torch.equal(detector(images)[0], detector(images)[0])
