"""Box formats and the IoU family: by hand, against Darknet's values, and their gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.helpers.paths import shared
from yolo.ops.boxes import (
    IOU_KINDS,
    IouKind,
    box_area,
    cxcywh_to_xyxy,
    iou,
    pairwise_iou,
    shape_iou,
    xyxy_to_cxcywh,
)


def boxes(*rows: tuple[float, float, float, float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def test_formats_by_hand() -> None:
    assert cxcywh_to_xyxy(boxes((5, 6, 4, 2))).tolist() == [[3, 5, 7, 7]]
    assert xyxy_to_cxcywh(boxes((3, 5, 7, 7))).tolist() == [[5, 6, 4, 2]]


def test_area_of_a_turned_over_box_is_zero() -> None:
    assert box_area(boxes((0, 0, 2, 3), (2, 3, 0, 0), (1, 1, 1, 5))).tolist() == [6, 0, 0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("iou", 1 / 7),  # two 2x2 boxes that share a 1x1 corner: 1 / (4 + 4 - 1)
        ("giou", 1 / 7 - 2 / 9),  # the hull is 3x3 and 7 of it are covered
        ("diou", 1 / 7 - 2 / 18),  # centres (1, 1) apart, hull diagonal 18
        ("ciou", 1 / 7 - 2 / 18),  # equal shapes: nothing to add
    ],
)
def test_values_by_hand(kind: IouKind, expected: float) -> None:
    assert iou(boxes((0, 0, 2, 2)), boxes((1, 1, 3, 3)), kind).item() == pytest.approx(expected, abs=1e-6)


def test_pairwise_has_a_row_for_each_first_box() -> None:
    a, b = boxes((0, 0, 2, 2), (1, 1, 3, 3)), boxes((0, 0, 2, 2), (10, 10, 11, 11), (1, 1, 3, 3))
    assert pairwise_iou(a, b) == pytest.approx(torch.tensor([[1, 0, 1 / 7], [1 / 7, 0, 1]]), abs=1e-6)
    assert pairwise_iou(a[:0], b).shape == (0, 3)


def test_shapes_share_a_corner() -> None:
    found = shape_iou(torch.tensor([[4.0, 2.0]]), torch.tensor([[4.0, 2.0], [2.0, 4.0], [8.0, 2.0]]))
    assert found == pytest.approx(torch.tensor([[1, 4 / 12, 0.5]]), abs=1e-6)


def test_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="'eiou'"):
        iou(boxes((0, 0, 1, 1)), boxes((0, 0, 1, 1)), "eiou")  # type: ignore[arg-type]


@pytest.mark.parametrize("column", range(4))
def test_values_equal_darknets(column: int) -> None:
    golden = np.load(shared("golden", "layers", "boxes_iou_functions.npz"))
    a, b = (cxcywh_to_xyxy(torch.from_numpy(golden[name])) for name in ("pred", "truth"))
    found = iou(a, b, IOU_KINDS[column], exponent=0.6)
    torch.testing.assert_close(found, torch.from_numpy(golden["values"][:, column]), rtol=1e-4, atol=1e-5)


coordinate = st.floats(-20, 20, width=32)
size = st.floats(0.125, 20, width=32)
box = st.tuples(coordinate, coordinate, size, size)


@settings(max_examples=40, deadline=None)
@given(box, box, st.sampled_from(IOU_KINDS))
def test_symmetric_bounded_and_one_for_itself(
    a: tuple[float, ...], b: tuple[float, ...], kind: IouKind
) -> None:
    first, second = (cxcywh_to_xyxy(torch.tensor([row], dtype=torch.float64)) for row in (a, b))
    value = iou(first, second, kind)
    torch.testing.assert_close(value, iou(second, first, kind))
    assert {"iou": 0, "giou": -1, "diou": -1, "ciou": -2}[kind] <= value.item() <= 1
    assert iou(first, first, kind).item() == pytest.approx(1)
    torch.testing.assert_close(value, iou(first + 3.5, second + 3.5, kind))


@pytest.mark.parametrize("kind", IOU_KINDS)
def test_gradient_is_that_of_the_value(kind: IouKind) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (
        cxcywh_to_xyxy(torch.rand(20, 4, generator=generator, dtype=torch.float64) * 4 + 0.5)
        for _ in range(2)
    )
    assert torch.autograd.gradcheck(lambda x: iou(x, b, kind), a.requires_grad_())


@pytest.mark.parametrize("exponent", [1.0, 0.6])
@pytest.mark.parametrize("kind", IOU_KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_nan_at_the_edges(kind: IouKind, exponent: float, dtype: torch.dtype) -> None:
    """Same box, touching, nested, empty, turned over, sub-pixel, far away and very large."""
    same, empty, nothing = (0, 0, 4, 4), (3, 3, 3, 3), (0, 0, 0, 0)
    a = boxes(same, (0, 0, 2, 2), (1, 1, 2, 2), empty, nothing, (4, 4, 0, 0), (1, 1, 1.002, 1.001))
    b = boxes(same, (2, 2, 4, 4), same, empty, nothing, same, (1, 1, 1.001, 1.002))
    a = torch.cat([a, boxes((-3e4, -3e4, -2e4, -2e4), (-6e4, -6e4, 6e4, 6e4))])
    b = torch.cat([b, boxes((2e4, 2e4, 3e4, 3e4), (0, 0, 1, 1))])
    a = a.to(dtype).requires_grad_()
    value = iou(a, b.to(dtype), kind, exponent=exponent)
    value.sum().backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(value).all()
    assert torch.isfinite(a.grad).all()
