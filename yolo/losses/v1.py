"""YOLOv1: sum of squares on a grid (arXiv:1506.02640, sec. 2.2; Darknet ``detection_layer.c``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from yolo.losses.assign import Objects, Pairs, locate, resolve
from yolo.losses.base import DetectionLoss, Terms, head_options, per_object, processes
from yolo.losses.penalties import half_square, one_hot
from yolo.ops.boxes import cxcywh_to_xyxy, iou
from yolo.ops.heads import HeadSpec

RANDOM_UNTIL = 64_000  # images


@dataclass(frozen=True)
class GridOptions:
    """Keys of Darknet's ``[detection]``; the defaults are those of ``yolov1.cfg``.

    Args:
        object_scale: Weight of the confidence of responsible boxes.
        noobject_scale: Of all others.
        class_scale: Of the classes, in cells with an object.
        coord_scale: Of the box.
        rescore: A responsible box should say its IoU rather than 1.
        forced: The second box answers for objects below a tenth of the picture, the first for the others.
        random: Any box answers, during the first 64,000 images.
    """

    object_scale: float = 1.0
    noobject_scale: float = 0.5
    class_scale: float = 1.0
    coord_scale: float = 5.0
    rescore: bool = True
    forced: bool = False
    random: bool = False


class GridLoss(DetectionLoss):
    """One object a cell, the first; of the cell's boxes the one with the best IoU answers for it.

    The gradient is Darknet's delta, so each term is half of Darknet's sum of squares.

    Args:
        specs: One ``grid`` head.
        heads: Options of the head, if not ``options``.
        options: See :class:`GridOptions`.
    """

    seen: Tensor

    def __init__(
        self, specs: Sequence[HeadSpec], *, heads: Sequence[Mapping[str, Any]] = (), **options: Any
    ) -> None:
        super().__init__(specs, ["grid"])
        if len(self.specs) != 1:
            raise ValueError(f"the YOLOv1 loss is of one grid head, got {len(self.specs)}")
        (self.options,) = head_options(GridOptions, 1, options, heads)
        if self.options.forced and self.specs[0].boxes_per_cell < 2:
            raise ValueError("forced=1 needs at least two boxes per cell, got 1")
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def terms(self, logits: Sequence[Tensor], objects: Objects, size: tuple[int, int]) -> Terms:
        spec, options, x = self.specs[0], self.options, logits[0].float()
        n, cells, per_cell = len(x), spec.side**2, spec.boxes_per_cell
        if self.training:
            self.seen += n * processes()
        classes, confidence, box = x.split(
            (cells * spec.num_classes, cells * per_cell, cells * per_cell * 4), dim=1
        )

        cell, offset = locate(objects, spec.stride, (spec.side, spec.side))
        place = cell[:, 1] * spec.side + cell[:, 0]
        predicted = box.reshape(n, cells, per_cell, 4)[objects.image, place]  # [T, B, 4]
        chosen, quality = self.responsible(predicted.detach(), objects, offset)
        rows = torch.arange(len(place), device=x.device)
        pairs = Pairs(objects.image, torch.zeros_like(place), cell[:, 1], cell[:, 0], rows, objects.active)
        wins = resolve(pairs, (n, 1, spec.side, spec.side)).leads  # the first object of a cell keeps it

        target = torch.cat((offset, objects.share.sqrt() if spec.sqrt else objects.share), dim=-1)
        coords = half_square(predicted[rows, chosen], target).sum(dim=-1)
        found = classes.reshape(n, cells, spec.num_classes)[objects.image, place]
        if spec.softmax:
            wrong = F.cross_entropy(found, objects.label, reduction="none")
        else:
            wrong = half_square(found, one_hot(objects.label, spec.num_classes)).sum(dim=-1)
        answer = resolve(pairs._replace(anchor=chosen, active=wins), (n, per_cell, spec.side, spec.side))
        wanted = answer.scatter(quality, answer.last).reshape(n, per_cell, cells).mT
        answers = answer.answers().reshape(n, per_cell, cells).mT
        weight = torch.where(answers, options.object_scale, options.noobject_scale)
        objectness = weight * half_square(confidence.reshape(n, cells, per_cell), wanted)
        sums = Terms(
            box=options.coord_scale * (wins * coords).sum(),
            objectness=objectness.sum(),
            classes=options.class_scale * (wins * wrong).sum(),
        )
        return per_object([sums], objects, n * cells * per_cell)

    def responsible(self, predicted: Tensor, objects: Objects, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Which box of the cell answers, ``[T]``, and the confidence it should have, ``[T]``.

        The best IoU; where no box touches the object, the smallest root of squared differences. Everything in
        fractions of the picture, the cell's own place left out on both sides.

        Args:
            predicted: ``[T, B, 4]`` as the head gives them.
            objects: T objects.
            offset: ``[T, 2]`` of their centres in their cells.
        """
        spec, options = self.specs[0], self.options
        shape = predicted[..., 2:].square() if spec.sqrt else predicted[..., 2:]
        ours = torch.cat((predicted[..., :2] / spec.side, shape), dim=-1)
        theirs = torch.cat((offset / spec.side, objects.share), dim=-1)[:, None]
        overlap = iou(cxcywh_to_xyxy(ours), cxcywh_to_xyxy(theirs))
        apart = (ours - theirs).square().sum(dim=-1)
        chosen = torch.where((overlap > 0).any(dim=-1), overlap.argmax(dim=-1), apart.argmin(dim=-1))
        if options.forced:
            chosen = (objects.share.prod(dim=-1) < 0.1).long()
        if options.random:
            anyone = torch.randint(spec.boxes_per_cell, chosen.shape, device=chosen.device)
            chosen = torch.where(self.seen < RANDOM_UNTIL, anyone, chosen)
        quality = overlap.gather(1, chosen[:, None])[:, 0]
        return chosen, quality if options.rescore else torch.ones_like(quality)
