"""The loss that trains from scratch on small sets: YOLO's assignment by shape with today's penalties.

Sources: IoU penalties arXiv:1911.08287; objectness that says how good the box is arXiv:2006.04388 (sec. 3.1);
several anchors and neighbouring cells an object arXiv:2004.10934 (sec. 3.4, "eliminate grid sensitivity" and
"using multiple anchors for a single ground truth"); focal factor arXiv:1708.02002.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from yolo.losses.assign import Objects, apart, best_iou
from yolo.losses.base import AnchorHead, DetectionLoss, Terms, head_options, of_kind
from yolo.losses.penalties import one_hot
from yolo.ops.boxes import IOU_KINDS, IouKind, cxcywh_to_xyxy, iou, shape_iou
from yolo.ops.heads import HeadSpec

Match = Literal["best", "ratio", "iou"]
ALONE = 0.7  # ignore_thresh where mostly one cell learns an object, as yolov3.cfg has it; yolov2.cfg has 0.6


@dataclass(frozen=True)
class ModernOptions:
    """How objects are matched and what mistakes cost.

    Args:
        iou_loss: The box penalty is 1 - this kind of IoU, in pixels.
        box_weight: Of the mean box penalty.
        objectness_weight: Of the objectness, summed over all predictions and divided by those that answer.
        class_weight: Of the mean class penalty, summed over the classes.
        match: Which anchors answer for an object beside the one of best shape: none (``best``), those whose
            width and height are both within a factor ``ratio`` of its own, or those above ``iou_thresh`` in
            IoU of shape.
        ratio: See ``match``.
        iou_thresh: See ``match``.
        reach: Besides its own cell, an object is learned by the nearest cell beside and above or below whose
            predictions can put their centre there (``xy_scale``), or miss it by at most ``reach`` cells.
        soft_objectness: 1 lets a prediction that answers aim at the IoU of its box, 0 at 1, between at a
            mixture.
        ignore_thresh: A prediction that answers for nothing but overlaps an object by more is left alone; 1
            is never, and the fastest. None is 1 where every head reaches half a cell, so that the two nearest
            cells learn each object as well, else :data:`ALONE`: cells that do not learn an object near their
            border see it as well as its own cell does.
        label_smoothing: The true class aims at 1 - eps / 2, the others at eps / 2 (softmax: eps spread over
            all).
        focal_gamma: Objectness and logistic classes weigh their error to this power; 0 is none.
        level_weights: Of the objectness of each head; None weighs every prediction the same.
    """

    iou_loss: IouKind = "ciou"
    box_weight: float = 2.5
    objectness_weight: float = 0.25
    class_weight: float = 0.5
    match: Match = "ratio"
    ratio: float = 4.0
    iou_thresh: float = 0.213
    reach: float = 0.0
    soft_objectness: float = 1.0
    ignore_thresh: float | None = None
    label_smoothing: float = 0.0
    focal_gamma: float = 0.0
    level_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.iou_loss not in IOU_KINDS:
            raise ValueError(f"iou_loss must be one of {', '.join(IOU_KINDS)}, got {self.iou_loss!r}")
        if self.match not in ("best", "ratio", "iou"):
            raise ValueError(f"match must be best, ratio or iou, got {self.match!r}")
        if self.match == "ratio" and self.ratio <= 1:
            raise ValueError(f"ratio must be above 1, got {self.ratio}")
        if not 0 <= self.reach <= 0.5:
            raise ValueError(f"reach is 0 to 0.5 cells, got {self.reach}")


class Candidates(NamedTuple):
    """Each anchor of all heads with each object in up to three cells: ``[A, T, K]``, flattened to ``[P]``."""

    target: Tensor  # int64, index into the objects
    anchor: Tensor  # int64, index over all heads
    cell: Tensor  # [P, 2] int64, column and row
    active: Tensor  # bool


class ModernLoss(DetectionLoss):
    """Box, objectness and class terms over all heads at once.

    Of several objects in one prediction the one that it overlaps most counts. Box and class terms are means
    over the predictions that answer for an object, the objectness is a sum over all predictions divided by
    the number of those that answer (by the number of all where there is no object).

    Args:
        specs: ``region`` or ``yolo`` heads.
        options: See :class:`ModernOptions`.
    """

    anchors: Tensor  # [A, 2] pixels, in order of the heads
    strides: Tensor  # [A]
    xy_scales: Tensor  # [A]

    def __init__(self, specs: Sequence[HeadSpec], **options: Any) -> None:
        super().__init__(specs, ["region", "yolo"])
        (self.options,) = head_options(ModernOptions, 1, options, ())
        weights = self.options.level_weights
        if weights is not None and len(weights) != len(self.specs):
            raise ValueError(
                f"level_weights needs a number for each of the {len(self.specs)} heads, got {weights}"
            )
        if len({(spec.squared, spec.softmax) for spec in self.specs}) > 1:
            raise ValueError("the modern loss needs heads that all have the same activations")
        self.heads = torch.nn.ModuleList(AnchorHead(spec) for spec in self.specs)
        rows = [(w, h, spec.stride, spec.xy_scale) for spec in self.specs for w, h in spec.anchors]
        table = torch.tensor(rows, dtype=torch.float32)
        self.register_buffer("anchors", table[:, :2].clone(), persistent=False)
        self.register_buffer("strides", table[:, 2].clone(), persistent=False)
        self.register_buffer("xy_scales", table[:, 3].clone(), persistent=False)
        reaches = [0.5 * (spec.xy_scale - 1) + self.options.reach for spec in self.specs]
        self.neighbours = max(reaches) > 0
        said = self.options.ignore_thresh
        self.ignore_thresh = (ALONE if min(reaches) < 0.5 else 1.0) if said is None else said

    def terms(self, logits: Sequence[Tensor], objects: Objects, size: tuple[int, int]) -> Terms:
        options = self.options
        maps = [head.split(x) for head, x in zip(of_kind(self.heads, AnchorHead), logits, strict=True)]
        found = self.candidates(objects, size)
        raw, index = gather(maps, found, objects)
        said = torch.cat([x[:, :, 4].reshape(-1) for x in maps]).float()

        overlap = iou(self.boxes(raw, found), objects.boxes[found.target], options.iou_loss)
        quality = overlap.detach().clamp(0, 1)
        wins = best_of_slot(index, quality, found.active, len(said))
        divisor = torch.where(wins.any(), wins.sum(), len(said))
        box = (wins * (1 - overlap)).sum() / divisor

        place = torch.where(wins, index, len(said))
        aim = 1 + options.soft_objectness * (quality - 1)
        wanted = said.new_zeros(len(said) + 1).scatter_(0, place, aim)[:-1]
        objectness = self.chance(said, wanted)
        if self.ignore_thresh < 1:
            answers = wins.new_zeros(len(said) + 1).scatter_(0, place, wins)[:-1]
            objectness = objectness * (answers | self.unlike(maps, objects))
        if options.level_weights is None:
            total = objectness.sum()
        else:
            parts = objectness.split([x[:, :, 4].numel() for x in maps])
            total = sum(w * part.sum() for w, part in zip(options.level_weights, parts, strict=True))
        wrong = self.class_penalty(raw[:, 5:], objects.label[found.target])
        return Terms(
            options.box_weight * box,
            options.objectness_weight * total / divisor,
            options.class_weight * (wins * wrong).sum() / divisor,
        )

    @torch.no_grad()
    def candidates(self, objects: Objects, size: tuple[int, int]) -> Candidates:
        """Match shapes and find cells: no outputs are looked at.

        Args:
            objects: T objects.
            size: Height and width of the network input, pixels.
        """
        options, anchors, count = self.options, len(self.anchors), len(objects.label)
        overlap = shape_iou(objects.size, self.anchors)  # [T, A]
        fits = overlap.argmax(dim=1, keepdim=True) == torch.arange(anchors, device=overlap.device)
        if options.match == "ratio":
            ratio = objects.size[:, None] / self.anchors
            fits = fits | (torch.maximum(ratio, 1 / ratio).amax(dim=-1) < options.ratio)
        elif options.match == "iou":
            fits = fits | (overlap > options.iou_thresh)
        active = (fits & objects.active[:, None]).T  # [A, T]

        stride = self.strides[:, None, None]
        last = torch.cat((size[1] / stride, size[0] / stride), dim=-1) - 1  # [A, 1, 2]
        place = objects.centre / stride  # [A, T, 2]
        cell = torch.minimum(place.floor(), last)
        cells, actives = cell[:, :, None], active[:, :, None]
        if self.neighbours:
            part = place - cell
            step = torch.where(part < 0.5, -1.0, 1.0)
            beside = torch.stack((step[..., 0], torch.zeros_like(step[..., 0])), dim=-1)
            others = cell[:, :, None] + torch.stack((beside, step - beside), dim=2)  # [A, T, 2, 2]
            reach = 0.5 * (self.xy_scales - 1) + options.reach
            near = torch.minimum(part, 1 - part) < reach[:, None, None]
            inside = ((others >= 0) & (others <= last[:, :, None])).all(dim=-1)
            cells = torch.cat((cells, others), dim=2)
            actives = torch.cat((actives, actives & near & inside), dim=2)
            cells = torch.minimum(cells.clamp(min=0), last[:, :, None])
        each = actives.shape[2]
        rows = torch.arange(anchors * count * each, device=cells.device)
        target = (rows // each) % max(count, 1)
        return Candidates(
            target, rows // max(count * each, 1), cells.flatten(0, 2).long(), actives.reshape(-1)
        )

    def boxes(self, raw: Tensor, found: Candidates) -> Tensor:
        """Boxes ``[P, 4]`` xyxy in pixels of outputs ``[P, 5 + C]``."""
        scale = self.xy_scales[found.anchor, None]
        squared = self.specs[0].squared
        xy, wh = raw[:, :2] if squared else raw[:, :2].sigmoid(), raw[:, 2:4]
        centre = (scale * xy - 0.5 * (scale - 1) + found.cell) * self.strides[found.anchor, None]
        shape = (2 * wh).square() if squared else wh.clamp(max=16.0).exp()
        return cxcywh_to_xyxy(torch.cat((centre, shape * self.anchors[found.anchor]), dim=-1))

    def chance(self, x: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of each element, with the focal factor."""
        if self.specs[0].squared:
            probability = x.clamp(1e-6, 1 - 1e-6)
            penalty = F.binary_cross_entropy(probability, target, reduction="none")
        else:
            probability = x.sigmoid()
            penalty = F.binary_cross_entropy_with_logits(x, target, reduction="none")
        gamma = self.options.focal_gamma
        return penalty * (target - probability).abs() ** gamma if gamma else penalty

    def class_penalty(self, x: Tensor, label: Tensor) -> Tensor:
        """Summed over the classes, ``[P]``."""
        smooth = self.options.label_smoothing
        if self.specs[0].softmax:
            return F.cross_entropy(x, label, reduction="none", label_smoothing=smooth)
        target = one_hot(label, x.shape[1]) * (1 - smooth) + 0.5 * smooth
        return self.chance(x, target).sum(dim=-1)

    def unlike(self, maps: Sequence[Tensor], objects: Objects) -> Tensor:
        """Which predictions overlap no object by more than ``ignore_thresh``, flat over all heads."""
        best = [
            best_iou(head.all_boxes(x), objects)[0].reshape(-1)
            for head, x in zip(of_kind(self.heads, AnchorHead), maps, strict=True)
        ]
        return torch.cat(best) <= self.ignore_thresh


def gather(maps: Sequence[Tensor], found: Candidates, objects: Objects) -> tuple[Tensor, Tensor]:
    """Outputs of the candidates and where they stand among all predictions.

    Args:
        maps: ``[N, A, 5 + C, H, W]`` of each head.
        found: P candidates, those of a head together.
        objects: T objects.

    Returns:
        ``[P, 5 + C]`` float32 and ``[P]`` int64: index over head, image, anchor, row and column.
    """
    image = objects.image[found.target]
    per_anchor = len(image) // sum(x.shape[1] for x in maps)
    raw, index = [], []
    start = before = first = 0
    for x in maps:
        n, anchors, _, height, width = x.shape
        part = slice(start, start + anchors * per_anchor)
        picture, anchor = image[part], found.anchor[part] - first
        col, row = found.cell[part].unbind(dim=1)
        raw.append(x[picture, anchor, :, row, col].float())
        index.append(((picture * anchors + anchor) * height + row) * width + col + before)
        start, first, before = part.stop, first + anchors, before + n * anchors * height * width
    return torch.cat(raw), torch.cat(index)


@torch.no_grad()
def best_of_slot(index: Tensor, quality: Tensor, active: Tensor, count: int) -> Tensor:
    """Which active rows have the highest ``quality`` of their ``index`` (ties: the last); ``[P]`` bool.

    Args:
        index: ``[P]`` int64 below ``count``.
        quality: ``[P]``, 0 to 1.
        active: ``[P]`` bool.
        count: Number of slots.
    """
    rows = torch.arange(len(index), device=index.device)
    key = (quality * 1e6).long() * len(index) + rows
    place = apart(index, active, count)
    best = key.new_full((count + len(rows),), -1).scatter_reduce_(0, place, key, "amax")
    return active & (best[place] == key)
