"""Which predictions answer for which objects. Pure: no penalties, no gradients, no wait for the device.

The number of rows follows from the number of objects and anchors, which the host knows. What depends on
values is a switch in a row (``active``), never a shape, so nothing here makes the host wait for a GPU.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from yolo.ops.boxes import xyxy_to_cxcywh
from yolo.types import Targets

PAIRS_AT_ONCE = 1 << 24  # of the ignore test: an intermediate result has 64 MiB


class Objects(NamedTuple):
    """The objects of a batch as losses read them."""

    boxes: Tensor  # [T, 4] float32, xyxy, pixels of the network input
    centre: Tensor  # [T, 2] float32, pixels, inside the network input or on its edge
    size: Tensor  # [T, 2] float32, pixels
    share: Tensor  # [T, 2] float32, width and height as fractions of the network input
    label: Tensor  # [T] int64, always a possible class
    image: Tensor  # [T] int64
    active: Tensor  # [T] bool; False for an empty box or a class that the model does not have


class Pairs(NamedTuple):
    """Predictions of one head, each with the object that it answers for: ``[P]``, in order of the objects."""

    image: Tensor  # int64
    anchor: Tensor  # int64, within the head
    row: Tensor  # int64
    col: Tensor  # int64
    target: Tensor  # int64, index into the objects
    active: Tensor  # bool; False switches the pair off

    def take(self, x: Tensor) -> Tensor:
        """The outputs ``[P, E]`` float32 of these predictions out of ``[N, A, E, H, W]``."""
        return x[self.image, self.anchor, :, self.row, self.col].float()


@dataclass(frozen=True)
class Slots:
    """What several objects in one prediction mean for it: Darknet lets the last one win, or adds up."""

    index: Tensor  # [P] int64, flat prediction (image, anchor, row, col), or :func:`apart` for a pair that is off
    count: int  # number of predictions
    first: Tensor  # [P] int64, the first active pair of the same prediction
    leads: Tensor  # [P] bool, active and itself the first
    last: Tensor  # [P] bool, active and the last

    def scatter(self, values: Tensor, rows: Tensor) -> Tensor:
        """Write the ``values`` ``[P]`` of ``rows`` (at most one a prediction) into a map ``[count]`` of 0."""
        index = torch.where(rows, self.index, self.count)
        return values.new_zeros(self.count + 1).scatter_(0, index, values)[:-1]

    def answers(self) -> Tensor:
        """``[count]`` bool: whether each prediction answers for an object."""
        return self.scatter(self.last, self.last)


def read_objects(targets: Targets, size: tuple[int, int], num_classes: int) -> Objects:
    """Prepare ``targets``; what cannot be learned (no area, not finite, unknown class) is switched off.

    Args:
        targets: Pixels of the network input.
        size: Height and width of the network input, pixels.
        num_classes: C.
    """
    boxes = targets.boxes if targets.boxes.dtype == torch.float64 else targets.boxes.float()
    centre, extent = xyxy_to_cxcywh(boxes).float().split(2, dim=-1)
    usable = (extent > 0).all(dim=-1) & torch.isfinite(boxes).all(dim=-1)
    usable &= (targets.labels >= 0) & (targets.labels < num_classes)
    extent = torch.where(usable[:, None], extent, 1.0)
    edge = [centre[:, axis].clamp(0, side) for axis, side in enumerate((size[1], size[0]))]
    centre = torch.where(usable[:, None], torch.stack(edge, dim=-1), 0.0)
    return Objects(
        boxes=torch.where(usable[:, None], boxes.float(), 0.0),
        centre=centre,
        size=extent,
        share=torch.stack((extent[:, 0] / size[1], extent[:, 1] / size[0]), dim=-1),
        label=targets.labels.clamp(0, num_classes - 1),
        image=targets.image,
        active=usable,
    )


def locate(objects: Objects, stride: float, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The cell of each centre; a centre on a border belongs to the cell right or below, at 1.0 to the last.

    Args:
        objects: T objects.
        stride: Pixels a cell.
        grid: Rows and columns.

    Returns:
        Cell ``[T, 2]`` int64 as column, row; offset in it ``[T, 2]``, 0 to 1.
    """
    place = objects.centre * (1.0 / stride)
    col = place[:, 0].floor().clamp(0, grid[1] - 1)
    row = place[:, 1].floor().clamp(0, grid[0] - 1)
    cell = torch.stack((col, row), dim=-1)
    return cell.long(), place - cell


def every_anchor(objects: Objects, cell: Tensor, num_anchors: int) -> Pairs:
    """Each object with each of ``num_anchors`` predictions in its cell, all active that can be; P = T * A."""
    count = len(cell)
    target = torch.arange(count, device=cell.device).repeat_interleave(
        num_anchors, output_size=count * num_anchors
    )
    anchor = torch.arange(num_anchors, device=cell.device).repeat(count)
    return Pairs(
        objects.image[target], anchor, cell[target, 1], cell[target, 0], target, objects.active[target]
    )


def every_prediction(best: Tensor, target: Tensor, threshold: float) -> Pairs:
    """Each prediction with its best object, active above ``threshold`` (Darknet's ``truth_thresh``).

    Args:
        best: ``[N, A, H, W]`` best IoU.
        target: ``[N, A, H, W]`` int64, the object.
        threshold: A better IoU switches on.
    """
    image, anchor, row, col = (
        axis.reshape(-1)
        for axis in torch.meshgrid(*(torch.arange(n, device=best.device) for n in best.shape), indexing="ij")
    )
    return Pairs(image, anchor, row, col, target.reshape(-1), best.reshape(-1) > threshold)


def chain(before: Pairs, after: Pairs) -> Pairs:
    """The pairs of both, ``before`` first."""
    return Pairs(*(torch.cat(both) for both in zip(before, after, strict=True)))


def resolve(pairs: Pairs, shape: tuple[int, int, int, int]) -> Slots:
    """Find the pairs that share a prediction; ``shape`` is N, A, H, W of the head."""
    n, anchors, height, width = shape
    count = n * anchors * height * width
    flat = ((pairs.image * anchors + pairs.anchor) * height + pairs.row) * width + pairs.col
    index = apart(flat, pairs.active, count)
    rows = torch.arange(len(index), device=index.device)
    low = rows.new_full((count + len(rows),), len(rows)).scatter_reduce_(0, index, rows, "amin")
    high = rows.new_full((count + len(rows),), -1).scatter_reduce_(0, index, rows, "amax")
    first = torch.where(pairs.active, low[index], rows)
    return Slots(index, count, first, pairs.active & (first == rows), pairs.active & (high[index] == rows))


def apart(index: Tensor, active: Tensor, count: int) -> Tensor:
    """``index`` ``[P]`` of the rows that are on, and for each row that is off a place of its own from ``count``.

    Thousands of rows in one place would make a GPU, which reduces int64 by trying again, take milliseconds for it.
    """
    return torch.where(active, index, count + torch.arange(len(index), device=index.device))


def class_rows(slots: Slots, label: Tensor, num_classes: int) -> Tensor:
    """For each leading pair and class, the last pair of its prediction that has this class, or -1.

    Args:
        slots: Of the P pairs.
        label: ``[P]`` int64, the class of each pair.
        num_classes: C.

    Returns:
        ``[P, C]`` int64; only rows of leading pairs mean something.
    """
    count = len(label)
    key = slots.first * num_classes + label  # a pair that is off is its own first: it meets no other
    rows = torch.arange(count, device=label.device)
    table = rows.new_full((count * num_classes,), -1).scatter_reduce_(0, key, rows, "amax")
    return table.reshape(count, num_classes)


@torch.no_grad()
def best_iou(boxes: Tensor, objects: Objects, which: bool = False) -> tuple[Tensor, Tensor]:
    """Best IoU of each prediction with any object of its own image.

    Walks over the objects, each against the predictions of its image only, in blocks: T * M pairs in all
    instead of N * T * M, and never more than ``PAIRS_AT_ONCE`` in memory.

    Args:
        boxes: ``[N, M, 4]`` float32 xyxy, pixels.
        objects: T objects.
        which: Whether the object is wanted, too.

    Returns:
        IoU ``[N, M]`` float32, and the first object that has it ``[N, M]`` int64 (0 if there is none or not
        wanted).
    """
    n, count = boxes.shape[:2]
    total = len(objects.image)
    best = boxes.new_zeros((n, count))
    owner = objects.image.new_full((n, count), total)
    left, top, right, bottom = (edge.contiguous() for edge in boxes.unbind(dim=-1))
    area = (right - left).clamp(min=0) * (bottom - top).clamp(min=0)
    step = max(1, PAIRS_AT_ONCE // max(count, 1))
    blocks = []
    for start in range(0, total, step):
        part = slice(start, start + step)
        image, active = objects.image[part], objects.active[part]
        x1, y1, x2, y2 = objects.boxes[part, :, None].unbind(dim=1)
        wide = (torch.minimum(right[image], x2) - torch.maximum(left[image], x1)).clamp_(min=0)
        high = (torch.minimum(bottom[image], y2) - torch.maximum(top[image], y1)).clamp_(min=0)
        inter = wide.mul_(high)
        iou = inter / (area[image] + (x2 - x1) * (y2 - y1) - inter).clamp_(min=1e-12)
        iou = torch.where(active[:, None], iou, 0.0)
        best.scatter_reduce_(0, image[:, None].expand_as(iou), iou, "amax")
        if which:
            blocks.append((start, image, iou))
    for start, image, iou in blocks:  # a second pass, when the best are known
        order = torch.arange(start, start + len(image), device=image.device)[:, None].expand_as(iou)
        order = torch.where(iou == best[image], order, total)
        owner.scatter_reduce_(0, image[:, None].expand_as(order), order, "amin")
    return best, torch.where(owner < total, owner, 0)
