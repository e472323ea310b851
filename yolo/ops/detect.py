"""Raw head outputs to final detections in one call."""

from collections.abc import Sequence

import torch
from torch import Tensor

from yolo.ops.decode import decode_boxes_reference
from yolo.ops.heads import HeadSpec
from yolo.ops.layout import check_heads, check_limits, pack, unpack
from yolo.ops.library import below_autograd, register, register_without_gradient
from yolo.ops.nms import empty_result, greedy
from yolo.types import Detections


def detect(
    logits: Sequence[Tensor],
    specs: Sequence[HeadSpec],
    *,
    score_threshold: float = 0.25,
    iou_threshold: float = 0.45,
    max_detections: int = 300,
    multi_label: bool = False,
    class_agnostic: bool = False,
) -> Detections:
    """Decode, threshold and suppress all heads of a batch.

    Args:
        logits: One raw output per head, in the layouts of :class:`HeadSpec`; fp16, bf16 or fp32.
        specs: How each is read.
        score_threshold: A candidate scores strictly more.
        iou_threshold: A box falls to a better one of its class at a strictly greater IoU.
        max_detections: K, the rows of the result; the best K survivors are kept.
        multi_label: Every class above the threshold makes a candidate (Darknet's evaluation) instead of
            only the best class of each box.
        class_agnostic: Let boxes of different classes suppress each other.

    Returns:
        The survivors, best first, padded with zeros to K rows. Equal scores are ordered by prediction, then
        class.

    Raises:
        ValueError: Outputs and descriptions do not fit together, or a number is out of range.
    """
    check_heads(logits, specs)
    check_limits(score_threshold, iou_threshold, max_detections)
    options = (score_threshold, iou_threshold, max_detections, multi_label, class_agnostic)
    layout, numbers = pack(tuple(specs))
    if logits[0].dtype == torch.float64:  # kernels compute in float32
        return Detections(*detect_reference(logits, layout, numbers, *options))
    with below_autograd(*logits):
        return Detections(*torch.ops.yolo.detect.default(list(logits), layout, numbers, *options))


def detect_reference(
    logits: Sequence[Tensor],
    layout: Sequence[int],
    numbers: Sequence[float],
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    multi_label: bool,
    class_agnostic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """:func:`detect` in plain PyTorch."""
    check_limits(score_threshold, iou_threshold, max_detections)
    boxes, scores = decode_boxes_reference(logits, layout, numbers)
    out_boxes, out_scores, out_labels, count = empty_result(boxes, max_detections)
    for image in range(len(boxes)):
        value = scores[image].float()
        candidate = (value > score_threshold) & boxes[image].isfinite().all(dim=-1, keepdim=True)
        value = value.masked_fill(
            ~candidate, -torch.inf
        )  # a NaN is no candidate and must not win the maximum
        if multi_label:
            row, label = candidate.nonzero().unbind(dim=1)
        else:
            row, label = candidate.any(dim=-1).nonzero().squeeze(1), value.argmax(dim=-1)
            label = label[row]
        found = value[row, label]
        order = found.argsort(descending=True, stable=True)
        row, label, found = row[order], label[order], found[order]
        candidates = boxes[image, row].float()
        group = torch.zeros_like(label) if class_agnostic else label
        kept = greedy(candidates, group, iou_threshold, max_detections)
        k = len(kept)
        out_boxes[image, :k], out_scores[image, :k], out_labels[image, :k] = (
            candidates[kept],
            found[kept],
            label[kept],
        )
        count[image] = k
    return out_boxes, out_scores, out_labels, count


def _fake(
    logits: Sequence[Tensor],
    layout: Sequence[int],
    numbers: Sequence[float],
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    multi_label: bool,
    class_agnostic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_heads(logits, unpack(layout, numbers))
    return empty_result(logits[0], max_detections)


register(
    "detect",
    "(Tensor[] logits, int[] layout, float[] numbers, float score_threshold, float iou_threshold, "
    "int max_detections, bool multi_label, bool class_agnostic) "
    "-> (Tensor boxes, Tensor scores, Tensor labels, Tensor count)",
    detect_reference,
    _fake,
)
register_without_gradient("detect", "yolo.ops.decode")
