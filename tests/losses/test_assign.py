"""Which prediction answers for which object: by hand."""

import pytest
import torch
from torch import Tensor

import yolo.losses.assign as assign
from yolo.losses.assign import (
    best_iou,
    class_rows,
    every_anchor,
    every_prediction,
    locate,
    read_objects,
    resolve,
)
from yolo.losses.base import AnchorHead
from yolo.losses.modern import best_of_slot
from yolo.losses.v3 import by_shape
from yolo.ops.boxes import pairwise_iou
from yolo.ops.heads import HeadSpec
from yolo.types import Targets

SIZE = (96, 128)  # 3 x 4 cells of 32 pixels
SPEC = HeadSpec("yolo", 3, 32, ((10, 10), (30, 60), (80, 40)), (1, 2))


def targets(*rows: tuple[float, float, float, float], labels: list[int] | None = None) -> Targets:
    """Objects of image 0 from centre and size."""
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)
    half = table[:, 2:] / 2
    boxes = torch.cat((table[:, :2] - half, table[:, :2] + half), dim=1)
    label = torch.zeros(len(rows), dtype=torch.int64) if labels is None else torch.tensor(labels)
    return Targets(boxes, label, torch.zeros(len(rows), dtype=torch.int64))


@pytest.mark.parametrize(
    ("centre", "cell", "offset"),
    [
        ((48, 40), (1, 1), (0.5, 0.25)),
        ((64, 32), (2, 1), (0, 0)),  # on a border: right and below
        ((0, 0), (0, 0), (0, 0)),  # Darknet would take x = 0 for the end of the list
        ((128, 96), (3, 2), (1, 1)),  # exactly 1.0: the last cell
        ((-5, 99), (0, 2), (0, 1)),  # cut off by the picture's edge
        ((63.99, 31.99), (1, 0), (0.9996875, 0.9996875)),
    ],
)
def test_cells(centre: tuple[float, float], cell: tuple[int, int], offset: tuple[float, float]) -> None:
    found, within = locate(read_objects(targets((*centre, 20, 20)), SIZE, 3), 32, (3, 4))
    assert found.tolist() == [list(cell)]
    assert within[0].tolist() == pytest.approx(offset, abs=1e-5)


def test_what_cannot_be_learned_is_switched_off() -> None:
    given = targets((20, 20, 10, 10), (20, 20, 0, 10), (20, 20, 10, -1), (20, 20, 10, 10), (20, 20, 10, 10),
                    labels=[2, 0, 0, 3, -1])  # fmt: skip
    objects = read_objects(given, SIZE, 3)
    assert objects.active.tolist() == [True, False, False, False, False]
    lost = given._replace(boxes=torch.full_like(given.boxes, float("nan")))
    objects = read_objects(lost, SIZE, 3)
    assert not objects.active.any()
    assert torch.isfinite(objects.boxes).all()
    assert torch.isfinite(objects.centre).all()


def test_best_shape_of_all_heads_decides() -> None:
    objects = read_objects(targets((50, 50, 9, 11), (50, 50, 28, 64), (50, 50, 500, 500)), SIZE, 3)
    pairs = by_shape(objects, AnchorHead(SPEC), (3, 4))
    assert pairs.target.tolist() == [0, 0, 1, 1, 2, 2]
    assert pairs.anchor.tolist() == [0, 1] * 3
    # the first belongs to another head's anchor; one larger than every anchor still has a best one
    assert pairs.active.tolist() == [False, False, True, False, False, True]


def test_equal_anchors_the_first_one_answers() -> None:
    spec = HeadSpec("yolo", 3, 32, ((30, 60), (30, 60)), (0, 1))
    pairs = by_shape(read_objects(targets((50, 50, 30, 60)), SIZE, 3), AnchorHead(spec), (3, 4))
    assert pairs.active.tolist() == [True, False]


def test_no_object_no_pair() -> None:
    objects = read_objects(targets(), SIZE, 3)
    pairs = by_shape(objects, AnchorHead(SPEC), (3, 4))
    slots = resolve(pairs, (2, 2, 3, 4))
    assert len(pairs.target) == 0
    assert slots.answers().shape == (48,)
    assert not slots.answers().any()


def test_two_objects_in_one_cell() -> None:
    """First and last of a prediction, and the classes of both."""
    objects = read_objects(
        targets((50, 50, 30, 60), (40, 40, 28, 56), (10, 10, 30, 60), labels=[2, 0, 1]), SIZE, 3
    )
    pairs = by_shape(objects, AnchorHead(SPEC), (3, 4))
    slots = resolve(pairs, (1, 2, 3, 4))
    assert pairs.active.tolist() == [True, False, True, False, True, False]
    assert slots.leads.tolist() == [True, False, False, False, True, False]
    assert slots.last.tolist() == [False, False, True, False, True, False]
    assert slots.first.tolist() == [0, 1, 0, 3, 4, 5]
    assert slots.answers().nonzero()[:, 0].tolist() == [0, 5]
    rows = class_rows(slots, objects.label[pairs.target], 3)
    assert rows[slots.leads].tolist() == [[2, -1, 0], [-1, 4, -1]]


def test_a_pair_goes_to_its_own_image() -> None:
    given = targets((50, 50, 30, 60), (50, 50, 30, 60))._replace(image=torch.tensor([1, 3]))
    pairs = by_shape(read_objects(given, SIZE, 3), AnchorHead(SPEC), (3, 4))
    x = torch.arange(4 * 2 * 8 * 12, dtype=torch.float32).reshape(4, 2, 8, 3, 4)
    assert torch.equal(pairs.take(x)[0], x[1, 0, :, 1, 1])
    assert torch.equal(pairs.take(x)[2], x[3, 0, :, 1, 1])


def scene(count: int, seed: int) -> tuple[Tensor, Targets]:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(3, 50, 2, generator=generator) * 90
    boxes = torch.cat((corner, corner + torch.rand(3, 50, 2, generator=generator) * 60), dim=2)
    rows = torch.rand(count, 4, generator=generator) * torch.tensor([90.0, 90, 50, 50])
    given = targets(*map(tuple, rows.tolist()), labels=[n % 3 for n in range(count)])
    return boxes, given._replace(image=torch.randint(3, (count,), generator=generator))


@pytest.mark.parametrize("at_once", [1, 120, 1 << 24])
def test_best_iou_equals_the_whole_table(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assign, "PAIRS_AT_ONCE", at_once)
    boxes, given = scene(20, 4)
    best, owner = best_iou(boxes, read_objects(given, SIZE, 3), which=True)
    for image in range(3):
        mine = (given.image == image).nonzero()[:, 0]
        table = pairwise_iou(given.boxes[mine], boxes[image])
        torch.testing.assert_close(best[image], table.amax(dim=0))
        touched = best[image] > 0
        assert torch.equal(owner[image][touched], mine[table.argmax(dim=0)][touched])


def test_best_iou_without_objects_is_zero() -> None:
    boxes, given = scene(0, 4)
    best, owner = best_iou(boxes, read_objects(given, SIZE, 3), which=True)
    assert best.shape == owner.shape == (3, 50)
    assert not best.any()


def test_predictions_above_truth_thresh() -> None:
    best = torch.tensor([0.2, 0.8, 0.9, 0.1]).reshape(1, 2, 1, 2)
    pairs = every_prediction(best, torch.tensor([0, 1, 2, 0]).reshape(1, 2, 1, 2), 0.7)
    assert pairs.active.tolist() == [False, True, True, False]
    assert pairs.anchor.tolist() == [0, 0, 1, 1]
    assert pairs.col.tolist() == [0, 1, 0, 1]
    assert pairs.target.tolist() == [0, 1, 2, 0]


def test_every_anchor_keeps_the_order_of_the_objects() -> None:
    objects = read_objects(targets((50, 50, 30, 60), (10, 90, 28, 56)), SIZE, 3)
    pairs = every_anchor(objects, locate(objects, 32, (3, 4))[0], 3)
    assert pairs.target.tolist() == [0, 0, 0, 1, 1, 1]
    assert pairs.row.tolist() == [1, 1, 1, 2, 2, 2]


def test_best_of_a_slot() -> None:
    index, quality = torch.tensor([4, 4, 2, 9, 4]), torch.tensor([0.3, 0.7, 0.0, 1.0, 0.7])
    active = torch.tensor([True, True, True, False, True])
    assert best_of_slot(index, quality, active, 9).tolist() == [False, False, True, False, True]


def test_a_row_that_is_off_takes_no_slot() -> None:
    index, active = torch.tensor([4, 4, 4]), torch.tensor([True, False, True])
    assert best_of_slot(index, torch.tensor([0.3, 0.9, 0.2]), active, 9).tolist() == [True, False, False]
