"""Box formats and the IoU family. Every function takes boxes of any unit, in fp32 or wider inside.

``xyxy`` is x1, y1, x2, y2 with an exclusive right and bottom edge (width = x2 - x1); ``cxcywh`` is centre
and size. A box whose right edge is left of its left edge counts as empty. Nothing here gives NaN for finite
input, neither as value nor as gradient: denominators are bounded from below, not shifted, so values stay
exact.
"""

import math
from typing import Literal

import torch
from torch import Tensor

IouKind = Literal["iou", "giou", "diou", "ciou"]

IOU_KINDS: tuple[IouKind, ...] = ("iou", "giou", "diou", "ciou")

_SMALLEST = 1e-12  # a denominator below this belongs to two empty boxes


def _precise(x: Tensor) -> Tensor:
    """Half precision holds neither an area nor the difference of two edges: at least fp32."""
    return x if x.dtype == torch.float64 else x.float()


def cxcywh_to_xyxy(boxes: Tensor) -> Tensor:
    """Centre and size ``[..., 4]`` to edges ``[..., 4]``."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((centre - half, centre + half), dim=-1)


def xyxy_to_cxcywh(boxes: Tensor) -> Tensor:
    """Edges ``[..., 4]`` to centre and size ``[..., 4]``."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((low + high) / 2, high - low), dim=-1)


def box_area(boxes: Tensor) -> Tensor:
    """Areas ``[...]`` of xyxy boxes ``[..., 4]``, 0 for an empty one."""
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return size[..., 0] * size[..., 1]


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU of every box of ``a`` with every box of ``b``.

    Args:
        a: ``[..., T, 4]`` xyxy.
        b: ``[..., M, 4]`` xyxy, leading dimensions broadcast with those of ``a``.

    Returns:
        ``[..., T, M]``.
    """
    return iou(a.unsqueeze(-2), b.unsqueeze(-3))


def shape_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU ``[T, A]`` of shapes laid over each other at one corner.

    Args:
        a: ``[T, 2]`` widths and heights.
        b: ``[A, 2]`` widths and heights.
    """
    a, b = _precise(a).clamp(min=0).unsqueeze(1), _precise(b).clamp(min=0).unsqueeze(0)
    inter = torch.minimum(a, b).prod(dim=-1)
    return inter / (a.prod(dim=-1) + b.prod(dim=-1) - inter).clamp(min=_SMALLEST)


def iou(a: Tensor, b: Tensor, kind: IouKind = "iou", *, exponent: float = 1.0) -> Tensor:
    """IoU, or one of its relatives, of boxes that stand at the same place in both tensors.

    The gradient is the true one of the value, through every part of it (also CIoU's trade-off factor, which
    arXiv:1911.08287, sec. 3.3, holds constant). GIoU: arXiv:1902.09630; DIoU and CIoU: arXiv:1911.08287.

    Args:
        a: ``[..., 4]`` xyxy.
        b: ``[..., 4]`` xyxy, broadcast with ``a``.
        kind: ``giou`` lies in (-1, 1], ``diou`` in (-1, 1], ``ciou`` in (-2, 1].
        exponent: Of the distance term of ``diou``; Darknet has 0.6 (``box.c:box_diou``), the paper 1.

    Returns:
        ``[...]``.
    """
    if kind not in IOU_KINDS:
        raise ValueError(f"the kind of IoU must be one of {', '.join(IOU_KINDS)}, got {kind!r}")
    a, b = _precise(a), _precise(b)
    overlap = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    inter = overlap[..., 0] * overlap[..., 1]
    union = box_area(a) + box_area(b) - inter
    value = inter / union.clamp(min=_SMALLEST)
    if kind == "iou":
        return value
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).clamp(min=0)
    if kind == "giou":
        area = hull[..., 0] * hull[..., 1]
        return value - (area - union) / area.clamp(min=_SMALLEST)
    apart = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]) / 2
    distance = apart.square().sum(dim=-1) / hull.square().sum(dim=-1).clamp(min=_SMALLEST)
    if kind == "diou":
        if exponent != 1.0:
            distance = distance.clamp(min=_SMALLEST) ** exponent
        return value - distance
    return value - distance - _shape_penalty(a, b, value)


def _shape_penalty(a: Tensor, b: Tensor, value: Tensor) -> Tensor:
    """CIoU's alpha * v ``[...]``, arXiv:1911.08287, eq. 9 to 11."""
    (wa, ha), (wb, hb) = (
        (box[..., 2:] - box[..., :2]).clamp(min=1e-9).unbind(dim=-1) for box in (a, b)
    )  # bounded: the angle of a box without size has no gradient
    v = (4 / math.pi**2) * (torch.atan2(wb, hb) - torch.atan2(wa, ha)).square()
    return v.square() / (1 - value + v).clamp(min=1e-7)
