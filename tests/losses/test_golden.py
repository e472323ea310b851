"""Gradients against the real Darknet: every v1, v2, v3 and v4 case of golden/layers, by name.

``golden`` numbers are deltas: minus the gradient of a sum over the batch. Ours are divided by the objects.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.paths import shared
from tests.losses.darknet_iou import direction
from tests.losses.golden import Case, load
from yolo.losses import DetectionLoss, GridLoss, RegionLoss, YoloV3Loss, YoloV4Loss
from yolo.losses.assign import best_iou, chain, every_prediction, read_objects, resolve
from yolo.losses.base import of_kind
from yolo.losses.v4 import YoloV4Head, by_shapes, class_terms

GRID = [
    "v1_detection_num2_sqrt0_rescore1",
    "v1_detection_num2_sqrt1_rescore0",
    "v1_detection_num2_sqrt1_rescore1",
    "v1_detection_num2_sqrt1_rescore1_forced1",
    "v1_detection_num2_sqrt1_rescore1_softmax1",
    "v1_detection_num3_sqrt1_rescore0",
    "v1_detection_num3_sqrt1_rescore1",
    "v1_detection_num3_sqrt1_rescore1_alexey",
]
REGION = [
    "v2_region_alexey_h13w13_rescore1_seen0",
    "v2_region_alexey_h13w13_rescore1_seen20000",
    "v2_region_alexey_h5w7_rescore0_seen0",
    "v2_region_alexey_h5w7_rescore0_seen20000",
    "v2_region_alexey_h5w7_rescore1_seen0",
    "v2_region_alexey_h5w7_rescore1_seen0_scales",
    "v2_region_alexey_h5w7_rescore1_seen20000",
    "v2_region_alexey_h5w7_rescore1_seen20000_badclass",
    "v2_region_alexey_h5w7_rescore1_seen20000_focal",
    "v2_region_alexey_h5w7_rescore1_seen20000_nosoftmax_biasmatch0",
    "v2_region_pjreddie_h13w13_rescore1_seen0",
    "v2_region_pjreddie_h13w13_rescore1_seen20000",
    "v2_region_pjreddie_h5w7_rescore0_seen0",
    "v2_region_pjreddie_h5w7_rescore0_seen20000",
    "v2_region_pjreddie_h5w7_rescore1_seen0",
    "v2_region_pjreddie_h5w7_rescore1_seen0_scales",
    "v2_region_pjreddie_h5w7_rescore1_seen20000",
    "v2_region_pjreddie_h5w7_rescore1_seen20000_nosoftmax_biasmatch0",
]
YOLO3 = [
    "v3_yolo_pjreddie_stride16_ignore5",
    "v3_yolo_pjreddie_stride32_ignore5",
    "v3_yolo_pjreddie_stride32_ignore7",
    "v3_yolo_pjreddie_stride32_truththresh",
    "v3_yolo_pjreddie_stride8_ignore7",
    "v3tiny_yolo_pjreddie_stride16",
]
MSE = [
    "v3_yolo_alexey_stride16_ignore5",
    "v3_yolo_alexey_stride32_ignore5",
    "v3_yolo_alexey_stride32_ignore7",
    "v3_yolo_alexey_stride32_iounorm1",
    "v3_yolo_alexey_stride32_truththresh",
    "v3_yolo_alexey_stride8_ignore7",
    "v4_yolo_alexey_stride32_mse_iouthresh213",
]
IOU = [
    "v4_yolo_alexey_stride16_ciou_iouthresh213",
    "v4_yolo_alexey_stride32_ciou_badclass",
    "v4_yolo_alexey_stride32_ciou_focal",
    "v4_yolo_alexey_stride32_ciou_iouthresh1",
    "v4_yolo_alexey_stride32_ciou_iouthresh213",
    "v4_yolo_alexey_stride32_ciou_maxdelta0p5_norms",
    "v4_yolo_alexey_stride32_ciou_multipliers",
    "v4_yolo_alexey_stride32_ciou_objsmooth",
    "v4_yolo_alexey_stride32_ciou_smooth01",
    "v4_yolo_alexey_stride32_ciou_threshkind_ciou",
    "v4_yolo_alexey_stride32_diou_iouthresh213",
    "v4_yolo_alexey_stride32_giou_iouthresh213",
    "v4_yolo_alexey_stride32_iou_iouthresh213",
    "v4_yolo_alexey_stride8_ciou_iouthresh213",
    "v4csp_yolo_alexey_stride32_newcoords",
    "v4tiny_yolo_alexey_stride16_mask123",
    "v4tiny_yolo_alexey_stride32_mask345",
]
LINEAR = "v2_region_alexey_h5w7_rescore1_seen20000_nosoftmax_biasmatch0"


def pick(about: dict[str, Any], numbers: str, flags: str = "") -> dict[str, Any]:
    """Options of a case by Darknet's names."""
    return {name: about[name] for name in numbers.split()} | {
        name: bool(about[name]) for name in flags.split()
    }


def alexey(case: Case) -> YoloV4Loss:
    options = pick(
        case.about,
        "ignore_thresh truth_thresh iou_thresh iou_thresh_kind iou_loss iou_normalizer obj_normalizer "
        "cls_normalizer max_delta label_smooth_eps classes_multipliers",
        "focal_loss objectness_smooth",
    )
    return YoloV4Loss([case.spec], **options)


def descent(loss: DetectionLoss, case: Case) -> Tensor:
    """Minus our gradient, summed over the objects, in the shape of the golden delta."""
    x = case.logits()
    torch.stack(list(loss([x], case.targets(), case.size).values())).sum().backward()
    assert x.grad is not None
    return -x.grad.reshape(case.delta().shape) * case.objects()


def test_every_case_is_here() -> None:
    folder = shared("golden", "layers")
    there = {path.stem for mark in ("v1_*", "v2_*", "v3*", "v4*") for path in folder.glob(f"{mark}.json")}
    assert there == {*GRID, *REGION, *YOLO3, *MSE, *IOU}


@pytest.mark.parametrize("name", GRID)
def test_grid(name: str) -> None:
    case = load(name)
    options = pick(case.about, "object_scale noobject_scale class_scale coord_scale", "rescore forced")
    torch.testing.assert_close(
        descent(GridLoss([case.spec], **options), case), case.delta(), rtol=1e-4, atol=2e-6
    )


@pytest.mark.parametrize("name", REGION)
def test_region(name: str) -> None:
    """pjreddie's delta lacks the logistic derivative that his backward pass applies to x, y, o."""
    case = load(name)
    numbers = "object_scale noobject_scale class_scale coord_scale thresh"
    options = pick(case.about, numbers, "rescore bias_match focal_loss")
    pjreddie = "pjreddie" in case.about["source"]
    loss = RegionLoss([case.spec], size_weight=pjreddie, **options)
    loss.seen += case.about["seen"]
    expected, found = case.delta().clone(), descent(loss, case)
    if pjreddie:
        p = torch.from_numpy(case.arrays["input"])[:, :, [0, 1, 4]].sigmoid()
        expected[:, :, [0, 1, 4]] *= p * (1 - p)
    if (
        name == LINEAR
    ):  # without softmax AlexeyAB's classes are linear outputs; no published cfg asks for that
        expected, found = expected[:, :, :5], found[:, :, :5]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("name", YOLO3)
def test_pjreddies_yolo(name: str) -> None:
    case = load(name)
    loss = YoloV3Loss([case.spec], **pick(case.about, "ignore_thresh truth_thresh"))
    torch.testing.assert_close(descent(loss, case), case.delta(), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", MSE)
def test_alexeys_yolo(name: str) -> None:
    case = load(name)
    torch.testing.assert_close(descent(alexey(case), case), case.delta(), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", IOU)
def test_alexeys_objectness_and_classes(name: str) -> None:
    case = load(name)
    found = descent(alexey(case), case)
    torch.testing.assert_close(found[:, :, 4:], case.delta()[:, :, 4:], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", IOU)
def test_alexeys_iou_terms_take_the_same_pairs(name: str) -> None:
    """Darknet's box delta is no gradient of any IoU, so it is rebuilt: his formula, our pairs and weights.

    What remains to be shown, the values and that our gradient is theirs, is in tests/ops/test_boxes.py.
    """
    case = load(name)
    (head,) = of_kind(alexey(case).heads, YoloV4Head)
    options, (height, width) = head.options, case.size
    x = head.split(case.logits().detach())
    shape = (x.shape[0], x.shape[1], x.shape[3], x.shape[4])
    objects = read_objects(case.targets(), case.size, case.spec.num_classes)
    pairs = by_shapes(objects, head, shape[2:], case.size)
    if options.truth_thresh < 1:
        best, owner = best_iou(head.all_boxes(x), objects, which=True)
        pairs = chain(
            every_prediction(best.reshape(shape), owner.reshape(shape), options.truth_thresh), pairs
        )
    raw, label = pairs.take(x), objects.label[pairs.target]
    weight = torch.ones(len(label)) if head.multipliers is None else head.multipliers[label]
    early = torch.arange(len(label)) < len(label) - len(objects.label) * shape[1]
    _, shares = class_terms(
        raw[:, 5:], head, resolve(pairs, shape), pairs, label, weight, torch.ones(len(label)), early
    )
    place = torch.stack((pairs.col, pairs.row), dim=-1)
    boxes = head.boxes(raw[:, :4], place, head.anchors[pairs.anchor])
    unit = torch.tensor([width, height, width, height])
    expected = torch.zeros(*shape[:2], 4, *shape[2:], dtype=torch.float64)
    for p in pairs.active.nonzero()[:, 0].tolist():
        target = pairs.target[p]
        ours = torch.cat(((boxes[p, :2] + boxes[p, 2:]) / 2, boxes[p, 2:] - boxes[p, :2])) / unit
        theirs = torch.cat((objects.centre[target], objects.size[target])) / unit
        d = torch.from_numpy(direction(ours.double().numpy(), theirs.double().numpy(), options.iou_loss))
        if not case.spec.squared:
            d[2:] *= raw[p, 2:4].double().exp()
        d *= options.iou_normalizer * weight[p].item()
        if options.max_delta is not None:
            d = d.clamp(-options.max_delta, options.max_delta)
        share = shares[p].item() if options.iou_thresh < 1 else 1
        expected[pairs.image[p], pairs.anchor[p], :, pairs.row[p], pairs.col[p]] += d / share
    torch.testing.assert_close(expected.float(), case.delta()[:, :, :4], rtol=2e-3, atol=1e-4)
