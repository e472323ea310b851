"""Class-aware greedy suppression of a batch to a fixed-size result."""

import torch
from torch import Tensor

from yolo.ops.layout import DTYPES, check_limits
from yolo.ops.library import below_autograd, register, register_without_gradient
from yolo.types import Detections

CHUNK = 256  # candidates compared at a time; bounds the memory of a picture with any number of them


def nms(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    *,
    iou_threshold: float = 0.45,
    score_threshold: float = 0.0,
    max_detections: int = 300,
    class_agnostic: bool = False,
) -> Detections:
    """Keep the best box of every cluster of one class.

    A candidate has a finite box and a score above ``score_threshold``; it falls to a better one of its class
    when their IoU is above ``iou_threshold``. Equal scores: the lower index is the better one. Boxes whose
    right edge lies left of their left edge have no area and no overlap.

    Args:
        boxes: ``[N, M, 4]`` x1, y1, x2, y2.
        scores: ``[N, M]``.
        labels: ``[N, M]`` integers.
        iou_threshold: Strictly greater suppresses.
        score_threshold: Strictly greater is a candidate; the default leaves out zero-padded rows.
        max_detections: K, the rows of the result; the best K survivors are kept.
        class_agnostic: Let boxes of different classes suppress each other.

    Returns:
        The survivors, best first, padded with zeros to K rows.

    Raises:
        ValueError: Shapes, types or numbers out of range.
    """
    check_boxes(boxes, scores, labels)
    check_limits(score_threshold, iou_threshold, max_detections)
    options = (iou_threshold, score_threshold, max_detections, class_agnostic)
    with below_autograd(boxes, scores):
        return Detections(*torch.ops.yolo.nms.default(boxes.float(), scores.float(), labels.long(), *options))


def check_boxes(boxes: Tensor, scores: Tensor, labels: Tensor) -> None:
    """Refuse boxes, scores and labels that do not fit together.

    Raises:
        ValueError: With what came and what was wanted.
    """
    if boxes.dim() != 3 or boxes.shape[2] != 4:
        raise ValueError(f"boxes must be [N, M, 4], got {list(boxes.shape)}")
    for name, tensor in (("scores", scores), ("labels", labels)):
        if tensor.shape != boxes.shape[:2]:
            raise ValueError(f"{name} must be {list(boxes.shape[:2])} like boxes, got {list(tensor.shape)}")
        if tensor.device != boxes.device:
            raise ValueError(f"{name} must be on {boxes.device} like boxes, got {tensor.device}")
    for name, tensor in (("boxes", boxes), ("scores", scores)):
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name} must be float16, bfloat16 or float32, got {tensor.dtype}")
    if labels.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"labels must be int64, got {labels.dtype}")


def empty_result(like: Tensor, max_detections: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Boxes, scores, labels and count with room for ``max_detections`` in each of ``len(like)`` pictures."""
    n = like.shape[0]
    return (
        like.new_zeros((n, max_detections, 4), dtype=torch.float32),
        like.new_zeros((n, max_detections), dtype=torch.float32),
        like.new_zeros((n, max_detections), dtype=torch.int64),
        like.new_zeros((n,), dtype=torch.int64),
    )


def nms_reference(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    iou_threshold: float,
    score_threshold: float,
    max_detections: int,
    class_agnostic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """:func:`nms` in plain PyTorch."""
    check_boxes(boxes, scores, labels)
    check_limits(score_threshold, iou_threshold, max_detections)
    out_boxes, out_scores, out_labels, count = empty_result(boxes, max_detections)
    boxes, scores = boxes.float(), scores.float()
    for image in range(len(boxes)):
        candidate = (scores[image] > score_threshold) & boxes[image].isfinite().all(dim=-1)
        index = candidate.nonzero().squeeze(1)
        order = index[scores[image, index].argsort(descending=True, stable=True)]
        group = torch.zeros_like(labels[image]) if class_agnostic else labels[image]
        kept = order[greedy(boxes[image, order], group[order], iou_threshold, max_detections)]
        k = len(kept)
        out_boxes[image, :k] = boxes[image, kept]
        out_scores[image, :k] = scores[image, kept]
        out_labels[image, :k] = labels[image, kept]
        count[image] = k
    return out_boxes, out_scores, out_labels, count


def greedy(boxes: Tensor, labels: Tensor, iou_threshold: float, limit: int) -> Tensor:
    """Positions of the first ``limit`` survivors among boxes ``[M, 4]`` sorted best first."""
    kept = boxes.new_empty(0, dtype=torch.int64)
    for start in range(0, len(boxes), CHUNK):
        if len(kept) >= limit:
            break
        chunk = torch.arange(start, min(start + CHUNK, len(boxes)), device=boxes.device)
        free = ~overlaps(boxes, labels, kept, chunk, iou_threshold).any(dim=0)
        chunk = chunk[free]
        above = overlaps(boxes, labels, chunk, chunk, iou_threshold).triu(diagonal=1)
        alive = torch.ones_like(chunk, dtype=torch.bool)
        while True:  # every round settles at least one more box, so this ends with the greedy answer
            survivors = ~(above & alive[:, None]).any(dim=0)
            if torch.equal(survivors, alive):
                break
            alive = survivors
        kept = torch.cat((kept, chunk[alive]))
    return kept[:limit]


def overlaps(boxes: Tensor, labels: Tensor, first: Tensor, second: Tensor, threshold: float) -> Tensor:
    """``[len(first), len(second)]``: same label and IoU > threshold (without a division)."""
    a, b = boxes[first, None], boxes[None, second]
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    intersection = sides[..., 0] * sides[..., 1]
    size_a, size_b = (a[..., 2:] - a[..., :2]).clamp(min=0), (b[..., 2:] - b[..., :2]).clamp(min=0)
    union = size_a[..., 0] * size_a[..., 1] + size_b[..., 0] * size_b[..., 1] - intersection
    return (intersection > threshold * union) & (labels[first, None] == labels[None, second])


def _fake(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    iou_threshold: float,
    score_threshold: float,
    max_detections: int,
    class_agnostic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_boxes(boxes, scores, labels)
    return empty_result(boxes, max_detections)


register(
    "nms",
    "(Tensor boxes, Tensor scores, Tensor labels, float iou_threshold, float score_threshold, "
    "int max_detections, bool class_agnostic) "
    "-> (Tensor boxes, Tensor scores, Tensor labels, Tensor count)",
    nms_reference,
    _fake,
)
register_without_gradient("nms", "yolo.ops.decode")
