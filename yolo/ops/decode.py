"""Raw head outputs to boxes and scores: YOLOv1 grid, YOLOv2 region, YOLOv3 and v4 heads."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from yolo.ops.heads import HeadSpec
from yolo.ops.layout import check_heads, count_boxes, pack, unpack
from yolo.ops.library import library, register

SIZE_LIMIT = 16.0  # exp(16) anchors are 1e7 pixels: far beyond any picture, and areas stay finite in fp32


def decode(logits: Sequence[Tensor], specs: Sequence[HeadSpec]) -> tuple[Tensor, Tensor]:
    """Every prediction of every cell, without threshold; differentiable.

    Args:
        logits: One raw output per head, in the layouts of :class:`HeadSpec`; fp16, bf16 or fp32.
        specs: How each is read.

    Returns:
        Boxes ``[N, M, 4]`` (x1, y1, x2, y2 in pixels of the network input, not clipped) and scores
        ``[N, M, C]`` (objectness times class probability), float32. M runs over heads, then anchors, rows and
        columns; in a grid head over rows, columns and boxes.

    Raises:
        ValueError: Outputs and descriptions do not fit together.
    """
    check_heads(logits, specs)
    if logits[0].dtype == torch.float64:  # for checking gradients; kernels compute in float32
        return decode_reference(logits, specs)
    return torch.ops.yolo.decode_boxes.default(list(logits), *pack(tuple(specs)))


def decode_reference(logits: Sequence[Tensor], specs: Sequence[HeadSpec]) -> tuple[Tensor, Tensor]:
    """:func:`decode` in plain PyTorch."""
    parts = [
        (_decode_grid if spec.kind == "grid" else _decode_cells)(_widen(x), spec)
        for x, spec in zip(logits, specs, strict=True)
    ]
    boxes, scores = zip(*parts, strict=True)
    return torch.cat(boxes, dim=1), torch.cat(scores, dim=1)


def _widen(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _corners(cx: Tensor, cy: Tensor, w: Tensor, h: Tensor) -> Tensor:
    return torch.stack((cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h), dim=-1)


def _decode_cells(x: Tensor, spec: HeadSpec) -> tuple[Tensor, Tensor]:
    """Region and yolo heads (Darknet ``region_layer.c`` and ``yolo_layer.c``; arXiv:1804.02767, sec. 2.1)."""
    n, _, height, width = x.shape
    anchors, classes = spec.num_anchors, spec.num_classes
    x = x.reshape(n, anchors, 5 + classes, height, width)
    t_xy, t_wh, objectness, probability = x.split((2, 2, 1, classes), dim=2)
    # filled rather than torch.tensor(...): no copy from the host, and plain operators for an exported graph
    prior = torch.cat([x.new_full((1,), length) for anchor in spec.anchors for length in anchor])
    prior = prior.reshape(anchors, 2, 1, 1)
    if spec.squared:  # new_coords=1: the convolution below has been through the logistic
        size = (2.0 * t_wh) ** 2 * prior
    else:
        t_xy, objectness = t_xy.sigmoid(), objectness.sigmoid()
        size = t_wh.clamp(max=SIZE_LIMIT).exp() * prior
        probability = probability.softmax(dim=2) if spec.softmax else probability.sigmoid()
    offset = spec.xy_scale * t_xy - 0.5 * (spec.xy_scale - 1.0)
    col = torch.arange(width, dtype=x.dtype, device=x.device)
    row = torch.arange(height, dtype=x.dtype, device=x.device).reshape(height, 1)
    cx = (offset[:, :, 0] + col) * spec.stride
    cy = (offset[:, :, 1] + row) * spec.stride
    boxes = _corners(cx, cy, size[:, :, 0], size[:, :, 1])
    scores = (objectness * probability).permute(0, 1, 3, 4, 2)
    return boxes.reshape(n, anchors * height * width, 4), scores.reshape(n, anchors * height * width, classes)


def _decode_grid(x: Tensor, spec: HeadSpec) -> tuple[Tensor, Tensor]:
    """YOLOv1 (arXiv:1506.02640, sec. 2; Darknet ``detection_layer.c``, get_detection_detections)."""
    n, side, per_cell, classes = x.shape[0], spec.side, spec.boxes_per_cell, spec.num_classes
    cells = side * side
    probability, confidence, box = x.split((cells * classes, cells * per_cell, cells * per_cell * 4), dim=1)
    probability = probability.reshape(n, cells, 1, classes)
    if spec.softmax:
        probability = probability.softmax(dim=-1)
    box = box.reshape(n, side, side, per_cell, 4)
    pixels = side * spec.stride
    col = torch.arange(side, dtype=x.dtype, device=x.device).reshape(side, 1)
    row = torch.arange(side, dtype=x.dtype, device=x.device).reshape(side, 1, 1)
    size = box[..., 2:] ** 2 if spec.sqrt else box[..., 2:]
    cx = (box[..., 0] + col) * spec.stride
    cy = (box[..., 1] + row) * spec.stride
    boxes = _corners(cx, cy, size[..., 0] * pixels, size[..., 1] * pixels)
    scores = confidence.reshape(n, cells, per_cell, 1) * probability
    return boxes.reshape(n, cells * per_cell, 4), scores.reshape(n, cells * per_cell, classes)


def decode_boxes_reference(
    logits: Sequence[Tensor], layout: Sequence[int], numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """``yolo::decode_boxes`` in plain PyTorch; what ``run_decompositions`` puts into an exported graph."""
    specs = unpack(layout, numbers)
    check_heads(logits, specs)
    return decode_reference(logits, specs)


def _fake(logits: Sequence[Tensor], layout: Sequence[int], numbers: Sequence[float]) -> tuple[Tensor, Tensor]:
    specs = unpack(layout, numbers)
    check_heads(logits, specs)
    total = sum(count_boxes(x, spec) for x, spec in zip(logits, specs, strict=True))
    n, classes = logits[0].shape[0], specs[0].num_classes
    boxes = logits[0].new_empty((n, total, 4), dtype=torch.float32)
    return boxes, logits[0].new_empty((n, total, classes), dtype=torch.float32)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    logits, ctx.layout, ctx.numbers = inputs
    ctx.save_for_backward(*logits)


def _backward(ctx: Any, grad_boxes: Tensor, grad_scores: Tensor) -> tuple[list[Tensor], None, None]:
    """Differentiate the reference."""
    with torch.enable_grad():
        logits = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        outputs = decode_boxes_reference(logits, ctx.layout, ctx.numbers)
    return list(torch.autograd.grad(outputs, logits, (grad_boxes, grad_scores))), None, None


register(
    "decode_boxes",
    "(Tensor[] logits, int[] layout, float[] numbers) -> (Tensor boxes, Tensor scores)",
    decode_boxes_reference,
    _fake,
)
torch.library.register_autograd("yolo::decode_boxes", _backward, setup_context=_save_inputs, lib=library)
