"""The module that becomes a graph: pixels to detections, in shapes that do not depend on the picture.

The suppression here is :func:`yolo.ops.detect` written with operators that ONNX Runtime and every TensorRT
take: no NonMaxSuppression, no NonZero, no boolean mask, no plugin.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from yolo.models.detector import Detector
from yolo.ops.decode import decode_reference
from yolo.ops.heads import HeadSpec
from yolo.ops.layout import check_limits, count_boxes

ROUNDS = 16  # of suppression; 180 scenes with up to 1000 candidates, also crowded ones, all settled after 12
TOPK_LIMIT = 3840  # of TensorRT's TopK
FLOOR = -3.0e38  # the score of what is no candidate: below every threshold, and finite for every runtime
LARGEST = 3.0e38

InputType = Literal["uint8", "float32"]


@dataclass(frozen=True)
class Suppression:
    """The rule by which predictions become detections; the same options as :func:`yolo.ops.detect`.

    Args:
        score_threshold: A candidate scores strictly more.
        iou_threshold: A box falls to a better one of its class at a strictly greater IoU.
        max_detections: Rows of the result.
        multi_label: Every class above the threshold makes a candidate instead of only the best of each box.
        class_agnostic: Let boxes of different classes suppress each other.
        candidates: K of the graph: only the best K candidates of a picture are compared. With no more
            candidates than that the result is exactly that of :func:`yolo.ops.detect`. Time and memory grow
            with its square.
    """

    score_threshold: float = 0.25
    iou_threshold: float = 0.45
    max_detections: int = 300
    multi_label: bool = False
    class_agnostic: bool = False
    candidates: int = 1000

    def __post_init__(self) -> None:
        check_limits(self.score_threshold, self.iou_threshold, self.max_detections)
        if not self.max_detections <= self.candidates <= TOPK_LIMIT:
            raise ValueError(
                f"candidates must lie between max_detections ({self.max_detections}) and {TOPK_LIMIT} "
                f"(TensorRT's limit for TopK), got {self.candidates}"
            )

    def detect_options(self) -> dict[str, Any]:
        """The keyword arguments of :func:`yolo.ops.detect` that ask for the same."""
        options = asdict(self)
        del options["candidates"]
        return options


def suppress(boxes: Tensor, scores: Tensor, rule: Suppression, spare: int = 0) -> tuple[Tensor, ...]:
    """Greedy suppression with fixed shapes.

    Keeping is a fixed point: a candidate stays when no better candidate that stays overlaps it. Iterating
    from "all stay" settles at least one more candidate a round in order of score, so it ends with the greedy
    answer; how many rounds that takes depends on the longest chain of overlaps, not on the number of
    candidates.

    Args:
        boxes: ``[N, M, 4]`` x1, y1, x2, y2, float32.
        scores: ``[N, M, C]`` float32.
        rule: Thresholds and sizes.
        spare: Empty rows added to the predictions, so that there are never fewer than ``rule.candidates``.

    Returns:
        Boxes ``[N, K, 4]``, scores ``[N, K]``, labels ``[N, K]`` int64 and count ``[N]`` int64, best first,
        padded with zeros to K = ``rule.max_detections``.
    """
    n, num_classes = boxes.shape[0], scores.shape[2]
    valid = scores > rule.score_threshold  # false for NaN
    valid = valid & _finite(boxes).unsqueeze(-1)
    value = torch.where(valid, scores, FLOOR)
    if rule.multi_label:
        value = value.flatten(1)  # in the order prediction, class: how ties are broken
        label_of = None
    else:
        value, label_of = value.max(dim=-1)
    if spare:
        value = torch.cat((value, value.new_full((1, spare), FLOOR).expand(n, spare)), dim=1)
    found, index = value.topk(rule.candidates, dim=1)
    real = found > FLOOR
    index = torch.where(real, index, 0)
    if label_of is None:
        row, label = index // num_classes, index % num_classes
    else:
        row, label = index, label_of.gather(1, index)
    box = boxes.gather(1, row.unsqueeze(-1).expand(-1, -1, 4))

    keep = _settle(_suppressed_by(box, label, rule), rule.candidates, n) * real.float()
    # the survivors move to the front; equal scores keep their order
    found, order = torch.where(keep > 0.5, found, FLOOR).topk(rule.max_detections, dim=1)
    used = found > FLOOR
    box = box.gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
    box = torch.where(used.unsqueeze(-1), box, 0.0)
    found = torch.where(used, found, 0.0)
    label = torch.where(used, label.gather(1, order), 0)
    return box, found, label, used.to(torch.int64).sum(dim=1)


def _finite(boxes: Tensor) -> Tensor:
    """``[N, M]``: all four edges are numbers (a comparison with NaN is false)."""
    inside = boxes.abs() < LARGEST
    x1, y1, x2, y2 = inside.unbind(dim=-1)
    return x1 & y1 & x2 & y2


def _suppressed_by(box: Tensor, label: Tensor, rule: Suppression) -> Tensor:
    """``[N, K, K]``, 1.0 where candidate i (row) would suppress j (column), in the sums of ``yolo::nms``."""
    x1, y1, x2, y2 = box.unbind(dim=-1)
    width = torch.minimum(x2.unsqueeze(2), x2.unsqueeze(1)) - torch.maximum(x1.unsqueeze(2), x1.unsqueeze(1))
    height = torch.minimum(y2.unsqueeze(2), y2.unsqueeze(1)) - torch.maximum(y1.unsqueeze(2), y1.unsqueeze(1))
    intersection = width.clamp(min=0) * height.clamp(min=0)
    area = (x2 - x1).clamp(min=0) * (y2 - y1).clamp(min=0)
    union = area.unsqueeze(2) + area.unsqueeze(1) - intersection
    above = intersection > rule.iou_threshold * union
    if not rule.class_agnostic:
        above = above & (label.unsqueeze(2) == label.unsqueeze(1))
    rank = torch.arange(rule.candidates, device=box.device)
    return (above & (rank.unsqueeze(1) < rank)).float()


def _settle(suppressed_by: Tensor, candidates: int, n: int) -> Tensor:
    """``[N, K]``, 1.0 for what stays."""
    keep = suppressed_by.new_ones((1, 1, candidates)).expand(n, 1, candidates)
    for _ in range(ROUNDS):
        keep = (torch.matmul(keep, suppressed_by) < 0.5).float()
    return keep.squeeze(1)


class Deployed(nn.Module):
    """What is exported: pixels to ``boxes, scores`` of every prediction, or to detections and those.

    Decoding and suppression compute in float32 whatever the network does.

    Args:
        network: Images ``[N, 3, H, W]`` (RGB, 0 to 1, in ``dtype``) to one raw output per head.
        specs: How each is read.
        rule: Suppress in the graph; None leaves boxes ``[N, M, 4]`` and scores ``[N, M, C]``.
        input_type: ``uint8`` 0 to 255, or ``float32`` 0 to 1.
        dtype: Of the network's layers.
        spare: See :func:`suppress`.
    """

    def __init__(
        self,
        network: nn.Module,
        specs: Sequence[HeadSpec],
        rule: Suppression | None = None,
        input_type: InputType = "uint8",
        dtype: torch.dtype = torch.float32,
        spare: int = 0,
    ) -> None:
        super().__init__()
        self.network = network
        self.specs = tuple(specs)
        self.rule = rule
        self.input_type = input_type
        self.dtype = dtype
        self.spare = spare

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        x = images.to(torch.float32)
        if self.input_type == "uint8":
            x = x / 255.0
        logits = self.network(x.to(self.dtype))
        boxes, scores = decode_reference([y.float() for y in logits], self.specs)
        if self.rule is None:
            return boxes, scores
        return *suppress(boxes, scores, self.rule, self.spare), boxes, scores


class Network(nn.Module):
    """A detector without the check of its input size, which an exported graph cannot make."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.backbone = detector.backbone
        self.head = detector.head

    def forward(self, images: Tensor) -> list[Tensor]:
        return list(self.head(self.backbone(images)))


def predictions_at(specs: Sequence[HeadSpec], height: int, width: int) -> int:
    """M: how many boxes a picture of this size gives."""
    total = 0
    for spec in specs:
        rows, columns = int(height // spec.stride), int(width // spec.stride)
        total += count_boxes(torch.empty((1, 1, rows, columns), device="meta"), spec)
    return total


def spare_rows(specs: Sequence[HeadSpec], rule: Suppression, height: int, width: int) -> int:
    """Rows that are missing when the smallest picture gives fewer predictions than there are candidates."""
    per_box = specs[0].num_classes if rule.multi_label else 1
    return max(0, rule.candidates - per_box * predictions_at(specs, height, width))


def deployable(detector: Detector) -> Detector:
    """A copy for inference on the CPU, in float32; the original stays as it is."""
    return copy.deepcopy(detector).cpu().float().eval().requires_grad_(False)
