"""YOLOv3: logistic everywhere, an ignore threshold (arXiv:1804.02767, sec. 2; Darknet ``yolo_layer.c``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from yolo.losses.assign import (
    Objects,
    Pairs,
    best_iou,
    chain,
    class_rows,
    every_anchor,
    every_prediction,
    locate,
    resolve,
)
from yolo.losses.base import AnchorHead, DetectionLoss, Terms, head_options, of_kind, per_object
from yolo.losses.penalties import chance, half_square
from yolo.ops.boxes import shape_iou
from yolo.ops.heads import HeadSpec


@dataclass(frozen=True)
class Yolo3Options:
    """Keys of pjreddie's ``[yolo]``; the defaults are those of ``yolov3.cfg``.

    Args:
        ignore_thresh: A prediction that overlaps any object by more is not told that there is nothing.
        truth_thresh: A prediction that overlaps an object by more answers for it; 1 is never.
    """

    ignore_thresh: float = 0.7
    truth_thresh: float = 1.0


class YoloV3Loss(DetectionLoss):
    """The anchor of best shape among all heads answers for an object, in the cell of its centre.

    Centres, objectness and classes: cross-entropy on logits. Sizes: squares on logits. Boxes weigh 2 - w * h.
    Of several objects in one prediction the last one has the box, and the classes add up.

    Args:
        specs: ``yolo`` heads.
        heads: Options of each head, over ``options``.
        options: See :class:`Yolo3Options`.
    """

    def __init__(
        self, specs: Sequence[HeadSpec], *, heads: Sequence[Mapping[str, Any]] = (), **options: Any
    ) -> None:
        super().__init__(specs, ["yolo"])
        self.options = head_options(Yolo3Options, len(self.specs), options, heads)
        self.heads = torch.nn.ModuleList(AnchorHead(spec) for spec in self.specs)

    def terms(self, logits: Sequence[Tensor], objects: Objects, size: tuple[int, int]) -> Terms:
        sums, predictions = [], 0
        for x, head, options in zip(logits, of_kind(self.heads, AnchorHead), self.options, strict=True):
            sums.append(self.head_terms(head.split(x), head, options, objects))
            predictions += len(x) * head.spec.num_anchors * x.shape[2] * x.shape[3]
        return per_object(sums, objects, predictions)

    def head_terms(self, x: Tensor, head: AnchorHead, options: Yolo3Options, objects: Objects) -> Terms:
        """Sums over one head; ``x`` is ``[N, A, 5 + C, H, W]``."""
        spec, (n, anchors, _, height, width) = head.spec, x.shape
        shape = (n, anchors, height, width)
        pairs = by_shape(objects, head, (height, width))
        best, owner = best_iou(head.all_boxes(x), objects, which=options.truth_thresh < 1)
        if options.truth_thresh < 1 and len(objects.label):
            sure = every_prediction(best.reshape(shape), owner.reshape(shape), options.truth_thresh)
            pairs = chain(sure, pairs)
        slots = resolve(pairs, shape)
        raw = pairs.take(x)

        offset, log_size = box_targets(objects, head, pairs)
        xy = spec.xy_scale * chance(
            raw[:, :2], (offset + 0.5 * (spec.xy_scale - 1)) / spec.xy_scale, spec.squared
        )
        weight = slots.last * (2 - objects.share[pairs.target].prod(dim=-1))
        box = (weight[:, None] * (xy + half_square(raw[:, 2:4], log_size))).sum()

        answers = slots.answers()
        counts = answers | (best.reshape(-1) <= options.ignore_thresh)
        objectness = (counts * chance(x[:, :, 4].float().reshape(-1), answers.float(), spec.squared)).sum()

        labels = class_rows(slots, objects.label[pairs.target], spec.num_classes) >= 0
        classes = (slots.leads[:, None] * chance(raw[:, 5:], labels.float(), spec.squared)).sum()
        return Terms(box, objectness, classes)


def by_shape(objects: Objects, head: AnchorHead, grid: tuple[int, int]) -> Pairs:
    """Each object with each anchor of this head, active where that is the best in shape of all heads."""
    cell, _ = locate(objects, head.spec.stride, grid)
    pairs = every_anchor(objects, cell, len(head.anchors))
    best = shape_iou(objects.size, head.every).argmax(dim=-1)
    return pairs._replace(active=pairs.active & (best[pairs.target] == head.mask[pairs.anchor]))


def box_targets(objects: Objects, head: AnchorHead, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Centre seen from the pair's cell, in cells, and the outputs of the right size; both ``[P, 2]``."""
    cell = torch.stack((pairs.col, pairs.row), dim=-1)
    offset = objects.centre[pairs.target] * (1.0 / head.spec.stride) - cell
    ratio = objects.size[pairs.target] / head.anchors[pairs.anchor]
    return offset, (0.5 * ratio.sqrt() if head.spec.squared else ratio.log())
