"""YOLOv2: the region loss (arXiv:1612.08242, sec. 2; Darknet ``region_layer.c``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from yolo.losses.assign import Objects, Pairs, best_iou, class_rows, every_anchor, locate, resolve
from yolo.losses.base import AnchorHead, DetectionLoss, Terms, head_options, of_kind, per_object, processes
from yolo.losses.penalties import focal_factor, half_square
from yolo.ops.boxes import iou, shape_iou
from yolo.ops.heads import HeadSpec

PRIOR_SCALE = 0.01


@dataclass(frozen=True)
class RegionOptions:
    """Keys of Darknet's ``[region]``; the defaults are those of ``yolov2.cfg``.

    Args:
        object_scale: Weight of the objectness of responsible predictions.
        noobject_scale: Of all others.
        class_scale: Of the classes.
        coord_scale: Of the box.
        thresh: A prediction that overlaps any object by more is not told that there is nothing.
        rescore: A responsible prediction should say its IoU rather than 1.
        bias_match: The anchor's own shape decides which anchor answers, rather than the predicted shape.
        focal_loss: Class gradients times :func:`yolo.losses.penalties.focal_factor` (AlexeyAB).
        size_weight: Boxes weigh 2 - w * h, so that small ones count (pjreddie; AlexeyAB has no such factor).
        prior_images: So many images long every prediction is drawn to its anchor.
    """

    object_scale: float = 5.0
    noobject_scale: float = 1.0
    class_scale: float = 1.0
    coord_scale: float = 1.0
    thresh: float = 0.6
    rescore: bool = True
    bias_match: bool = True
    focal_loss: bool = False
    size_weight: bool = True
    prior_images: int = 12_800


class RegionLoss(DetectionLoss):
    """Squares on activated centre and objectness, squares on raw sizes, softmax over the classes.

    The gradient on the outputs is that of pjreddie's, with the logistic factor that its backward pass
    applies. Of several objects with the same cell and anchor the last one counts. Without softmax the classes
    are logistic, with cross-entropy, and add up. A centre at x = 0, which hides all later objects in Darknet,
    is an ordinary one.

    Args:
        specs: ``region`` heads.
        heads: Options of each head, over ``options``.
        options: See :class:`RegionOptions`.
    """

    seen: Tensor  # images, for ``prior_images``

    def __init__(
        self, specs: Sequence[HeadSpec], *, heads: Sequence[Mapping[str, Any]] = (), **options: Any
    ) -> None:
        super().__init__(specs, ["region"])
        self.options = head_options(RegionOptions, len(self.specs), options, heads)
        self.heads = torch.nn.ModuleList(AnchorHead(spec) for spec in self.specs)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def terms(self, logits: Sequence[Tensor], objects: Objects, size: tuple[int, int]) -> Terms:
        if self.training:
            self.seen += len(logits[0]) * processes()
        sums, predictions = [], 0
        for x, head, options in zip(logits, of_kind(self.heads, AnchorHead), self.options, strict=True):
            sums.append(self.head_terms(head.split(x), head, options, objects, size))
            predictions += len(x) * head.spec.num_anchors * x.shape[2] * x.shape[3]
        return per_object(sums, objects, predictions)

    def head_terms(
        self, x: Tensor, head: AnchorHead, options: RegionOptions, objects: Objects, size: tuple[int, int]
    ) -> Terms:
        """Sums over one head; ``x`` is ``[N, A, 5 + C, H, W]``."""
        n, anchors, _, height, width = x.shape
        cell, offset = locate(objects, head.spec.stride, (height, width))
        pairs = every_anchor(objects, cell, anchors)
        raw = pairs.take(x)
        pairs = pairs._replace(
            active=pairs.active & match_shape(raw, head, pairs, objects, options.bias_match)
        )
        slots = resolve(pairs, (n, anchors, height, width))

        share = objects.share[pairs.target].prod(dim=-1)
        prior = head.anchors[pairs.anchor]
        shape = torch.log(objects.size[pairs.target] / prior)
        distance = half_square(raw[:, :2].sigmoid(), offset[pairs.target]) + half_square(raw[:, 2:4], shape)
        weight = options.coord_scale * slots.last * ((2 - share) if options.size_weight else 1.0)
        answers = slots.answers()
        box = (weight[:, None] * distance).sum() + self.toward_prior(x, answers, options)

        with torch.no_grad():
            best, _ = best_iou(head.all_boxes(x), objects)
            quality = torch.ones_like(share)
            if options.rescore:
                ours = head.boxes(raw[:, :4], cell[pairs.target], prior)
                quality = iou(ours, objects.boxes[pairs.target])
            wanted = slots.scatter(quality, slots.last)
            empty = options.noobject_scale * (best.reshape(-1) <= options.thresh)
            scale = torch.where(answers, options.object_scale, empty)
        said = x[:, :, 4].float().sigmoid().reshape(-1)
        objectness = (scale * half_square(said, wanted)).sum()
        label = objects.label[pairs.target]
        if head.spec.softmax:
            wrong = slots.last * F.cross_entropy(raw[:, 5:], label, reduction="none")
            if options.focal_loss:
                wrong = wrong * focal_factor(raw[:, 5:].softmax(dim=-1).gather(1, label[:, None])[:, 0])
        else:
            several = (class_rows(slots, label, head.spec.num_classes) >= 0).float()
            wrong = slots.leads[:, None] * F.binary_cross_entropy_with_logits(
                raw[:, 5:], several, reduction="none"
            )
        return Terms(box, objectness, options.class_scale * wrong.sum())

    def toward_prior(self, x: Tensor, answers: Tensor, options: RegionOptions) -> Tensor:
        """Draw predictions without an object (``answers`` ``[N * A * H * W]`` is False) to their anchors."""
        if not options.prior_images:
            return x.new_zeros((), dtype=torch.float32)
        free = ~answers & (self.seen < options.prior_images)
        raw = x[:, :, :4].transpose(0, 2).flatten(1).float()  # [4, A * N * H * W]
        free = free.reshape(x.shape[0], x.shape[1], *x.shape[3:]).transpose(0, 1).flatten()
        distance = half_square(raw[:2].sigmoid(), torch.full_like(raw[:2], 0.5)).sum(dim=0)
        distance = distance + 0.5 * raw[2:].square().sum(dim=0)
        return PRIOR_SCALE * (free * distance).sum()


@torch.no_grad()
def match_shape(raw: Tensor, head: AnchorHead, pairs: Pairs, objects: Objects, bias_match: bool) -> Tensor:
    """Whether each pair's anchor, or predicted shape, fits its object best of all in the cell; ``[P]`` bool.

    Args:
        raw: ``[T * A, 5 + C]`` outputs of the pairs.
        head: A anchors.
        pairs: Each object with each anchor.
        objects: T objects.
        bias_match: By anchor.
    """
    anchors = len(head.anchors)
    if bias_match:
        best = shape_iou(objects.size, head.anchors).argmax(dim=-1)
    else:
        shapes = (raw[:, 2:4].clamp(max=16.0).exp() * head.anchors[pairs.anchor]).reshape(-1, anchors, 2)
        inter = torch.minimum(shapes, objects.size[:, None]).prod(dim=-1)
        union = shapes.prod(dim=-1) + objects.size.prod(dim=-1, keepdim=True) - inter
        best = (inter / union).argmax(dim=-1)
    return best[pairs.target] == pairs.anchor
