"""CenterNet: peaks back to boxes, every backbone, checkpoints, and a few scenes learned by heart."""

from pathlib import Path

import numpy as np
import pytest
import torch

from yolo.checkpoint import Model, load_model, save_model
from yolo.data import DetectionDataset, Preprocess, collate, read_digits, to_float
from yolo.inference import to_found
from yolo.losses import build_loss
from yolo.metrics import DetectionMetric
from yolo.models import build, centernet, darknet53
from yolo.models.peaks import decode_peaks
from yolo.training import transfer

BACKBONES = ("darknet19", "darknet53", "cspdarknet53", "resnet18")


def maps(*peaks: tuple[int, int, int, float], classes: int = 2, grid: int = 8) -> list[torch.Tensor]:
    """Heat with these peaks (class, row, column, logit), and the same offset and size in every cell."""
    heat = torch.full((1, classes, grid, grid), -9.0)
    for label, row, col, value in peaks:
        heat[0, label, row, col] = value
    offset = torch.tensor([0.25, 0.75])[None, :, None, None].expand(1, 2, grid, grid)
    size = torch.tensor([2.0, 3.0])[None, :, None, None].expand(1, 2, grid, grid)
    return [heat, offset, size]


def test_a_heat_map_gives_its_boxes_back() -> None:
    found = decode_peaks(*maps((1, 2, 3, 2.0), (0, 6, 5, 1.0)), 4, 0.1, 5)
    assert found.count.tolist() == [2]
    # centre 3.25, 2.75 cells of 4 pixels, 2 x 3 cells
    assert found.boxes[0, :2].tolist() == [[9.0, 5.0, 17.0, 17.0], [17.0, 21.0, 25.0, 33.0]]
    assert found.labels[0].tolist() == [1, 0, 0, 0, 0]
    assert found.scores[0].tolist() == pytest.approx(
        [torch.tensor(2.0).sigmoid().item(), torch.tensor(1.0).sigmoid().item(), 0, 0, 0]
    )
    assert found.boxes[0, 2:].abs().sum() == 0


def test_a_neighbour_of_a_peak_is_none_of_its_own_but_in_another_class_it_is() -> None:
    found = decode_peaks(*maps((0, 2, 2, 3.0), (0, 3, 3, 2.9), (1, 3, 3, 2.0), (0, 2, 4, 1.0)), 4, 0.1, 300)
    assert found.labels[0, :4].tolist() == [0, 1, 0, 0]
    assert found.count.tolist() == [2]  # (2, 4) touches (3, 3), which is no peak itself, but exceeds it
    assert found.boxes.shape == (1, 300, 4)


def test_numbers_that_are_none_and_boxes_turned_inside_out_vanish() -> None:
    heat, offset, size = maps((0, 1, 1, 3.0), (0, 5, 5, 2.0), (1, 6, 2, 1.0))
    heat[0, 1, 6, 2] = torch.nan
    offset = offset.clone()
    offset[0, 0, 1, 1] = torch.inf
    found = decode_peaks(heat, offset, -size, 4, 0.1, 3)
    assert found.count.tolist() == [1]
    assert found.labels[0].tolist() == [0, 0, 0]
    assert found.boxes.isfinite().all()
    assert (
        found.boxes[0, 0, 2:] == found.boxes[0, 0, :2]
    ).all()  # no area: left out where pictures are scored


@pytest.mark.parametrize("backbone", BACKBONES)
def test_shapes_and_a_gradient_for_every_parameter(backbone: str) -> None:
    torch.manual_seed(0)
    network = centernet(num_classes=3, backbone=backbone, width=0.125).train()
    outputs = network(torch.rand(2, 3, 64, 96))
    assert [tuple(one.shape) for one in outputs] == [(2, 3, 16, 24), (2, 2, 16, 24), (2, 2, 16, 24)]
    sum(one.square().mean() for one in outputs).backward()
    assert [
        name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    ] == []
    found = network.eval().detect(torch.rand(2, 3, 64, 64), score_threshold=0.0, max_detections=7)
    assert [tuple(one.shape) for one in found] == [(2, 7, 4), (2, 7), (2, 7), (2,)]


def test_up_convolutions_begin_as_bilinear_interpolation() -> None:
    network = centernet(num_classes=1, backbone="darknet19", width=0.125)
    ramp = torch.arange(6.0).expand(1, network.head.up[3].in_channels, 6, 6)
    with torch.no_grad():
        wide = network.head.up[3](ramp)
    assert wide.shape[-2:] == (12, 12)
    assert torch.allclose(wide[0, 0, 4, 2:10], torch.arange(2.0, 10.0) / 2 - 0.25)


def test_across_classes_the_better_box_wins_only_when_asked_to() -> None:
    torch.manual_seed(0)
    network = centernet(num_classes=2, backbone="darknet19", width=0.125).eval()
    image = torch.rand(1, 3, 64, 64)
    every = network.detect(image, score_threshold=0.0)
    fewer = network.detect(image, score_threshold=0.0, class_agnostic=True, iou_threshold=0.1)
    assert 0 < fewer.count[0] < every.count[0]
    assert fewer.boxes.shape == every.boxes.shape


def test_a_checkpoint_brings_it_back(tmp_path: Path) -> None:
    network = centernet(num_classes=2, backbone="darknet19", width=0.125).eval()
    save_model(Model(network, ["cat", "dog"], Preprocess((64, 64))), tmp_path / "best.ckpt")
    other = load_model(tmp_path / "best.ckpt")
    assert (other.classes, other.preprocess.size) == (["cat", "dog"], (64, 64))
    assert other.detector.recipe == network.recipe
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        for one, same in zip(network(image), other.detector(image), strict=True):
            assert torch.equal(one, same)


def test_what_it_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match=r"the backbone is one of darknet19, .* got 'vgg'"):
        centernet(backbone="vgg")
    with pytest.raises(ValueError, match="at least one, got"):
        centernet(num_classes=0, backbone="darknet19", width=0.125)
    with pytest.raises(ValueError, match="multiple of 32"):
        centernet(backbone="darknet19", width=0.125)(torch.zeros(1, 3, 40, 64))
    with pytest.raises(ValueError, match="has no option 'weights'"):  # a checkpoint names no files
        build("centernet", {"weights": "x.pth"})


def test_a_classifier_lends_it_the_backbone() -> None:
    classifier = darknet53(num_classes=5, width=0.125)
    network = centernet(num_classes=2, backbone="darknet53", width=0.125)
    rows, frozen = transfer(classifier, network, "freeze_backbone")
    for name, value in classifier.backbone.state_dict().items():
        assert torch.equal(value, network.backbone.state_dict()[name])
    assert sum(row.frozen for row in rows) == sum(p.numel() for p in network.backbone.parameters())
    assert frozen
    assert all(p.requires_grad for p in network.head.parameters())


def test_it_learns_a_few_scenes_by_heart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    annotated = read_digits(tmp_path, "train", counts=(4, 1, 1), size=(64, 64), digits=(1, 2), scale=(28, 40))
    dataset = DetectionDataset(annotated.records, Preprocess((64, 64)))
    batch = collate([dataset[index] for index in range(4)])
    network = centernet(num_classes=10, backbone="darknet19", width=0.25).train()
    criterion = build_loss(network)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    losses = []
    for _ in range(80):
        total = torch.stack(list(criterion.of(network, to_float(batch.images), batch.targets).values())).sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(float(total.detach()))
    assert losses[-1] < 0.1 * losses[0]
    for module in network.modules():  # 80 steps are few for running statistics: take those of the batch
        if isinstance(module, torch.nn.BatchNorm2d):
            module.train()
            module.momentum = 1.0
    with torch.no_grad():
        network(to_float(batch.images))
        found = network.eval().detect(to_float(batch.images), score_threshold=0.05)
    metric = DetectionMetric(annotated.classes)
    meta = [dataset[index].meta for index in range(4)] if not batch.meta else batch.meta
    metric.update(to_found(found, [one.placement for one in meta]), [one.record for one in meta])
    report = metric.compute()
    assert np.float64(report["map50"]) > 0.9
