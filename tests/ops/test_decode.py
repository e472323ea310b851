"""Decoding: by hand, kernels against the reference, gradients. Darknet's numbers are in test_golden.py."""

import math

import pytest
import torch

from tests.ops.scenes import (
    COCO,
    DEVICES,
    DTYPES,
    KINDS,
    make_logits,
    packed,
    require_kernel,
    specs_of,
    yolo_specs,
)
from yolo.ops import HeadSpec, decode
from yolo.ops.decode import decode_boxes_reference, decode_reference


def test_yolo_by_hand() -> None:
    """Zero logits put the centre in the middle of the cell (row 1, column 2) and keep the anchor's size."""
    spec = HeadSpec("yolo", 2, 8.0, ((10.0, 6.0),), (0,))
    boxes, scores = decode([torch.zeros(1, 7, 3, 4)], [spec])
    assert boxes[0, 1 * 4 + 2].tolist() == [15.0, 9.0, 25.0, 15.0]
    assert scores[0, 1 * 4 + 2].tolist() == [0.25, 0.25]


def test_order_is_head_anchor_row_column() -> None:
    """Each prediction carries its own place in its objectness."""
    specs = tuple(HeadSpec("yolo", 1, stride, COCO, (0, 1)) for stride in (16.0, 8.0))
    logits, expected = [], []
    for height, width in ((2, 3), (4, 6)):
        x = torch.full((1, 12, height, width), 40.0)  # class 1.0
        x[0, [4, 10]] = torch.arange(2.0 * height * width).reshape(2, height, width) / 100 + len(expected)
        logits.append(x)
        expected += x[0, [4, 10]].flatten().sigmoid().tolist()
    assert decode(logits, specs)[1].flatten().tolist() == pytest.approx(expected, rel=1e-6)


def test_wide_input_keeps_its_axes() -> None:
    """Case N15: 416 x 256 pixels, zero logits at column 12, row 7 are centred on (400, 240)."""
    spec = HeadSpec("yolo", 1, 32.0, ((20.0, 20.0),), (0,))
    boxes, _ = decode([torch.zeros(1, 6, 8, 13)], [spec])
    x1, y1, x2, y2 = boxes[0, 7 * 13 + 12].tolist()
    assert ((x1 + x2) / 2, (y1 + y2) / 2) == (400.0, 240.0)


def test_grid_by_hand() -> None:
    """Cell (row 1, column 0) of a 2 x 2 grid of 10 pixel cells; sizes are square roots of fractions."""
    spec = HeadSpec("grid", 1, 10.0, boxes_per_cell=1, side=2)
    x = torch.zeros(1, 24)
    x[0, 2], x[0, 4 + 2] = 0.5, 0.8  # class and confidence of cell 2
    x[0, 8 + 8 : 8 + 12] = torch.tensor([0.5, 0.25, 0.5, 1.0])
    boxes, scores = decode([x], [spec])
    assert boxes[0, 2].tolist() == [2.5, 2.5, 7.5, 22.5]
    assert scores[0, 2].tolist() == pytest.approx([0.4])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_huge_logits_stay_finite(dtype: torch.dtype) -> None:
    """Case L09: the exponential of a size is bounded, in every precision."""
    spec = HeadSpec("yolo", 1, 8.0, ((10.0, 6.0),), (0,))
    for value in (60000.0, -60000.0, 100.0, -100.0):
        boxes, scores = decode([torch.full((1, 6, 2, 2), value, dtype=dtype)], [spec])
        assert boxes.isfinite().all()
        assert scores.isfinite().all()
        assert boxes.dtype == scores.dtype == torch.float32


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_kernel_agrees_with_reference(device: str, kind: str, dtype: torch.dtype, layout: str) -> None:
    require_kernel("decode_boxes", device)
    specs = specs_of(kind)
    logits = [x.to(device, dtype) for x in make_logits(specs)]
    if layout == "channels_last":
        logits = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in logits]
    elif layout == "sliced":  # neither of the two layouts that the kernels read directly
        logits = [torch.cat((x, x), dim=-1)[..., : x.shape[-1]] for x in logits]
    boxes, scores = torch.ops.yolo.decode_boxes(logits, *packed(specs))
    wanted_boxes, wanted_scores = decode_boxes_reference(logits, *packed(specs))
    torch.testing.assert_close(boxes, wanted_boxes, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(scores, wanted_scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 32, 32), (1, 416, 352), (0, 64, 64), (3, 608, 608)], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_kernel_at_odd_sizes(device: str, shape: tuple[int, int, int]) -> None:
    """One cell, odd planes, planes of many tiles, no image at all."""
    require_kernel("decode_boxes", device)
    specs = yolo_specs(3)
    logits = [x.to(device, torch.float16) for x in make_logits(specs, *shape)]
    boxes, scores = torch.ops.yolo.decode_boxes(logits, *packed(specs))
    wanted_boxes, wanted_scores = decode_boxes_reference(logits, *packed(specs))
    torch.testing.assert_close(boxes, wanted_boxes, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(scores, wanted_scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classes", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_kernel_with_any_number_of_classes(device: str, softmax: bool, classes: int) -> None:
    """Classes are turned 32 (CPU) and 128 (CUDA) at a time."""
    require_kernel("decode_boxes", device)
    specs = (HeadSpec("region", classes, 32.0, COCO, (0, 4), softmax=softmax),)
    logits = [x.to(device) for x in make_logits(specs)]
    found = torch.ops.yolo.decode_boxes(logits, *packed(specs))[1]
    torch.testing.assert_close(found, decode_boxes_reference(logits, *packed(specs))[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "v3_80_classes"])
def test_gradient_of_reference(kind: str) -> None:
    """Autograd of the reference against finite differences, in float64."""
    specs = specs_of(kind)[:1]
    logits = [x.double().requires_grad_() for x in make_logits(specs, images=1, height=32, width=64)]
    assert torch.autograd.gradcheck(lambda *x: decode_reference(x, specs), logits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_gradient_through_operator(device: str, kind: str) -> None:
    """The operator's gradient is the reference's, for every head."""
    require_kernel("decode_boxes", device) if device == "cuda" else None
    specs = specs_of(kind)
    first = [x.to(device).requires_grad_() for x in make_logits(specs)]
    second = [x.detach().clone().requires_grad_() for x in first]
    for logits, outputs in ((first, decode(first, specs)), (second, decode_reference(second, specs))):
        weight = torch.linspace(-1, 1, outputs[0].shape[1], device=device)[:, None]
        (outputs[0].div(100).sin() * weight).sum().add((outputs[1] * weight).sum()).backward()
        assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in logits)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_largest_size_is_past_any_picture() -> None:
    """The bound on the exponential never touches a box that a picture can hold."""
    spec = HeadSpec("yolo", 1, 8.0, ((1.0, 1.0),), (0,))
    x = torch.zeros(1, 6, 1, 1)
    x[0, 2] = math.log(1e6)
    boxes, _ = decode([x], [spec])
    assert (boxes[0, 0, 2] - boxes[0, 0, 0]).item() == pytest.approx(1e6, rel=1e-4)
