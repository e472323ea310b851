"""Boxes, scores and suppression against numbers that Darknet's C code computed (darknet.md, section 8)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.helpers.paths import shared
from yolo.ops import HeadSpec, decode, detect, nms

ALEXEY = [
    f"{kind}_img{size}_letter0_alexey"
    for kind in ("yolo_v3", "yolo_v4", "yolo_newcoords")
    for size in ("640x480", "480x640", "300x100")
] + ["region_softmax1_img640x480_letter0_alexey", "region_softmax1_img480x640_letter0_alexey"]
PJREDDIE = [
    "detection_num2_img640x480_pjreddie",
    "detection_num3_img640x480_pjreddie",
    "region_softmax0_img640x480_pjreddie",
    "region_softmax0_img480x640_pjreddie",
    "region_softmax1_img640x480_pjreddie",
    "yolo_v3_img300x100_pjreddie",
]


def load(name: str) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    folder = shared("golden", "layers")
    return json.loads((folder / f"{name}.json").read_text()), dict(np.load(Path(folder) / f"{name}.npz"))


def spec_of(case: dict[str, Any]) -> HeadSpec:
    classes = case["classes"]
    if case["layer"] == "detection":
        side = case["side"]
        return HeadSpec(
            "grid",
            classes,
            case["image_w"] / side,
            boxes_per_cell=case["num"],
            side=side,
            sqrt=bool(case["sqrt"]),
        )
    stride = case["net_w"] / case["w"]
    values = case["anchors"]
    unit = stride if case["layer"] == "region" else 1.0  # a region layer counts its anchors in cells
    anchors = tuple((w * unit, h * unit) for w, h in zip(values[::2], values[1::2], strict=True))
    mask = tuple(case.get("mask", range(len(anchors))))
    return HeadSpec(
        case["layer"],
        classes,
        stride,
        anchors,
        mask,
        xy_scale=case.get("scale_x_y", 1.0),
        softmax=bool(case.get("softmax", 0)),
        squared=bool(case.get("new_coords", 0)),
    )


def to_pixels(rows: NDArray[np.float32], case: dict[str, Any]) -> NDArray[np.float64]:
    """Darknet's x, y, w, h (of the picture) in pixels of the network input, letterbox put back."""
    box = rows[:, :4].astype(np.float64)
    if case["layer"] == "detection":  # pixels of the picture, a square network stretched to it
        return box * np.tile([1.0, case["image_w"] / case["image_h"]], 2)
    net = np.array([case["net_w"], case["net_h"]])
    if case["letter_box"] == "always":
        image = np.array([case["image_w"], case["image_h"]])
        new = (
            image * net[0] // image[0]
            if net[0] / image[0] < net[1] / image[1]
            else image * net[1] // image[1]
        )
        box[:, :2] = box[:, :2] * new / net + (net - new) / 2 / net
        box[:, 2:] *= new / net
    return box * np.tile(net, 2)


def expected(rows: NDArray[np.float32], case: dict[str, Any]) -> NDArray[np.float64]:
    """``[T, 6]`` x1, y1, x2, y2, score, class of every class probability that is left, best first."""
    row, label = np.nonzero(rows[:, 5:] > 0)
    box = to_pixels(rows, case)[row]
    half = box[:, 2:] / 2
    found = np.column_stack((box[:, :2] - half, box[:, :2] + half, rows[:, 5:][row, label], label))
    return found[np.argsort(-found[:, 4], kind="stable")]


def found(boxes: Tensor, scores: Tensor, labels: Tensor) -> NDArray[np.float64]:
    table = torch.cat((boxes, scores[:, None], labels[:, None].float()), dim=1).numpy().astype(np.float64)
    return table[np.argsort(-table[:, 4], kind="stable")]


@pytest.mark.parametrize("name", ALEXEY + PJREDDIE)
def test_decode_and_detect(name: str) -> None:
    """Every class probability above the threshold, and those left by do_nms_sort."""
    case, arrays = load(f"decode_{name}")
    spec = spec_of(case)
    logits = torch.from_numpy(arrays["input"])
    logits = logits if spec.kind == "grid" else logits.flatten(1, 2)
    boxes, scores = decode([logits], [spec])
    row, label = (scores[0] > case["thresh"]).nonzero().unbind(1)
    np.testing.assert_allclose(
        found(boxes[0, row], scores[0, row, label], label),
        expected(arrays["dets_none"], case),
        rtol=1e-4,
        atol=2e-3,
    )
    kept = detect(
        [logits],
        [spec],
        score_threshold=case["thresh"],
        iou_threshold=case["nms_thresh"],
        multi_label=True,
        max_detections=500,
    )
    k = int(kept.count)
    np.testing.assert_allclose(
        found(kept.boxes[0, :k], kept.scores[0, :k], kept.labels[0, :k]),
        expected(arrays["dets_sort"], case),
        rtol=1e-4,
        atol=2e-3,
    )


@pytest.mark.parametrize("threshold", [0.45, 0.6])
def test_nms_sort(threshold: float) -> None:
    """Per class, sorted by probability; rows whose objectness is 0 take no part."""
    _, arrays = load("nms_kinds")
    rows = arrays["dets"]
    rows = rows[rows[:, 4] > 0]
    row, label = np.nonzero(rows[:, 5:] > 0)
    center, size = rows[row, :2], rows[row, 2:4]
    boxes = torch.from_numpy(np.concatenate((center - size / 2, center + size / 2), axis=1))
    scores = torch.from_numpy(rows[:, 5:][row, label])
    kept = nms(boxes[None], scores[None], torch.from_numpy(label)[None], iou_threshold=threshold)
    left = arrays[f"sort_t{threshold}_b0.6"]
    left = left[left[:, 4] > 0]
    row, label = np.nonzero(left[:, 5:] > 0)
    k = int(kept.count)
    order = np.argsort(-left[:, 5:][row, label], kind="stable")
    np.testing.assert_allclose(kept.scores[0, :k].numpy(), left[:, 5:][row, label][order], rtol=1e-6)
    assert kept.labels[0, :k].tolist() == label[order].tolist()
