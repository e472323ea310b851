"""The modern loss: matching by hand, options, and what each term counts."""

from typing import Any

import pytest
import torch

from tests.losses.test_assign import targets
from yolo.losses import ModernLoss
from yolo.losses.assign import read_objects
from yolo.ops.heads import HeadSpec

SIZE = (96, 128)
ANCHORS = ((8.0, 8.0), (16.0, 32.0), (40.0, 20.0), (90.0, 80.0))


def specs(xy_scale: float = 1.0) -> list[HeadSpec]:
    """Two heads: stride 32 with the two large anchors, stride 16 with the two small ones."""
    return [HeadSpec("yolo", 3, s, ANCHORS, m, xy_scale=xy_scale) for s, m in ((32, (2, 3)), (16, (0, 1)))]


def matched(loss: ModernLoss, *rows: tuple[float, float, float, float]) -> set[tuple[int, int, int, int]]:
    """Object, anchor (large ones first), column and row of each active candidate."""
    found = loss.candidates(read_objects(targets(*rows), SIZE, 3), SIZE)
    table = torch.column_stack((found.target, found.anchor, found.cell))
    return {tuple(row) for row in table[found.active].tolist()}


def test_best_only() -> None:
    loss = ModernLoss(specs(), match="best")
    assert matched(loss, (50, 50, 38, 22), (100, 70, 7, 9)) == {(0, 0, 1, 1), (1, 2, 6, 4)}


def test_by_ratio_the_best_is_always_there() -> None:
    loss = ModernLoss(specs(), match="ratio", ratio=2.1)
    # 32x32 is 1.25 and 1.6 from 40x20, 2 and 1 from 16x32; 300x300 is far from all but best with 90x80
    assert matched(loss, (50, 50, 32, 32)) == {(0, 0, 1, 1), (0, 3, 3, 3)}
    assert matched(loss, (50, 50, 300, 300)) == {(0, 1, 1, 1)}


def test_by_overlap_of_shapes() -> None:
    loss = ModernLoss(specs(), match="iou", iou_thresh=0.4)
    # with 32x32: 40x20 640 / 1184, 16x32 512 / 1024, 90x80 1024 / 7200
    assert matched(loss, (50, 50, 32, 32)) == {(0, 0, 1, 1), (0, 3, 3, 3)}


def test_neighbours_that_can_reach_the_centre() -> None:
    """With xy_scale 1.2 a centre may lie 0.1 cells outside: 62 is 1.94 cells, 33 is 1.03, 50 is 1.56."""
    loss = ModernLoss(specs(1.2), match="best")
    assert matched(loss, (62, 33, 40, 20)) == {(0, 0, 1, 1), (0, 0, 2, 1), (0, 0, 1, 0)}
    assert matched(loss, (50, 50, 40, 20)) == {(0, 0, 1, 1)}


def test_reach_adds_the_two_nearest_cells_inside_the_picture() -> None:
    loss = ModernLoss(specs(), match="best", reach=0.5)
    assert matched(loss, (50, 42, 40, 20)) == {(0, 0, 1, 1), (0, 0, 2, 1), (0, 0, 1, 0)}
    assert matched(loss, (2, 94, 40, 20)) == {(0, 0, 0, 2)}
    assert matched(loss, (128, 96, 40, 20)) == {(0, 0, 3, 2)}


def test_terms_by_hand() -> None:
    """One cell, one anchor, an object that fits it: every output 0."""
    loss = ModernLoss(
        [HeadSpec("yolo", 2, 32, ((16.0, 16.0),), (0,))], box_weight=1, objectness_weight=1, class_weight=1
    )
    given = targets((16, 16, 16, 16))
    log2 = torch.log(torch.tensor(2.0)).item()
    found = loss([torch.zeros(1, 7, 1, 1)], given, (32, 32))
    assert {name: round(v.item(), 5) for name, v in found.items()} == {
        "box": 0,
        "objectness": round(log2, 5),
        "class": round(2 * log2, 5),
    }
    # centre off by 8 of 16 pixels: IoU 1/3, distance 64 / (24^2 + 16^2)
    found = loss([torch.zeros(1, 7, 1, 1)], targets((24, 16, 16, 16)), (32, 32))
    assert found["box"].item() == pytest.approx(1 - (1 / 3 - 64 / 832), abs=1e-5)
    # two cells: the empty one adds its share, the divisor stays one object
    found = loss([torch.zeros(1, 7, 1, 2)], given, (32, 64))
    assert found["objectness"].item() == pytest.approx(2 * log2, abs=1e-5)


def test_without_objects_the_mean_over_predictions_is_left() -> None:
    loss = ModernLoss(specs(), objectness_weight=1.0)
    logits = [torch.zeros(2, 16, 3, 4), torch.zeros(2, 16, 6, 8)]
    found = loss(logits, targets(), SIZE)
    assert found["objectness"].item() == pytest.approx(torch.log(torch.tensor(2.0)).item(), abs=1e-5)
    assert found["box"] == found["class"] == 0


def test_soft_objectness_aims_at_the_overlap() -> None:
    x = torch.zeros(1, 7, 1, 1, requires_grad=True)
    spec = [HeadSpec("yolo", 2, 32, ((16.0, 16.0),), (0,))]
    for soft, aim in ((1.0, 1 / 3), (0.0, 1.0), (0.5, 2 / 3)):
        loss = ModernLoss(spec, soft_objectness=soft, objectness_weight=1.0, iou_loss="iou")
        (slope,) = torch.autograd.grad(loss([x], targets((24, 16, 16, 16)), (32, 32))["objectness"], x)
        assert slope[0, 4].item() == pytest.approx(0.5 - aim, abs=1e-5)


def test_ignored_predictions_have_no_objectness_gradient() -> None:
    spec = [HeadSpec("yolo", 1, 32, ((30.0, 30.0), (32.0, 32.0)), (0, 1))]
    x = torch.zeros(1, 12, 1, 2, requires_grad=True)
    for ignore, moved in ((1.0, [0, 1, 2, 3]), (0.7, [0, 1, 3]), (None, [0, 1, 3])):
        loss = ModernLoss(spec, match="best", ignore_thresh=ignore)
        (slope,) = torch.autograd.grad(loss([x], targets((16, 16, 30, 30)), (32, 64))["objectness"], x)
        assert slope.reshape(2, 6, 2)[:, 4].flatten().nonzero()[:, 0].tolist() == moved


def test_a_near_miss_is_ignored_unless_neighbours_learn_every_object() -> None:
    """By default; where the nearest cells always learn it as well, they are told what they are."""
    alone, near, reaching = (
        HeadSpec("yolo", 1, 32, ((30.0, 30.0),), (0,), xy_scale=scale) for scale in (1.0, 1.2, 2.0)
    )
    assert ModernLoss([alone]).ignore_thresh == 0.7
    assert ModernLoss([near]).ignore_thresh == 0.7
    assert ModernLoss([alone], reach=0.5).ignore_thresh == 1.0
    assert ModernLoss([near], reach=0.5).ignore_thresh == 1.0
    assert ModernLoss([reaching]).ignore_thresh == 1.0
    assert ModernLoss([reaching], ignore_thresh=0.5).ignore_thresh == 0.5


def test_focal_and_smoothing_change_what_they_say() -> None:
    x = torch.randn(1, 16, 3, 4), torch.randn(1, 16, 6, 8)
    given = targets((50, 50, 38, 22), (100, 70, 7, 9), labels=[1, 2])
    plain = ModernLoss(specs())(x, given, SIZE)
    focal = ModernLoss(specs(), focal_gamma=2.0)(x, given, SIZE)
    smooth = ModernLoss(specs(), label_smoothing=0.1)(x, given, SIZE)
    level = ModernLoss(specs(), level_weights=[0.0, 1.0])(x, given, SIZE)
    assert focal["objectness"] < plain["objectness"]
    assert focal["class"] < plain["class"]
    assert smooth["class"] != plain["class"]
    assert level["objectness"] < plain["objectness"]
    assert plain["box"] == focal["box"] == smooth["box"] == level["box"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iou_loss": "l1"}, "iou_loss must be one of iou, giou, diou, ciou, got 'l1'"),
        ({"match": "simota"}, "match must be best, ratio or iou, got 'simota'"),
        ({"ratio": 0.5}, "ratio must be above 1, got 0.5"),
        ({"reach": 2}, "reach is 0 to 0.5 cells, got 2"),
        ({"level_weights": [1.0]}, "level_weights needs a number for each of the 2 heads"),
        ({"box_weigth": 1}, "no option 'box_weigth': did you mean box_weight"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModernLoss(specs(), **options)
