"""Heat maps to boxes: peaks are objects (CenterNet, arXiv:1904.07850, sec. 4, "From points to bounding boxes")."""

import torch
import torch.nn.functional as F
from torch import Tensor

from yolo.types import Detections


def decode_peaks(
    heat: Tensor, offset: Tensor, size: Tensor, stride: int, score_threshold: float, max_detections: int
) -> Detections:
    """The ``max_detections`` best cells that no neighbour of theirs exceeds.

    Without suppression: an object is one peak. Shapes do not depend on values; arithmetic is float32.

    Args:
        heat: ``[N, C, H, W]`` logits.
        offset: ``[N, 2, H, W]``, of the centre within its cell, x and y, in cells.
        size: ``[N, 2, H, W]``, width and height in cells.
        stride: Pixels a cell.
        score_threshold: A peak scores strictly more.
        max_detections: K.
    """
    heat = heat.float()  # compared as logits: a logistic rounds neighbours to the same 1.0
    height, width = heat.shape[-2:]
    peak = heat == F.max_pool2d(heat, 3, stride=1, padding=1)
    flat = heat.masked_fill(~peak, -torch.inf).flatten(1)
    best, index = flat.topk(min(max_detections, flat.shape[1]), dim=1)
    label, cell = index // (height * width), index % (height * width)

    values = torch.cat((offset, size), dim=1).float().flatten(2)  # [N, 4, H * W]
    at = values.gather(2, cell[:, None].expand(-1, 4, -1)).transpose(1, 2)  # [N, K, 4]
    corner = torch.stack((cell % width, cell // width), dim=-1)
    centre, half = corner + at[..., :2], 0.5 * at[..., 2:].clamp(min=0)
    boxes = torch.cat((centre - half, centre + half), dim=-1) * stride

    scores = best.sigmoid()
    kept = (scores > score_threshold) & boxes.isfinite().all(dim=-1)
    order = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True)  # what is kept first, by score
    spare = (0, max_detections - order.shape[1])
    kept = kept.gather(1, order)
    rows = torch.where(kept[..., None], boxes.gather(1, order[..., None].expand(-1, -1, 4)), 0.0)
    return Detections(
        F.pad(rows, (0, 0, *spare)),
        F.pad(torch.where(kept, scores.gather(1, order), 0.0), spare),
        F.pad(torch.where(kept, label.gather(1, order), 0), spare),
        kept.sum(dim=1),
    )
