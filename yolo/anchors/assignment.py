"""Which anchors an object trains, by shape alone: what the losses do before they look at outputs."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from yolo.anchors.sizes import Floats, shape_iou
from yolo.losses.base import Criterion, of_kind
from yolo.losses.modern import ModernLoss
from yolo.losses.v4 import YoloV4Head, YoloV4Loss

Switches = NDArray[np.bool_]

FOUND = 0.5  # IoU that counts as found in mAP50


@dataclass(frozen=True)
class Assignment:
    """The anchor of best shape always answers for an object, in every head that has it; others may, too.

    Args:
        match: Which others: none (``best``: YOLOv2, YOLOv3), those of a shape IoU above ``threshold``
            (``iou``: ``iou_thresh`` of yolov4.cfg), or those with width and height within a factor
            ``threshold`` (``ratio``).
        threshold: See ``match``. With ``best`` it decides nothing but what counts as served.
        every: Darknet looks for the best shape among all anchors of the cfg, also those that no head has
            (yolov4-tiny.cfg); an object whose best anchor is such a one trains nothing.
    """

    match: Literal["best", "iou", "ratio"] = "best"
    threshold: float = FOUND
    every: bool = True

    @classmethod
    def of(cls, loss: Criterion) -> "Assignment":
        """What ``loss`` does."""
        if isinstance(loss, ModernLoss):
            options = loss.options
            if options.match == "best":
                return cls(every=False)
            return cls(
                options.match, options.iou_thresh if options.match == "iou" else options.ratio, every=False
            )
        if isinstance(loss, YoloV4Loss):
            threshold = min(head.options.iou_thresh for head in of_kind(loss.heads, YoloV4Head))
            return cls("iou", threshold) if threshold < 1 else cls()
        return cls()

    def __str__(self) -> str:
        more = {
            "best": "",
            "iou": f" and those of IoU > {self.threshold:g}",
            "ratio": f" and those within x{self.threshold:g}",
        }
        return f"the best anchor{more[self.match]}"

    @property
    def served(self) -> str:
        """What recall means here, in words."""
        return f"sides within x{self.threshold:g}" if self.match == "ratio" else f"IoU > {self.threshold:g}"

    def score(self, wh: Floats, anchors: Floats) -> Floats:
        """How sizes ``[D, 2]`` and anchors ``[A, 2]`` fit, as it is thresholded: ``[D, A]``, 0 to 1."""
        if self.match != "ratio":
            return shape_iou(wh, anchors)
        wide, high = wh[:, None, 0] / anchors[None, :, 0], wh[:, None, 1] / anchors[None, :, 1]
        return np.minimum(np.minimum(wide, 1 / wide), np.minimum(high, 1 / high))

    @property
    def limit(self) -> float:
        """The score above which an object is served."""
        return 1 / self.threshold if self.match == "ratio" else self.threshold

    def answers(self, wh: Floats, anchors: Floats, owned: Switches) -> Switches:
        """Which anchors train on a box of each size.

        Args:
            wh: ``[D, 2]`` pixels.
            anchors: ``[A, 2]`` pixels.
            owned: ``[A]`` whether some head has this anchor.

        Returns:
            ``[D, A]``.
        """
        iou = shape_iou(wh, anchors)
        best = (iou if self.every else np.where(owned, iou, -1.0)).argmax(axis=1)
        chosen = best[:, None] == np.arange(len(anchors))
        if self.match != "best":
            chosen |= self.score(wh, anchors) > self.limit
        return chosen & owned
