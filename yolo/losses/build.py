"""From a detector and a few words to its loss."""

from typing import Any

from yolo.losses.base import DetectionLoss
from yolo.losses.modern import ModernLoss
from yolo.losses.v1 import GridLoss
from yolo.losses.v2 import RegionLoss
from yolo.losses.v3 import YoloV3Loss
from yolo.losses.v4 import YoloV4Loss
from yolo.models.detector import Detector

VARIANTS = ("darknet", "modern")

PUBLISHED: dict[
    str, dict[str, Any]
] = {  # where a published cfg differs from the one that the defaults are of
    "yolov4_tiny": {"iou_thresh": 1.0, "max_delta": None},
}


def build_loss(detector: Detector, variant: str = "modern", **options: Any) -> DetectionLoss:
    """The loss of ``detector``.

    Args:
        detector: Its generation and heads choose the class.
        variant: ``darknet`` for the published loss of the generation (:class:`GridLoss`, :class:`RegionLoss`,
            :class:`YoloV3Loss`, :class:`YoloV4Loss`), ``modern`` for :class:`ModernLoss`; YOLOv1, which has
            no anchors, has the published one in both.
        **options: Of the class's options, by name; ``heads``, a list of one dict of options per head, goes
            first.

    Raises:
        ValueError: An unknown variant or option, or heads that no loss fits.
    """
    if variant not in VARIANTS:
        raise ValueError(f"the loss variant must be {' or '.join(VARIANTS)}, got {variant!r}")
    kinds = {spec.kind for spec in detector.specs}
    if len(kinds) != 1:
        raise ValueError(f"one loss needs heads of one kind, got {', '.join(sorted(kinds))}")
    (kind,) = kinds
    if kind == "grid":
        return GridLoss(detector.specs, **options)
    if variant == "modern":
        return ModernLoss(detector.specs, **options)
    if kind == "region":
        return RegionLoss(detector.specs, **options)
    if detector.generation != "v4":
        return YoloV3Loss(detector.specs, **options)
    published = PUBLISHED.get(detector.recipe.name, {}) if detector.recipe is not None else {}
    return YoloV4Loss(detector.specs, **{**published, **options})
