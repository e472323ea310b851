"""Head outputs, boxes and activations that the operator tests share."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from yolo.ops import HeadSpec
from yolo.ops.layout import pack
from yolo.ops.library import has_kernel
from yolo.types import Detections

COCO = (
    (10.0, 13.0),
    (16.0, 30.0),
    (33.0, 23.0),
    (30.0, 61.0),
    (62.0, 45.0),
    (59.0, 119.0),
    (116.0, 90.0),
    (156.0, 198.0),
    (373.0, 326.0),
)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SLOPE = 0.1
PLAIN = {
    "linear": lambda z: z,
    "leaky": lambda z: F.leaky_relu(z, SLOPE),
    "mish": F.mish,
    "silu": F.silu,
}
# relative error allowed of an output rounded to the type
ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def require_kernel(name: str, device: str) -> None:
    """Skip where ``yolo::name`` has no compiled kernel or the device is missing."""
    if not has_kernel(name, device):
        pytest.skip(f"no compiled {device} kernel of {name}")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def backward_names(y: Tensor) -> set[str]:
    """The nodes of the backward pass behind ``y``."""
    found: set[torch.autograd.graph.Node] = set()
    waiting = [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {node.name() for node in found}


def yolo_specs(classes: int = 5, *, xy_scale: float = 1.0, squared: bool = False) -> tuple[HeadSpec, ...]:
    """The three heads of YOLOv3 or v4."""
    return tuple(
        HeadSpec("yolo", classes, stride, COCO, mask, xy_scale=xy_scale, squared=squared)
        for stride, mask in ((32.0, (6, 7, 8)), (16.0, (3, 4, 5)), (8.0, (0, 1, 2)))
    )


def specs_of(kind: str) -> tuple[HeadSpec, ...]:
    """One model of every kind of head."""
    return {
        "v1": (HeadSpec("grid", 4, 16.0, boxes_per_cell=3, side=5),),
        "v1_softmax": (HeadSpec("grid", 4, 16.0, boxes_per_cell=2, side=5, softmax=True, sqrt=False),),
        "v2": (HeadSpec("region", 4, 32.0, COCO, (0, 2, 4, 6, 8), softmax=True),),
        "v2_logistic": (HeadSpec("region", 4, 32.0, COCO, (0, 2, 4, 6, 8)),),
        "v3": yolo_specs(),
        "v3_one_class": yolo_specs(1),
        "v3_80_classes": yolo_specs(80),
        "v4": yolo_specs(xy_scale=1.05),
        "v4_squared": yolo_specs(xy_scale=2.0, squared=True),
    }[kind]


KINDS = ["v1", "v1_softmax", "v2", "v2_logistic", "v3", "v3_one_class", "v3_80_classes", "v4", "v4_squared"]


def make_logits(
    specs: Sequence[HeadSpec], images: int = 2, height: int = 96, width: int = 160, seed: int = 0
) -> list[Tensor]:
    """Random raw outputs for an input of ``height`` x ``width``; a squared head's are probabilities."""
    generator = torch.Generator().manual_seed(seed)
    logits = []
    for spec in specs:
        shape: tuple[int, ...] = (images, spec.channels)
        if spec.kind != "grid":
            shape += (int(height / spec.stride), int(width / spec.stride))
        x = torch.randn(shape, generator=generator)
        logits.append(x.sigmoid() if spec.squared else x)
    return logits


def packed(specs: Sequence[HeadSpec]) -> tuple[list[int], list[float]]:
    return pack(tuple(specs))


def assert_same(found: Sequence[Tensor], wanted: Sequence[Tensor], box_tolerance: float = 1e-3) -> None:
    """The same rows in the same order, up to rounding of the values; the unused rows are zero."""
    found, wanted = Detections(*(x.cpu() for x in found)), Detections(*(x.cpu() for x in wanted))
    assert found.count.tolist() == wanted.count.tolist()
    assert torch.equal(found.labels, wanted.labels)
    torch.testing.assert_close(found.scores, wanted.scores, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(found.boxes, wanted.boxes, rtol=2e-5, atol=box_tolerance)
    unused = torch.arange(found.scores.shape[1]) >= found.count[:, None]
    assert not found.boxes[unused].any()
    assert not found.scores[unused].any()
    assert not found.labels[unused].any()
