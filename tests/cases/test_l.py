"""Kind L of the bug reports in cases/CASES.md: assignment and losses."""

import pytest
import torch

from tests.cases.inputs import expected
from yolo.losses import build_loss
from yolo.losses.assign import locate, read_objects
from yolo.models import yolov3
from yolo.ops import HeadSpec, decode
from yolo.ops.boxes import cxcywh_to_xyxy, iou
from yolo.types import Targets


@pytest.mark.parametrize("variant", ["darknet", "modern"])
def test_l01_a_centre_on_the_far_edge_is_in_the_last_cell(variant: str) -> None:
    wanted = expected("L01")
    boxes = cxcywh_to_xyxy(torch.tensor(wanted["targets_cxcywh"]) * 416)
    count = len(boxes)
    targets = Targets(boxes, torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64))
    cell, offset = locate(read_objects(targets, (416, 416), 1), 32.0, (wanted["grid"], wanted["grid"]))
    assert cell.tolist() == wanted["cells_gi_gj"]
    assert offset.min() >= 0
    assert offset.max() <= 1
    detector = yolov3(num_classes=1, width=0.05)
    losses = build_loss(detector, variant)(detector(torch.rand(1, 3, 416, 416)), targets, (416, 416))
    assert all(value.isfinite() for value in losses.values())
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in detector.parameters())


def test_l05_ciou_of_equal_and_of_empty_boxes() -> None:
    wanted = expected("L05")
    for one in wanted["cases"]:
        given = torch.tensor([one["pred"]], dtype=torch.float32, requires_grad=True)
        loss = 1 - iou(
            cxcywh_to_xyxy(given), cxcywh_to_xyxy(torch.tensor([one["gt"]], dtype=torch.float32)), "ciou"
        )
        loss.sum().backward()
        assert given.grad is not None
        assert given.grad.isfinite().all()
        if isinstance(one["loss"], str):  # finite, >= 1
            assert 1 <= loss.item() < 3
        else:
            assert loss.item() == pytest.approx(one["loss"], abs=wanted["tolerance"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_l09_huge_logits_in_every_precision(dtype: str) -> None:
    wanted = expected("L09")
    assert dtype in wanted["dtype"]
    spec = HeadSpec("yolo", 1, 8.0, ((10.0, 6.0),), (0,))
    detector = yolov3(num_classes=1, width=0.05)
    targets = Targets(torch.tensor([[4.0, 4.0, 20.0, 20.0]]), torch.tensor([0]), torch.tensor([0]))
    for logit in wanted["logits"]:
        value = torch.full((1, 6, 2, 2), logit, dtype=getattr(torch, dtype))
        boxes, scores = decode([value], [spec])
        assert boxes.isfinite().all()
        assert scores.isfinite().all()
        for variant in ("darknet", "modern"):
            outputs = [torch.zeros(1, 3, 6, side, side, dtype=value.dtype) for side in (1, 2, 4)]
            for x in outputs:  # sizes are squared errors: a size of e to the 60000 is beyond any gradient
                x[:, :, 4:] = logit
                x[:, :, :4] = max(-100.0, min(100.0, logit))
            leaves = [x.flatten(1, 2).requires_grad_() for x in outputs]
            losses = build_loss(detector, variant)(leaves, targets, (32, 32))
            assert all(term.isfinite() for term in losses.values()), (variant, logit, losses)
            torch.stack(list(losses.values())).sum().backward()
            assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves), (variant, logit)
