"""What is taken from trained weights, what is not, and what is frozen."""

from pathlib import Path

import pytest
import torch

from yolo.darknet import export_network, save_weights, slots_of
from yolo.models import darknet19, darknet53, yolov2, yolov2_tiny, yolov3, yolov3_tiny
from yolo.training import freeze, start_from, transfer

ANCHORS = [[float(10 * i), float(12 * i)] for i in range(1, 7)]


def test_the_same_model_takes_everything() -> None:
    source, target = (yolov3_tiny(num_classes=3, width=0.125) for _ in range(2))
    rows, frozen = transfer(source, target)
    assert all(
        torch.equal(a, b)
        for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True)
    )
    assert sum(row.skipped for row in rows) == 0
    assert sum(row.loaded for row in rows) > 0
    assert frozen == []


def test_another_class_count_keeps_fresh_predictors_and_says_how_many() -> None:
    source, target = yolov3_tiny(num_classes=80, width=0.125), yolov3_tiny(num_classes=3, width=0.125)
    before = [p.weight.clone() for p in target.predictors]
    rows, _ = transfer(source, target)
    assert all(torch.equal(p.weight, b) for p, b in zip(target.predictors, before, strict=True))
    skipped = sum(p.weight.numel() + p.bias.numel() for p in target.predictors)
    assert sum(row.skipped for row in rows) == skipped


def test_another_reading_of_the_centres_keeps_fresh_predictors() -> None:
    source, target = yolov3_tiny(3, width=0.125), yolov3_tiny(3, width=0.125, xy_scale=2.0)
    fresh = [part.weight.clone() for part in target.predictors]
    transfer(source, target)
    assert all(torch.equal(a, b.weight) for a, b in zip(fresh, target.predictors, strict=True))
    assert torch.equal(next(source.backbone.parameters()), next(target.backbone.parameters()))


def test_other_anchors_keep_fresh_predictors_although_the_shapes_fit() -> None:
    source = yolov3_tiny(num_classes=3, width=0.125)
    target = yolov3_tiny(num_classes=3, width=0.125, anchors=ANCHORS)
    before = [p.weight.clone() for p in target.predictors]
    transfer(source, target)
    assert all(torch.equal(p.weight, b) for p, b in zip(target.predictors, before, strict=True))
    assert torch.equal(next(iter(source.backbone.parameters())), next(iter(target.backbone.parameters())))


def test_another_architecture_lends_what_pairs_in_order() -> None:
    source, target = yolov2_tiny(num_classes=3, width=0.125), yolov3_tiny(num_classes=3, width=0.125)
    transfer(source, target)  # both start with the same seven convolutions
    assert torch.equal(next(iter(source.backbone.parameters())), next(iter(target.backbone.parameters())))


@pytest.mark.parametrize("mode", ["freeze_backbone", "head_only"])
def test_what_is_frozen(mode: str) -> None:
    detector = yolov3_tiny(num_classes=3, width=0.125)
    norms = freeze(detector, mode)
    predictors = {id(p) for part in detector.predictors for p in part.parameters()}
    backbone = {id(p) for p in detector.backbone.parameters()}
    for parameter in detector.parameters():
        expected = id(parameter) in predictors if mode == "head_only" else id(parameter) not in backbone
        assert parameter.requires_grad is expected
    assert norms


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="finetune, freeze_backbone or head_only"):
        transfer(yolov3_tiny(width=0.125), yolov3_tiny(width=0.125), "some")  # type: ignore[arg-type]


def test_a_classifier_lends_its_backbone_and_nothing_else() -> None:
    source, target = darknet19(num_classes=30, width=0.125), yolov2(num_classes=3, width=0.125)
    before = {name: value.clone() for name, value in target.head.state_dict().items()}
    rows, _ = transfer(source, target)
    ours, theirs = target.backbone.state_dict(), source.backbone.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(torch.equal(before[name], value) for name, value in target.head.state_dict().items())
    loaded = sum(row.loaded for row in rows if row.part.startswith("backbone"))
    assert loaded == sum(row.loaded for row in rows) > 0
    assert sum(row.skipped for row in rows if row.part.startswith("backbone")) == 0


def test_a_classifier_built_from_a_cfg_lends_alike(tmp_path: Path) -> None:
    source = darknet53(num_classes=4, width=0.125)
    _, weights, _ = export_network(source, list("abcd"), tmp_path, "c", (64, 64))
    target = yolov3(num_classes=3, width=0.125)
    start_from(str(weights), None, target)
    ours, theirs = target.backbone.state_dict(), source.backbone.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if "num_batches" not in name)
    with pytest.raises(ValueError, match="another architecture"):
        start_from(str(weights), None, yolov2(num_classes=3, width=0.5))


def test_a_classifier_goes_on_with_other_classes() -> None:
    source, target = darknet19(num_classes=4, width=0.125), darknet19(num_classes=3, width=0.125)
    fresh = target.predictor.weight.clone()
    rows, norms = transfer(source, target, "freeze_backbone")
    assert torch.equal(target.predictor.weight, fresh)
    assert rows[-1].part == "predictor"
    assert rows[-1].skipped == fresh.numel() + 3
    assert [p.requires_grad for p in target.parameters()].count(True) == 2
    assert norms


def test_backbone_files_say_in_their_name_where_they_end(tmp_path: Path) -> None:
    source = yolov3(num_classes=80, width=0.125)
    slots = [slot for slot in slots_of(source) if slot.layer < 74]
    path = tmp_path / "darknet53.conv.74"
    save_weights(slots, path)
    target = yolov3(num_classes=3, width=0.125)
    rows, frozen = start_from(str(path), None, target, "freeze_backbone")
    ours, theirs = target.backbone.state_dict(), source.backbone.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if "num_batches" not in name)
    loaded = sum(row.loaded for row in rows)
    assert loaded == sum(slot.floats for slot in slots)
    assert frozen
    with pytest.raises(
        ValueError, match=r"floats, the layers before 74 of this model hold .* another architecture"
    ):
        start_from(str(path), None, yolov3(num_classes=3, width=0.25))
