"""YOLOv4: IoU losses and several anchors an object (arXiv:2004.10934; AlexeyAB's ``yolo_layer.c``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from yolo.losses.assign import (
    Objects,
    Pairs,
    Slots,
    best_iou,
    chain,
    class_rows,
    every_anchor,
    every_prediction,
    locate,
    resolve,
)
from yolo.losses.base import AnchorHead, DetectionLoss, Terms, head_options, of_kind, per_object
from yolo.losses.penalties import chance, clipped, focal_factor, half_square
from yolo.losses.v3 import box_targets
from yolo.ops.boxes import IOU_KINDS, IouKind, iou, shape_iou
from yolo.ops.heads import HeadSpec

SURE = 0.25  # of some class, before a prediction's overlap excuses its objectness


@dataclass(frozen=True)
class Yolo4Options:
    """Keys of AlexeyAB's ``[yolo]``; the defaults are those of ``yolov4.cfg``.

    Args:
        ignore_thresh: A prediction that is sure of some class and overlaps any object by more is not told
            that there is nothing.
        truth_thresh: A prediction that overlaps an object by more answers for it; 1 is never.
        iou_thresh: Anchors whose shape overlaps an object by more answer, too; 1 is never.
        iou_thresh_kind: The overlap of shapes that ``iou_thresh`` means.
        iou_loss: Box penalty: 1 - that kind of IoU, or ``mse`` on outputs as in YOLOv3.
        iou_normalizer: Weight of the box.
        obj_normalizer: Weight of the objectness.
        cls_normalizer: Weight of the true class; acts only together with class multipliers.
        delta_normalizer: Weight of everything.
        max_delta: Limit of each element of an IoU penalty's gradient.
        label_smooth_eps: Classes aim at eps / 2 and 1 - eps / 2.
        focal_loss: Class gradients times :func:`yolo.losses.penalties.focal_factor`; without label smoothing.
        objectness_smooth: Objectness aims at the best overlap above ``ignore_thresh``, not at 1.
        classes_multipliers: Weight of each class as the true one.
        counters_per_class: Objects of each class in the set; gives multipliers largest / own, up to
            ``max_delta``.
    """

    ignore_thresh: float = 0.7
    truth_thresh: float = 1.0
    iou_thresh: float = 0.213
    iou_thresh_kind: IouKind = "iou"
    iou_loss: IouKind | Literal["mse"] = "ciou"
    iou_normalizer: float = 0.07
    obj_normalizer: float = 1.0
    cls_normalizer: float = 1.0
    delta_normalizer: float = 1.0
    max_delta: float | None = 5.0
    label_smooth_eps: float = 0.0
    focal_loss: bool = False
    objectness_smooth: bool = False
    classes_multipliers: tuple[float, ...] | None = None
    counters_per_class: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.iou_loss not in (*IOU_KINDS, "mse"):
            raise ValueError(f"iou_loss must be mse, {', '.join(IOU_KINDS)}, got {self.iou_loss!r}")
        if self.iou_thresh_kind not in IOU_KINDS:
            raise ValueError(
                f"iou_thresh_kind must be one of {', '.join(IOU_KINDS)}, got {self.iou_thresh_kind!r}"
            )

    def multipliers(self) -> tuple[float, ...] | None:
        """Weight of each class, if there are any."""
        if self.counters_per_class is None:
            return self.classes_multipliers
        limit = float("inf") if self.max_delta is None else self.max_delta
        most = max(self.counters_per_class)
        return tuple(min(most / max(count, 1.0), limit) for count in self.counters_per_class)


class YoloV4Head(AnchorHead):
    """A head with its options."""

    multipliers: Tensor | None  # [C]

    def __init__(self, spec: HeadSpec, options: Yolo4Options) -> None:
        super().__init__(spec)
        self.options = options
        values = options.multipliers()
        if values is not None and len(values) != spec.num_classes:
            raise ValueError(
                f"class multipliers: the head has {spec.num_classes} classes, got {len(values)} numbers"
            )
        self.register_buffer(
            "multipliers", None if values is None else torch.tensor(values), persistent=False
        )


class YoloV4Loss(DetectionLoss):
    """YOLOv3's assignment and more anchors an object; box penalties add up where objects share a prediction.

    Objectness, classes and ``mse`` boxes have AlexeyAB's gradient. His IoU gradients are not those of the IoU
    (``box.c:dx_box_iou`` lacks, among others, the factors of the logistic, the anchor and the picture's size,
    and has signs of its own); here they are. They are therefore smaller by a factor of 10 to 50, which
    ``iou_normalizer`` can make up for. IoUs are taken in fractions of the picture, DIoU with the paper's
    exponent 1.

    Args:
        specs: ``yolo`` heads.
        heads: Options of each head, over ``options``.
        options: See :class:`Yolo4Options`.
    """

    def __init__(
        self, specs: Sequence[HeadSpec], *, heads: Sequence[Mapping[str, Any]] = (), **options: Any
    ) -> None:
        super().__init__(specs, ["yolo"])
        each = head_options(Yolo4Options, len(self.specs), options, heads)
        self.heads = torch.nn.ModuleList(YoloV4Head(*both) for both in zip(self.specs, each, strict=True))

    def terms(self, logits: Sequence[Tensor], objects: Objects, size: tuple[int, int]) -> Terms:
        sums, predictions = [], 0
        for x, head in zip(logits, of_kind(self.heads, YoloV4Head), strict=True):
            sums.append(head_terms(head.split(x), head, objects, size))
            predictions += len(x) * head.spec.num_anchors * x.shape[2] * x.shape[3]
        return per_object(sums, objects, predictions)


def head_terms(x: Tensor, head: YoloV4Head, objects: Objects, size: tuple[int, int]) -> Terms:
    """Sums over one head; ``x`` is ``[N, A, 5 + C, H, W]``."""
    options, (n, anchors, _, height, width) = head.options, x.shape
    shape = (n, anchors, height, width)
    pairs = by_shapes(objects, head, (height, width), size)
    best, owner = best_iou(head.all_boxes(x), objects, which=options.truth_thresh < 1)
    before = 0
    if options.truth_thresh < 1 and len(objects.label):
        sure = every_prediction(best.reshape(shape), owner.reshape(shape), options.truth_thresh)
        before = len(sure.target)
        pairs = chain(sure, pairs)
    slots = resolve(pairs, shape)
    raw = pairs.take(x)
    overlap = best.reshape(-1)
    label = objects.label[pairs.target]
    weight = torch.ones_like(raw[:, 0]) if head.multipliers is None else head.multipliers[label]
    early = torch.arange(len(label), device=x.device) < before  # pairs of truth_thresh
    value = torch.ones_like(weight)
    if before:
        value[:before] = overlap.square() if options.objectness_smooth else 1.0

    classes, shares = class_terms(raw[:, 5:], head, slots, pairs, label, weight, value, early)
    box = box_penalty(raw, head, objects, pairs, size)
    if options.iou_thresh < 1:
        box = box / shares
    objectness = objectness_terms(x, head, overlap, slots, torch.where(early, 1.0, weight), value, early)
    scale = options.delta_normalizer
    return Terms(scale * (pairs.active * weight * box).sum(), scale * objectness.sum(), scale * classes.sum())


def by_shapes(objects: Objects, head: YoloV4Head, grid: tuple[int, int], size: tuple[int, int]) -> Pairs:
    """Pairs of the best anchor of all heads, if it is one of this head, and of all above ``iou_thresh``."""
    cell, _ = locate(objects, head.spec.stride, grid)
    pairs = every_anchor(objects, cell, len(head.anchors))
    fits = shape_iou(objects.size, head.every).argmax(dim=-1)[:, None] == head.mask
    if head.options.iou_thresh < 1:
        whole = torch.stack((head.anchors[:, 0] / size[1], head.anchors[:, 1] / size[0]), dim=-1)
        theirs, ours = (torch.cat((-part, part), dim=-1) for part in (objects.share[:, None] / 2, whole / 2))
        fits = fits | (iou(theirs, ours, head.options.iou_thresh_kind) > head.options.iou_thresh)
    return pairs._replace(active=pairs.active & fits.reshape(-1))


def box_penalty(
    raw: Tensor, head: YoloV4Head, objects: Objects, pairs: Pairs, size: tuple[int, int]
) -> Tensor:
    """Penalty of each pair's box, ``[P]``."""
    spec, options = head.spec, head.options
    if options.iou_loss == "mse":
        offset, log_size = box_targets(objects, head, pairs)
        xy = spec.xy_scale * chance(
            raw[:, :2], (offset + 0.5 * (spec.xy_scale - 1)) / spec.xy_scale, spec.squared
        )
        weight = options.iou_normalizer * (2 - objects.share[pairs.target].prod(dim=-1))
        return weight * (xy + half_square(raw[:, 2:4], log_size)).sum(dim=-1)
    scale = raw.new_ones(4) / size[1]
    scale[1::2] = 1 / size[0]
    raw = raw[:, :4]
    cell = torch.stack((pairs.col, pairs.row), dim=-1)
    ours = head.boxes(raw, cell, head.anchors[pairs.anchor]) * scale
    penalty = options.iou_normalizer * (1 - iou(ours, objects.boxes[pairs.target] * scale, options.iou_loss))
    return penalty if options.max_delta is None else clipped(raw, penalty, options.max_delta)


def class_terms(
    x: Tensor,
    head: YoloV4Head,
    slots: Slots,
    pairs: Pairs,
    label: Tensor,
    weight: Tensor,
    value: Tensor,
    early: Tensor,
) -> tuple[Tensor, Tensor]:
    """Class penalties ``[P, C]``, and how many of each prediction are told to rise, ``[P]``, at least 1.

    The first object of a prediction sets all classes, each later one only its own: the labels add up.

    Args:
        x: ``[P, C]`` class outputs.
        head: With the options.
        slots: Of the pairs.
        pairs: P pairs.
        label: ``[P]`` classes.
        weight: ``[P]`` multipliers of these classes.
        value: ``[P]`` target of the true class before label smoothing.
        early: ``[P]`` pairs of ``truth_thresh``.
    """
    options = head.options
    high, low = 1 - 0.5 * options.label_smooth_eps, 0.5 * options.label_smooth_eps
    probability = x.detach() if head.spec.squared else x.detach().sigmoid()
    others = torch.ones_like(weight)
    own = weight
    if options.focal_loss:
        others = focal_factor(probability.gather(1, label[:, None])[:, 0])
        own = torch.where(slots.leads, others, weight)
        high, low = 1.0, 0.0
    elif head.multipliers is not None:
        own = torch.where(slots.leads, weight * options.cls_normalizer, weight)
    if options.objectness_smooth:
        own = torch.where(early, weight, own)
        aim = torch.where(early, value, high)
    else:
        aim = torch.full_like(value, high)
    rows = class_rows(slots, label, head.spec.num_classes)
    here, rows = rows >= 0, rows.clamp(min=0)
    target = torch.where(here, aim[rows], low)
    scale = torch.where(here, own[rows], others[:, None])
    rising = (slots.leads[:, None] & (scale * (target - probability) > 0)).sum(dim=-1).clamp(min=1)
    return slots.leads[:, None] * scale * chance(x, target, head.spec.squared), rising[slots.first]


def objectness_terms(
    x: Tensor, head: YoloV4Head, overlap: Tensor, slots: Slots, weight: Tensor, value: Tensor, early: Tensor
) -> Tensor:
    """Objectness penalties ``[N * A * H * W]``.

    Args:
        x: ``[N, A, 5 + C, H, W]``.
        head: With the options.
        overlap: ``[N * A * H * W]`` best IoU of each prediction.
        slots: Of the P pairs.
        weight: ``[P]`` of each pair.
        value: ``[P]`` target of each pair.
        early: ``[P]`` pairs of ``truth_thresh``.
    """
    options = head.options
    said = x[:, :, 4].float().reshape(-1)
    surest = x.detach()[:, :, 5:].amax(dim=2).float().reshape(-1)
    surest = surest if head.spec.squared else surest.sigmoid()
    excused = (surest > SURE) & (overlap > options.ignore_thresh)
    target = torch.where(excused, overlap, 0.0) if options.objectness_smooth else torch.zeros_like(overlap)
    scale = torch.ones_like(overlap) if options.objectness_smooth else (~excused).float()
    rows = slots.last
    if (
        options.objectness_smooth
    ):  # an object sets the objectness only where nothing else did: by truth_thresh
        rows = early & (slots.index < slots.count)
    answers, wanted, share = (
        slots.scatter(rows, rows),
        slots.scatter(value, rows),
        slots.scatter(weight, rows),
    )
    return (
        options.obj_normalizer
        * torch.where(answers, share, scale)
        * chance(said, torch.where(answers, wanted, target), head.spec.squared)
    )
