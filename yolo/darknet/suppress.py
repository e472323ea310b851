"""``nms_kind=greedynms``: the suppression that many cfg files since YOLOv4 ask Darknet for.

Source: ``box.c:diounms_sort`` and ``box_diou`` of AlexeyAB's Darknet.
"""

from typing import Literal, get_args

import numpy as np
import torch

from yolo.darknet.network import CfgDetector
from yolo.models.detector import Detector, Network
from yolo.ops.boxes import iou
from yolo.types import Found

NmsKind = Literal["iou", "distance", "cfg"]


def resolve_kind(kind: NmsKind, detector: Network | None) -> Literal["iou", "distance"]:
    """What ``cfg`` means for a network: what its last head says, as in Darknet; of native ones, YOLOv4's do.

    Args:
        kind: As asked for.
        detector: None for an exported file, which knows no cfg and suppresses by IoU.

    Raises:
        ValueError: There is no such kind, or an exported file cannot do it.
    """
    if kind not in get_args(NmsKind):
        raise ValueError(f"nms_kind must be one of {', '.join(get_args(NmsKind))}, got {kind!r}")
    if detector is None:
        if kind == "distance":
            raise ValueError("nms_kind=distance needs the network itself, an exported file suppresses by IoU")
        return "iou"
    if kind != "cfg":
        return kind
    if isinstance(detector, CfgDetector):
        by_distance = detector.plan.heads[-1].section.text("nms_kind", "default") == "greedynms"
    else:
        by_distance = isinstance(detector, Detector) and detector.generation == "v4"
    return "distance" if by_distance else "iou"


def suppress_by_distance(found: Found, height: int, width: int, threshold: float, keep: int) -> Found:
    """Drop a detection where ``IoU - (d^2 / c^2) ** 0.6`` with a better one of its class exceeds ``threshold``.

    d is the distance of the centres and c the diagonal of the enclosing box, both as fractions of the picture:
    two boxes side by side survive where plain IoU would drop one.

    Args:
        found: Detections of one picture, best first, not suppressed and not clipped.
        height: Of the picture, pixels.
        width: Of the picture, pixels.
        threshold: Of the penalised IoU.
        keep: The best so many are returned.
    """
    boxes = torch.from_numpy(found.boxes.astype(np.float64) / (width, height, width, height))
    kept = np.zeros(len(boxes), np.bool_)
    for label in np.unique(found.labels):
        left = np.flatnonzero(found.labels == label)
        while len(left):
            best, left = left[0], left[1:]
            kept[best] = True
            left = left[(iou(boxes[best], boxes[left], "diou", exponent=0.6) <= threshold).numpy()]
    chosen = np.flatnonzero(kept)[:keep]
    return Found(found.boxes[chosen], found.scores[chosen], found.labels[chosen])
