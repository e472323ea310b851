"""Anchors live in a config, in a checkpoint and in the head's width: they must say the same."""

from collections.abc import Sequence

from yolo.models.detector import Detector
from yolo.ops.heads import HeadSpec

ROUNDING = 0.01  # pixels


def same_anchors(one: Sequence[HeadSpec], other: Sequence[HeadSpec]) -> bool:
    """Whether every head has the same anchors in the same order: trained outputs then keep their meaning."""
    mine, theirs = ([spec.anchors for spec in specs] for specs in (one, other))
    if [len(anchors) for anchors in mine] != [len(anchors) for anchors in theirs]:
        return False
    sides = zip(
        *([side for head in specs for pair in head for side in pair] for specs in (mine, theirs)), strict=True
    )
    return all(abs(a - b) <= ROUNDING for a, b in sides)


def check_agreement(detector: Detector, other: Sequence[HeadSpec], where: str) -> None:
    """Raise ValueError unless ``detector`` and the weights that it goes on with are for the same anchors.

    Args:
        detector: As the config builds it.
        other: The heads as ``where`` describes them.
        where: The checkpoint, for the message.
    """
    for spec, layer in zip(detector.specs, detector.predictors, strict=True):
        width = layer.weight.shape[0]
        if width != spec.channels:
            raise ValueError(
                f"the head of stride {spec.stride:g} puts out {width} values, its {spec.num_anchors} anchors "
                f"and {spec.num_classes} classes need {spec.channels}"
            )
    if same_anchors(detector.specs, other):
        return
    ours, theirs = (_words(specs) for specs in (detector.specs, other))
    raise ValueError(
        f"{where} was trained with the anchors {theirs} (by stride), the config has {ours}: set "
        f"model.anchors to those of the checkpoint, or start anew with weights= in place of checkpoint="
    )


def _words(specs: Sequence[HeadSpec]) -> str:
    return "; ".join(
        f"{spec.stride:g}: {', '.join(f'{w:g}x{h:g}' for w, h in spec.anchors) or 'none'}" for spec in specs
    )
