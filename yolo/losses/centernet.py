"""CenterNet's loss: focal on the heat map, L1 on offset and size (arXiv:1904.07850, sec. 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from yolo.losses.assign import Objects, locate, read_objects
from yolo.losses.base import Criterion
from yolo.models.centernet import STRIDE
from yolo.types import Targets

AT_ONCE = 1 << 24  # values of the Gaussians that exist at a time: 64 MiB


@dataclass(frozen=True)
class CenterNetOptions:
    """The paper's numbers (sec. 3, "Keypoint estimation" and "Objects as points").

    Args:
        alpha: Power of the error in the focal loss.
        beta: Power of the distance to a Gaussian's top: cells near a centre are punished less.
        size_weight: Of the term ``size``.
        offset_weight: Of the term ``offset``.
        min_overlap: IoU that a box keeps with its corners moved by the radius (CornerNet, arXiv:1808.01244, sec. 3.2).
    """

    alpha: float = 2.0
    beta: float = 4.0
    size_weight: float = 0.1
    offset_weight: float = 1.0
    min_overlap: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.min_overlap < 1:
            raise ValueError(f"min_overlap must lie between 0 and 1, got {self.min_overlap}")


class CenterNetLoss(Criterion):
    """Every object is the cell of its centre; around it the map is told to be low the less, the nearer.

    Each term is divided by the number of objects; offset and size are means over x and y, as in the published code.
    A batch without objects has the sum over its map instead, as there. All arithmetic is fp32.

    Args:
        num_classes: C.
        options: See :class:`CenterNetOptions`.
    """

    def __init__(self, num_classes: int, options: CenterNetOptions | None = None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.options = options or CenterNetOptions()

    def forward(
        self, outputs: Sequence[Tensor], targets: Targets, size: tuple[int, int]
    ) -> dict[str, Tensor]:
        """The terms ``heat``, ``offset`` and ``size``, scalar float32.

        Args:
            outputs: Of :class:`yolo.models.CenterNet`.
            targets: Pixels of the network input.
            size: Height and width of the network input, pixels.
        """
        heat, offset, extent = outputs
        if heat.shape[1] != self.num_classes:
            raise ValueError(
                f"the loss was built for {self.num_classes} classes, got heat {tuple(heat.shape)}"
            )
        with torch.autocast(heat.device.type, enabled=False):
            objects = read_objects(targets, size, self.num_classes)
            cell, within = locate(objects, STRIDE, (heat.shape[2], heat.shape[3]))
            wanted = heat_map(objects, cell, tuple(heat.shape), self.options.min_overlap)
            count = objects.active.sum().clamp(min=1)
            at = (objects.image, slice(None), cell[:, 1], cell[:, 0])
            weight = 0.5 * objects.active[:, None] / count
            return {
                "heat": self._focal(heat.float(), wanted) / count,
                "offset": self.options.offset_weight * ((offset[at].float() - within).abs() * weight).sum(),
                "size": self.options.size_weight
                * ((extent[at].float() - objects.size / STRIDE).abs() * weight).sum(),
            }

    def _focal(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """Equation 1, summed."""
        chance = logits.sigmoid()
        top = (1 - chance) ** self.options.alpha * -F.logsigmoid(logits)
        rest = (1 - wanted) ** self.options.beta * chance**self.options.alpha * -F.logsigmoid(-logits)
        return torch.where(wanted == 1, top, rest).sum()


def heat_map(objects: Objects, cell: Tensor, shape: tuple[int, ...], min_overlap: float) -> Tensor:
    """``[N, C, H, W]``: 1 in the cell of each centre, a Gaussian around it, the larger one where two meet.

    Args:
        objects: T objects.
        cell: ``[T, 2]`` column and row of each.
        shape: Of the result.
        min_overlap: See :func:`gaussian_radius`.
    """
    n, classes, height, width = shape
    # sigma of the published code: a third of the radius, and never 0
    sigma = (2 * gaussian_radius(objects.size / STRIDE, min_overlap) + 1) / 6
    plane = objects.image * classes + objects.label
    x, y = (torch.arange(side, device=cell.device) for side in (width, height))
    result = sigma.new_zeros(n * classes, height * width)
    for rows in torch.arange(len(cell), device=cell.device).split(max(1, AT_ONCE // (height * width))):
        scale = -0.5 / sigma[rows, None].square()
        across = (scale * (x - cell[rows, :1]).square()).exp()
        down = (scale * (y - cell[rows, 1:]).square()).exp() * objects.active[rows, None]
        each = (down[:, :, None] * across[:, None]).flatten(1)
        result.scatter_reduce_(0, plane[rows, None].expand_as(each), each, "amax")
    return result.view(n, classes, height, width)


def gaussian_radius(size: Tensor, min_overlap: float) -> Tensor:
    """How far both corners of a box may move, in any direction, for it to keep an IoU of ``min_overlap``.

    The least of three: one corner in and one out (the box moves), both in (it shrinks), both out (it grows). Each
    solves a quadratic for the IoU. (The published code of CornerNet takes other roots: its radius is up to 3.3 times
    this one at 0.7. The paper means this one, at 0.3, which is about as wide.)

    Args:
        size: ``[..., 2]`` width and height.
        min_overlap: Of IoU.

    Returns:
        ``[...]``, in the unit of ``size``.
    """
    total, area, t = size.sum(dim=-1), size.prod(dim=-1), min_overlap
    moved = (total - (total.square() - 4 * area * (1 - t) / (1 + t)).clamp(min=0).sqrt()) / 2
    shrunk = (total - (total.square() - 4 * area * (1 - t)).clamp(min=0).sqrt()) / 4
    grown = ((total.square() + 4 * area * (1 - t) / t).sqrt() - total) / 4
    return torch.minimum(torch.minimum(moved, shrunk), grown)
