"""What AlexeyAB's Darknet calls the gradient of an IoU: only to check which pairs it was taken for.

It is not a gradient (see ``YoloV4Loss``), so it is no target for ours; but once it is known, the deltas in
golden/layers say exactly which prediction learned which object, and with what weight.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Edges(NamedTuple):
    top: float
    bottom: float
    left: float
    right: float


def edges(box: Array) -> Edges:
    x, y, w, h = (float(v) for v in box)
    return Edges(y - h / 2, y + h / 2, x - w / 2, x + w / 2)


def direction(prediction: Array, truth: Array, kind: str) -> Array:
    """dx, dy, dw, dh for boxes x, y, w, h."""
    a, b = edges(prediction), edges(truth)
    width, height = a.right - a.left, a.bottom - a.top
    wide, high = min(a.right, b.right) - max(a.left, b.left), min(a.bottom, b.bottom) - max(a.top, b.top)
    inter = wide * high
    union = width * height + (b.right - b.left) * (b.bottom - b.top) - inter
    d_area = np.array([-width, width, -height, height])
    d_inter = np.array(
        [
            -wide if a.top > b.top else 0,
            wide if a.bottom < b.bottom else 0,
            -high if a.left > b.left else 0,
            high if a.right < b.right else 0,
        ]
    )
    d_union = d_area - d_inter
    touching = wide > 0 and high > 0
    counts = touching or (kind == "iou" and union > 0)  # plain IoU: also boxes apart along one axis
    p = (union * d_inter - inter * d_union) / union**2 if counts else np.zeros(4)
    hull_w, hull_h = max(a.right, b.right) - min(a.left, b.left), max(a.bottom, b.bottom) - min(a.top, b.top)
    hull = hull_w * hull_h
    if kind == "giou":
        d_hull = np.array(
            [
                -hull_w if a.top < b.top else 0,
                hull_w if a.bottom > b.bottom else 0,
                -hull_h if a.left < b.left else 0,
                hull_h if a.right > b.right else 0,
            ]
        )
        p = p + (hull * d_union - union * d_hull) / hull**2
    g = np.array([p[2] + p[3], p[0] + p[1], p[3] - p[2], p[1] - p[0]])
    if kind in ("diou", "ciou"):
        g = g + toward(prediction, truth, a, b, hull_w, hull_h)
    if kind == "ciou":
        w, h, tw, th = (float(v) for v in (*prediction[2:], *truth[2:]))
        turn = math.atan(tw / th) - math.atan(w / h)
        v = 4 / math.pi**2 * turn**2
        alpha = v / (1 - inter / union + v + 1e-6)
        g = g + alpha * 8 / math.pi**2 * turn * np.array([0, 0, h, -w])
    return g


def toward(prediction: Array, truth: Array, a: Edges, b: Edges, hull_w: float, hull_h: float) -> Array:
    """The part of the centres' distance, with Darknet's signs."""
    square, diagonal = float(((prediction[:2] - truth[:2]) ** 2).sum()), hull_w**2 + hull_h**2
    right, left = float(a.right > b.right), float(a.left < b.left)
    bottom, top = float(a.bottom > b.bottom), float(a.top < b.top)
    d_hull = np.array([right - left, bottom - top, 0.5 * (right + left), 0.5 * (bottom + top)])
    hull = np.array([hull_w, hull_h, hull_w, hull_h])
    pull = np.array([*(2 * (truth[:2] - prediction[:2]) * diagonal), 0, 0])
    sign = np.array([-1, -1, 1, 1])
    return (pull + sign * 2 * hull * d_hull * square) / diagonal**2
