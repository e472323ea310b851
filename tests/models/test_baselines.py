"""torchvision's detectors behind our interface: a step, detections, checkpoints, local weights, refusals."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor

from yolo.api import load
from yolo.checkpoint import Model, load_model, save_model
from yolo.data import Preprocess
from yolo.deploy import Wanted, export
from yolo.losses import build_loss
from yolo.models import Baseline, build, fasterrcnn, ssd
from yolo.models.build import BASELINES
from yolo.ops.boxes import pairwise_iou
from yolo.training import freeze, transfer
from yolo.types import Targets

SMALL = {
    name: {"backbone": "mobilenet" if name == "ssd" else "resnet18"}
    for name in BASELINES
    if name != "centernet"
}
TERMS = {
    "fasterrcnn": {"classifier", "box_reg", "objectness", "rpn_box_reg"},
    "maskrcnn": {
        "classifier",
        "box_reg",
        "objectness",
        "rpn_box_reg",
    },  # and no mask: there is none to learn from
    "fcos": {"classification", "bbox_regression", "bbox_ctrness"},
    "retinanet": {"classification", "bbox_regression"},
    "ssd": {"classification", "bbox_regression"},
}


def test_no_other_network_waits_for_torchvision() -> None:
    """It takes as long to load as torch, and most commands need neither it nor what it brings."""
    code = (
        "import sys, yolo.api; from yolo.models import build; build('yolov4_tiny', {'num_classes': 2});"
        "print(*sorted({'torchvision', 'torch._dynamo', 'sympy', 'torchmetrics'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something wants to download weights")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)


def small(name: str) -> Baseline:
    torch.manual_seed(0)
    network = build(name, {"num_classes": 3, **SMALL[name]})
    assert isinstance(network, Baseline)
    if hasattr(
        network.network, "roi_heads"
    ):  # the second stage looks at fewer regions, so that a step takes a second
        network.network.rpn._post_nms_top_n = {"training": 50, "testing": 50}
        network.network.roi_heads.fg_bg_sampler.batch_size_per_image = 16
    return network


@pytest.mark.parametrize("name", SMALL)
def test_a_training_step_and_an_evaluation(name: str) -> None:
    """Two pictures, one of them empty; a box without area and an unknown class are left out."""
    network = small(name).train()
    images = torch.rand(2, 3, 64, 64)
    boxes = torch.tensor([[4.0, 4, 50, 44], [30, 20, 30, 40], [0, 0, 20, 20]])
    targets = Targets(boxes, torch.tensor([2, 0, 7]), torch.tensor([0, 0, 0]))
    terms = build_loss(network).of(network, images, targets)
    assert set(terms) == TERMS[name]
    assert all(value.isfinite() for value in terms.values())
    sum(terms.values()).backward()
    assert [key for key, p in network.named_parameters() if p.grad is None] == []

    with torch.inference_mode():
        found = network.eval().detect(images, score_threshold=0.01, iou_threshold=0.5, max_detections=20)
    assert [tuple(one.shape) for one in found] == [(2, 20, 4), (2, 20), (2, 20), (2,)]
    assert found.count.min() > 0
    for image, count in enumerate(found.count.tolist()):
        scores, labels, kept = (one[image, :count] for one in (found.scores, found.labels, found.boxes))
        assert (scores > 0.01).all()
        assert scores.diff().max() <= 0
        assert set(labels.tolist()) <= {0, 1, 2}
        assert (kept[:, 2:] <= 64).all()
        assert found.boxes[image, count:].abs().sum() == 0


def test_pictures_keep_their_size_and_are_normalised_once() -> None:
    network = small("fasterrcnn").network
    images = torch.rand(2, 3, 64, 96)
    seen: list[Tensor] = []
    network.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.inference_mode():
        network.eval()(images)
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose(seen[0], (images - mean) / std, atol=1e-6)


def test_its_second_label_is_our_first_where_it_has_a_background() -> None:
    network = small("fasterrcnn").eval()
    last = network.network.roi_heads.box_predictor.cls_score
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.0, 0.0, 9.0, 0.0]))  # background, then ours 0, 1, 2
        found = network.detect(torch.rand(1, 3, 64, 64), score_threshold=0.5)
    assert found.count[0] > 0
    assert set(found.labels[0, : found.count[0]].tolist()) == {1}


def test_across_classes_no_two_boxes_overlap() -> None:
    network = small("ssd").eval()
    image = torch.rand(1, 3, 96, 96)
    with torch.inference_mode():
        options = {"score_threshold": 0.01, "iou_threshold": 0.3, "max_detections": 50}
        every = network.detect(image, **options)
        fewer = network.detect(image, class_agnostic=True, **options)
    assert fewer.boxes.shape == every.boxes.shape
    boxes = fewer.boxes[0, : fewer.count[0]]
    assert (pairwise_iou(boxes, boxes).fill_diagonal_(0) <= 0.3).all()


def test_a_checkpoint_brings_it_back_also_into_python_and_is_not_exported(tmp_path: Path) -> None:
    network, path = small("ssd").eval(), tmp_path / "best.ckpt"
    names = ["cat", "dog", "cow"]
    save_model(Model(network, names, Preprocess((96, 96))), path)
    other = load_model(path)
    image = torch.rand(1, 3, 96, 96)
    with torch.inference_mode():
        one, same = (n.detect(image, score_threshold=0.01) for n in (network, other.detector))
    assert one.count[0] > 0
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    picture = (image[0].permute(1, 2, 0) * 255).byte().numpy()
    (result,) = load(path, device="cpu").predict(picture, score_threshold=0.01)
    assert len(result.scores) > 0
    with pytest.raises(ValueError, match="export is for the YOLO family, this model is ssd"):
        export(other, tmp_path / "a.onnx", Wanted(), [])
    with pytest.raises(ValueError, match="mode=compiled is for the YOLO family, this model is ssd"):
        load(path, device="cpu", mode="compiled")


def test_weights_come_from_a_local_file_and_the_recipe_does_not_name_it(tmp_path: Path) -> None:
    torch.manual_seed(1)
    resnet, path = torchvision.models.resnet18(weights=None), tmp_path / "resnet18.pth"
    torch.save(resnet.state_dict(), path)
    network = fasterrcnn(3, "resnet18", weights=str(path))
    body = network.network.backbone.body.state_dict()
    assert all(torch.equal(body[key], value) for key, value in resnet.state_dict().items() if key in body)
    assert torch.equal(body["conv1.weight"], resnet.conv1.weight)
    assert network.recipe is not None
    assert "weights" not in network.recipe.arguments
    whole = tmp_path / "whole.pth"
    torch.save(network.network.state_dict(), whole)
    again = fasterrcnn(5, "resnet18", weights=str(whole)).network  # other classes: all but the last layers
    assert torch.equal(again.roi_heads.box_head.fc6.weight, network.network.roi_heads.box_head.fc6.weight)
    assert again.roi_heads.box_predictor.cls_score.weight.shape[0] == 6


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no such file"), (b"\x00\x01", "not a file of weights"), ([1], "not a state dict"),
     ({"a.weight": torch.zeros(1)}, "none of its weights fits")],
)  # fmt: skip
def test_files_that_are_no_weights_are_refused(tmp_path: Path, content: object, said: str) -> None:
    path = tmp_path / "x.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises((ValueError, FileNotFoundError), match=f"x.pth: {said}"):
        ssd(2, "mobilenet", weights=str(path))


def test_transfer_to_other_classes_and_frozen_backbones() -> None:
    source, target = small("ssd"), ssd(num_classes=5, backbone="mobilenet")
    rows, frozen = transfer(source, target, "freeze_backbone")
    theirs, ours = source.state_dict(), target.state_dict()
    assert all(torch.equal(theirs[k], v) for k, v in ours.items() if "backbone" in k)
    assert sum(row.frozen for row in rows) > 0
    assert frozen
    trained = {name for name, p in target.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in target.named_parameters() if "backbone" not in name}
    freeze(target, "head_only")
    trained = {name for name, p in target.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in target.named_parameters() if "network.head" in name}


def test_what_does_not_exist_is_said() -> None:
    with pytest.raises(ValueError, match=r"one of resnet18, .* got 'vgg'"):
        fasterrcnn(2, "vgg")
    with pytest.raises(ValueError, match=r"vgg16 or mobilenet, .* got 'resnet50'"):
        ssd(2, "resnet50")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="torchvision's detectors has no option 'match'"):
        build_loss(small("ssd"), match="best")
    with pytest.raises(ValueError, match="multiple of 32"):
        small("ssd").check_size(100, 96)


@pytest.mark.slow
def test_ssd300_takes_its_one_size() -> None:
    network = ssd(num_classes=3).train()
    assert network.fixed_size == (300, 300)
    with pytest.raises(ValueError, match="only 300x300"):
        network.check_size(320, 320)
    targets = Targets(torch.tensor([[30.0, 40, 200, 250]]), torch.tensor([1]), torch.tensor([0]))
    terms = build_loss(network).of(network, torch.rand(1, 3, 300, 300), targets)
    sum(terms.values()).backward()
    assert all(p.grad is not None for p in network.parameters())
    with torch.inference_mode():
        found = network.eval().detect(torch.rand(1, 3, 300, 300), score_threshold=0.01)
    assert found.boxes.shape == (1, 300, 4)
