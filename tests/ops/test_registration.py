"""What torch.library promises (shapes, tracing, export, autocast), and errors that say what came."""

import re

import pytest
import torch
from torch import Tensor, nn

from tests.ops.scenes import (
    COCO,
    DEVICES,
    assert_same,
    make_logits,
    packed,
    require_kernel,
    specs_of,
    yolo_specs,
)
from yolo.ops import HeadSpec, decode, detect, nms
from yolo.ops.__main__ import OPERATORS, summary
from yolo.ops.decode import decode_boxes_reference
from yolo.ops.layout import pack, unpack


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["v1", "v4"])
def test_opcheck(kind: str, device: str) -> None:
    if device == "cuda":
        require_kernel("detect", device)
    specs = specs_of(kind)
    logits = [x.to(device).requires_grad_() for x in make_logits(specs)]
    torch.library.opcheck(torch.ops.yolo.decode_boxes.default, (logits, *packed(specs)))
    plain = [x.detach() for x in logits]
    torch.library.opcheck(torch.ops.yolo.detect.default, (plain, *packed(specs), 0.1, 0.45, 20, False, False))
    boxes = torch.rand(2, 10, 4, device=device)
    labels = torch.randint(0, 3, (2, 10), device=device)
    torch.library.opcheck(torch.ops.yolo.nms.default, (boxes, boxes[..., 0], labels, 0.45, 0.0, 5, False))


class Network(nn.Module):
    def __init__(self, detecting: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 30, 1)
        self.specs = yolo_specs()[:2]
        self.detecting = detecting

    def forward(self, coarse: Tensor, fine: Tensor) -> tuple[Tensor, ...]:
        logits = [self.conv(coarse), self.conv(fine)]
        return (
            detect(logits, self.specs, score_threshold=0.3) if self.detecting else decode(logits, self.specs)
        )


@pytest.mark.parametrize("detecting", [False, True])
def test_compile_and_export(detecting: bool) -> None:
    """One graph without breaks; exported with a free batch size, the operator stays one node."""
    network = Network(detecting).eval()
    inputs = torch.randn(2, 3, 3, 4), torch.randn(2, 3, 6, 8)
    with torch.no_grad():
        eager = network(*inputs)
        compiled = torch.compile(network, fullgraph=True, backend="aot_eager")(*inputs)
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a, b)
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(network, inputs, dynamic_shapes=(batch, batch))
    other = torch.randn(3, 3, 3, 4), torch.randn(3, 3, 6, 8)
    for a, b in zip(program.module()(*other), network(*other), strict=True):
        torch.testing.assert_close(a, b)
    targets = {str(node.target) for node in program.graph.nodes}
    assert ("yolo.detect.default" if detecting else "yolo.decode_boxes.default") in targets


def test_decomposes_to_plain_operators() -> None:
    """What an ONNX graph is made of, at a batch size that was not traced."""
    network = Network(detecting=False).eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(
        network, (torch.randn(2, 3, 3, 4), torch.randn(2, 3, 6, 8)), dynamic_shapes=(batch, batch)
    )
    plain = program.run_decompositions({torch.ops.yolo.decode_boxes.default: decode_boxes_reference})
    assert not [node for node in plain.graph.nodes if str(node.target).startswith("yolo.")]
    other = torch.randn(3, 3, 3, 4), torch.randn(3, 3, 6, 8)
    for a, b in zip(plain.module()(*other), network(*other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_changes_nothing(device: str) -> None:
    """Half-precision logits are taken as they are and computed in float32, inside autocast as outside."""
    if device == "cuda":
        require_kernel("detect", device)
    specs = yolo_specs()
    logits = [x.to(device, torch.bfloat16) for x in make_logits(specs)]
    with torch.autocast(device, torch.bfloat16):
        inside = decode(logits, specs), detect(logits, specs, score_threshold=0.1)
    outside = decode(logits, specs), detect(logits, specs, score_threshold=0.1)
    for a, b in zip(inside[0], outside[0], strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b)
    assert_same(inside[1], outside[1])


def test_detections_have_no_gradient() -> None:
    specs = yolo_specs()
    logits = [x.requires_grad_() for x in make_logits(specs)]
    found = detect(logits, specs, score_threshold=0.1)
    assert not found.boxes.requires_grad
    assert not found.scores.requires_grad


@pytest.mark.parametrize("kind", ["v1", "v1_softmax", "v2", "v4_squared"])
def test_specs_survive_the_schema(kind: str) -> None:
    specs = specs_of(kind)
    assert pack(tuple(unpack(*pack(specs)))) == pack(specs)


SPECS = yolo_specs()
GOOD = make_logits(SPECS)


@pytest.mark.parametrize("call", [decode, detect])
@pytest.mark.parametrize(
    ("logits", "specs", "message"),
    [
        (GOOD[:2], SPECS, "got 2 head outputs for 3 head descriptions"),
        ([], [], "got 0 head outputs for 0"),
        (
            [GOOD[0][:, :24], *GOOD[1:]],
            SPECS,
            "head 0 (yolo, 3 boxes a cell, 5 classes) must put out [N, 30, H, W], got [2, 24, 3, 5]",
        ),
        ([GOOD[0][0], *GOOD[1:]], SPECS, "must put out [N, 30, H, W], got [30, 3, 5]"),
        (
            [x.to(torch.int32) for x in GOOD],
            SPECS,
            "head 0 must be float16, bfloat16 or float32 like head 0, got torch.int32",
        ),
        (
            [GOOD[0], GOOD[1].half(), GOOD[2]],
            SPECS,
            "head 1 must be float16, bfloat16 or float32 like head 0, got torch.float16",
        ),
        ([GOOD[0], GOOD[1].to("meta"), GOOD[2]], SPECS, "head 1 must be on cpu like head 0, got meta"),
        ([GOOD[0], GOOD[1][:1], GOOD[2]], SPECS, "head 1 must hold 2 images like head 0, got 1"),
        (
            [GOOD[0], torch.zeros(2, 33, 6, 10)],
            [SPECS[0], yolo_specs(6)[1]],
            "head 1 must have 5 classes like head 0, got 6",
        ),
        (
            [torch.zeros(2, 33 * 6, 1, 1)],
            [HeadSpec("yolo", 1, 8.0, COCO[:1] * 33, tuple(range(33)))],
            "head 0 may predict at most 32 boxes a cell, got 33",
        ),
        (GOOD[:1] * 9, SPECS[:1] * 9, "at most 8 heads are decoded together, got 9"),
    ],
)
def test_wrong_heads(call: object, logits: list[Tensor], specs: list[HeadSpec], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call(logits, specs)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iou_threshold": 1.5}, "iou_threshold must lie between 0 and 1, got 1.5"),
        ({"iou_threshold": float("nan")}, "iou_threshold must lie between 0 and 1, got nan"),
        ({"score_threshold": float("nan")}, "score_threshold must be a number, got NaN"),
        ({"max_detections": 0}, "max_detections must be at least 1, got 0"),
    ],
)
def test_wrong_limits(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        detect(GOOD, SPECS, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=re.escape(message)):
        nms(torch.zeros(1, 2, 4), torch.zeros(1, 2), torch.zeros(1, 2).long(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("boxes", "scores", "labels", "message"),
    [
        (torch.zeros(2, 4), torch.zeros(2), torch.zeros(2).long(), "boxes must be [N, M, 4], got [2, 4]"),
        (
            torch.zeros(1, 2, 4),
            torch.zeros(1, 3),
            torch.zeros(1, 2).long(),
            "scores must be [1, 2] like boxes, got [1, 3]",
        ),
        (
            torch.zeros(1, 2, 4),
            torch.zeros(1, 2),
            torch.zeros(1, 2),
            "labels must be int64, got torch.float32",
        ),
        (
            torch.zeros(1, 2, 4).int(),
            torch.zeros(1, 2),
            torch.zeros(1, 2).long(),
            "boxes must be float16, bfloat16 or float32, got torch.int32",
        ),
        (
            torch.zeros(1, 2, 4),
            torch.zeros(1, 2, device="meta"),
            torch.zeros(1, 2).long(),
            "scores must be on cpu like boxes, got meta",
        ),
    ],
)
def test_wrong_boxes(boxes: Tensor, scores: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        nms(boxes, scores, labels)


def test_wrong_arguments_of_the_bare_operator() -> None:
    """Whoever goes round the Python functions gets an error as well, from kernel and reference alike."""
    layout, numbers = packed(SPECS)
    for bad in (
        lambda: torch.ops.yolo.decode_boxes(GOOD[:2], layout, numbers),
        lambda: torch.ops.yolo.decode_boxes([GOOD[0][:, 1:], *GOOD[1:]], layout, numbers),
        lambda: torch.ops.yolo.detect(GOOD, layout, numbers, 0.1, 2.0, 10, False, False),
        lambda: torch.ops.yolo.detect(GOOD, layout, numbers, 0.1, 0.5, 0, False, False),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            bad()


def test_summary_names_every_operator() -> None:
    text = summary()
    assert all(f"yolo::{name}: " in text for name in OPERATORS)
