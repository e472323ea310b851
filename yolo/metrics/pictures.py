"""What the evaluator keeps of one picture: its truth and what was found in it, checked once on the way in."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from yolo.types import Found, Record, Truth


@dataclass(frozen=True, eq=False)  # by identity: torchmetrics hashes its states, arrays have no hash
class Picture:
    """One picture of an evaluation; boxes are x1, y1, x2, y2 in pixels of the picture."""

    image_id: str
    path: str
    coco_id: int | None
    truth: Truth
    boxes: NDArray[np.float64]  # [K, 4], best score first
    scores: NDArray[np.float64]  # [K]
    labels: NDArray[np.int64]  # [K]
    dropped: int  # detections with a coordinate or score that is not a finite number

    @property
    def key(self) -> tuple[bool, int, str]:
        """Where the picture stands in the evaluation: COCO's ids count as numbers, as in pycocotools."""
        return (self.coco_id is None, self.coco_id or 0, self.image_id)


def picture(found: Found, record: Record, num_classes: int, score_threshold: float) -> Picture:
    """Check what was found in a picture against its record and keep what scores above the threshold.

    Args:
        found: K detections; empty arrays may have any shape.
        record: The picture and its objects.
        num_classes: C; labels are 0 to C - 1.
        score_threshold: Only scores strictly above it take part.

    Raises:
        ValueError: Arrays of one picture differ in length, or a label is outside the class list.
    """
    boxes = np.asarray(found.boxes, np.float64).reshape(-1, 4)
    scores = np.asarray(found.scores, np.float64).reshape(-1)
    labels = np.asarray(found.labels, np.int64).reshape(-1)
    if not len(boxes) == len(scores) == len(labels):
        raise ValueError(
            f"{record.path}: a picture needs as many boxes as scores and labels, "
            f"got {len(boxes)}, {len(scores)} and {len(labels)}"
        )
    for what, values in (("detection", labels), ("object", np.asarray(record.truth.labels).reshape(-1))):
        if len(values) and not 0 <= values.min() <= values.max() < num_classes:
            wrong = values[(values < 0) | (values >= num_classes)][0]
            raise ValueError(f"{record.path}: a {what} has class {wrong}, classes are 0 to {num_classes - 1}")
    finite = np.isfinite(boxes).all(1) & np.isfinite(scores)
    chosen = np.flatnonzero(finite & (scores > score_threshold))
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
    return Picture(
        record.image_id,
        record.path,
        record.coco_id,
        record.truth,
        boxes[chosen],
        scores[chosen],
        labels[chosen],
        int(len(finite) - finite.sum()),
    )


def distinct(pictures: Iterable[Picture]) -> list[Picture]:
    """The pictures in their one order, each once: samplers pad the last batch of a rank with copies.

    Raises:
        ValueError: Two different files have the same id.
    """
    seen: dict[str, Picture] = {}
    for one in pictures:
        first = seen.setdefault(one.image_id, one)
        if first.path != one.path:
            raise ValueError(f"two pictures have the id {one.image_id!r}: {first.path} and {one.path}")
    return sorted(seen.values(), key=lambda one: one.key)
