"""From a detector and a few words to its loss."""

import dataclasses
from typing import Any

from yolo.losses.base import Criterion, check_options
from yolo.losses.baselines import BaselineLoss
from yolo.losses.centernet import CenterNetLoss, CenterNetOptions
from yolo.losses.modern import ModernLoss
from yolo.losses.v1 import GridLoss
from yolo.losses.v2 import RegionLoss
from yolo.losses.v3 import Yolo3Options, YoloV3Loss
from yolo.losses.v4 import YoloV4Loss
from yolo.models.baseline import Baseline
from yolo.models.centernet import CenterNet
from yolo.models.detector import Detector, Network

VARIANTS = ("darknet", "modern")

# where the published cfg of a network differs from the one that the defaults are of
PUBLISHED: dict[str, dict[str, Any]] = {"yolov4_tiny": {"iou_thresh": 1.0, "max_delta": None}}
UNSAID: dict[str, dict[str, Any]] = {  # what Darknet takes where a cfg is silent (parser.c)
    "grid": {"noobject_scale": 1.0, "coord_scale": 1.0, "rescore": False},
    "region": {"object_scale": 1.0, "thresh": 0.5, "rescore": False, "bias_match": False},
    "yolo3": {"ignore_thresh": 0.5},
    "yolo": {
        "ignore_thresh": 0.5,
        "iou_thresh": 1.0,
        "iou_loss": "mse",
        "iou_normalizer": 0.75,
        "max_delta": None,
    },
}
WITHOUT_EFFECT = (
    "classfix",
    "mask_scale",
)  # of [region]: the one must be 0, the other is of more than 4 coords


def build_loss(detector: Network, variant: str = "modern", **options: Any) -> Criterion:
    """The loss of ``detector``.

    Args:
        detector: Its generation and heads choose the class; what a cfg says of the training of its heads
            (``loss_options``) is obeyed by ``darknet``.
        variant: ``darknet`` for the published loss of the generation (:class:`GridLoss`, :class:`RegionLoss`,
            :class:`YoloV3Loss`, :class:`YoloV4Loss`), ``modern`` for :class:`ModernLoss`; YOLOv1, which has
            no anchors, CenterNet (:class:`CenterNetLoss`) and torchvision's detectors
            (:class:`BaselineLoss`) have the published one in both.
        **options: Of the class's options, by name; they go before those of a cfg. ``heads``, a list with a
            dict of options for each head, goes before all.

    Raises:
        ValueError: An unknown variant or option, or heads that no loss fits.
    """
    if variant not in VARIANTS:
        raise ValueError(f"the loss variant must be {' or '.join(VARIANTS)}, got {variant!r}")
    if isinstance(detector, CenterNet):
        check_options(
            options, [field.name for field in dataclasses.fields(CenterNetOptions)], "CenterNet's loss"
        )
        return CenterNetLoss(detector.num_classes, CenterNetOptions(**options))
    if isinstance(detector, Baseline):
        check_options(options, [], "the loss of torchvision's detectors")
        return BaselineLoss()
    if not isinstance(detector, Detector):
        raise TypeError(f"there is no loss for a {type(detector).__name__}")
    kinds = {spec.kind for spec in detector.specs}
    if len(kinds) != 1:
        raise ValueError(f"one loss needs heads of one kind, got {', '.join(sorted(kinds))}")
    (kind,) = kinds
    if variant == "modern" and kind != "grid":
        return ModernLoss(detector.specs, **options)
    alexey = detector.generation == "v4"
    if kind == "yolo" and not alexey:  # pjreddie's, unless a cfg says what only AlexeyAB's Darknet knows
        known = {field.name for field in dataclasses.fields(Yolo3Options)}
        alexey = any(not known.issuperset(said) for said in detector.loss_options)
    if detector.loss_options:
        silent = UNSAID["yolo3" if kind == "yolo" and not alexey else kind]
        cfg = [{**silent, **_of_cfg(said)} for said in detector.loss_options]
        each = options.pop("heads", None) or [{}] * len(cfg)
        options = {"heads": [{**said, **options, **given} for said, given in zip(cfg, each, strict=True)]}
    elif detector.recipe is not None:
        options = {**PUBLISHED.get(detector.recipe.name, {}), **options}
    if kind == "grid":
        return GridLoss(detector.specs, **options)
    if kind == "region":
        return RegionLoss(detector.specs, **options)
    return YoloV4Loss(detector.specs, **options) if alexey else YoloV3Loss(detector.specs, **options)


def _of_cfg(said: dict[str, Any]) -> dict[str, Any]:
    """The options of one head of a cfg, without those that have no effect."""
    if said.get("classfix", 0):
        raise ValueError(f"classfix={said['classfix']:g} in a [region] is not supported, only 0")
    return {key: value for key, value in said.items() if key not in WITHOUT_EFFECT}
