"""How the raw output of a head is read: the one description that decoding, losses and export share."""

from dataclasses import dataclass
from typing import Literal

Anchors = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class HeadSpec:
    """One detection head.

    Raw outputs ("logits") are

    * ``region`` and ``yolo``: ``[N, A * (5 + C), H, W]``; channel ``a * (5 + C) + e`` with e = tx, ty, tw, th,
      objectness, classes (Darknet ``region_layer.c`` and ``yolo_layer.c``, entry_index);
    * ``grid``: ``[N, S * S * (5 * A + C)]`` = class values, confidences, boxes (``detection_layer.c``).

    Args:
        kind: ``grid`` (v1), ``region`` (v2) or ``yolo`` (v3, v4).
        num_classes: C.
        stride: Pixels of network input per cell.
        all_anchors: Every prior of the model, width and height in pixels of the network input; empty for grid.
        mask: Which of ``all_anchors`` belong to this head.
        boxes_per_cell: A of a grid head; the others have one box per anchor.
        side: S of a grid head.
        xy_scale: ``scale_x_y``: above 1 lets a centre reach the edge of its cell (arXiv:2004.10934, sec. 3.4).
        softmax: Classes by softmax (region, and grid with softmax=1) rather than logistic (grid: linear).
        squared: ``new_coords=1``: the convolution is already logistic and the size is (2 v)^2 * anchor.
        sqrt: Grid only: widths and heights are stored as square roots.
    """

    kind: Literal["grid", "region", "yolo"]
    num_classes: int
    stride: float
    all_anchors: Anchors = ()
    mask: tuple[int, ...] = ()
    boxes_per_cell: int = 0
    side: int = 0
    xy_scale: float = 1.0
    softmax: bool = False
    squared: bool = False
    sqrt: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.num_classes, int) or self.num_classes < 1:
            raise ValueError(
                f"a head needs a whole number of classes, at least one, got {self.num_classes!r}"
            )
        if self.kind == "grid":
            if self.side < 1 or self.boxes_per_cell < 1:
                raise ValueError(
                    f"a grid head needs side and boxes_per_cell, got {self.side} and {self.boxes_per_cell}"
                )
            return
        if not self.mask:
            raise ValueError(f"a {self.kind} head needs at least one anchor, got none")
        if not all(0 <= index < len(self.all_anchors) for index in self.mask):
            raise ValueError(f"mask {self.mask} points outside the {len(self.all_anchors)} anchors")
        if not all(w > 0 and h > 0 for w, h in self.all_anchors):
            raise ValueError(f"anchors must be positive widths and heights in pixels, got {self.all_anchors}")

    @property
    def anchors(self) -> Anchors:
        """The priors of this head, pixels."""
        return tuple(self.all_anchors[index] for index in self.mask)

    @property
    def num_anchors(self) -> int:
        """A: boxes that every cell predicts."""
        return self.boxes_per_cell if self.kind == "grid" else len(self.mask)

    @property
    def channels(self) -> int:
        """Values that the head's last layer must put out: per cell, or in all for a grid head."""
        if self.kind == "grid":
            return self.side * self.side * (5 * self.boxes_per_cell + self.num_classes)
        return self.num_anchors * (5 + self.num_classes)
