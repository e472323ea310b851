"""What the weights are before training."""

import math

import torch
from torch import Tensor, nn

from yolo.models.detector import Detector
from yolo.models.layers import LEAKY_SLOPE, Local, Residual, darknet_layers
from yolo.ops.heads import HeadSpec

PREDICTOR_STD = 0.01
REGION_OBJECTNESS = 0.01
GRID_CONFIDENCE = 0.05
OBJECTS_PER_HEAD = (
    1.5  # what the objectness of a fresh yolo head adds up to on a picture of NOMINAL_SIDE pixels
)
NOMINAL_SIDE = 416


def initialise(module: nn.Module) -> None:
    """He weights for every layer (arXiv:1502.01852, eq. 14), zero biases, neutral batch norms.

    Darknet starts the same way (``convolutional_layer.c``), but its running variance begins at 0, here at 1.
    The last scale of each residual is one over the square root of their number, so that their sum is as large
    as its start: with scale 1 and statistics not yet gathered, YOLOv3 would put out thousands, and its boxes
    would be infinite.
    """
    for layer, norm in darknet_layers(module):
        kernel = layer.weight[0, 0] if isinstance(layer, Local) else layer.weight[0]
        nn.init.normal_(layer.weight, std=math.sqrt(2.0 / (1.0 + LEAKY_SLOPE**2) / kernel.numel()))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
        if norm is not None:
            norm.reset_parameters()
    residuals = [child for child in module.modules() if isinstance(child, Residual)]
    for residual in residuals:
        nn.init.constant_(residual.expand.norm.weight, len(residuals) ** -0.5)


def initialise_detector(detector: Detector) -> None:
    """:func:`initialise`, then small last layers with biases at the prior (arXiv:1708.02002, sec. 4.1).

    Otherwise the empty cells, which are nearly all, swamp the first thousand steps.
    """
    initialise(detector)
    for predictor, spec in zip(detector.predictors, detector.specs, strict=True):
        # a grid head reads a whole picture, thousands of values: its outputs should vary by a tenth, too
        std = 0.1 / math.sqrt(predictor.weight[0].numel()) if spec.kind == "grid" else PREDICTOR_STD
        nn.init.normal_(predictor.weight, std=std)
        assert predictor.bias is not None
        with torch.no_grad():
            predictor.bias.copy_(prior_bias(spec))


def prior_bias(spec: HeadSpec) -> Tensor:
    """Bias of a last layer: every class equally likely, objects rare, boxes in mid-cell of the anchor's size.

    For a region head the objectness is ``REGION_OBJECTNESS``: its squared error stays small whatever the
    number of cells. A yolo head pays a cross-entropy in each of its cells, so there the chance is
    ``OBJECTS_PER_HEAD`` spread over the cells of a usual picture. A grid head is linear; its boxes start in
    mid-cell, a quarter of the picture.

    Returns:
        ``[spec.channels]`` float32, in the layout of :class:`yolo.ops.heads.HeadSpec`.
    """
    classes = torch.full((spec.num_classes,), 1.0 / max(spec.num_classes, 2))
    if spec.kind == "grid":
        cells, boxes = spec.side**2, spec.side**2 * spec.boxes_per_cell
        box = torch.tensor([0.5, 0.5, 0.5, 0.5] if spec.sqrt else [0.5, 0.5, 0.25, 0.25])
        return torch.cat([classes.repeat(cells), torch.full((boxes,), GRID_CONFIDENCE), box.repeat(boxes)])
    if spec.kind == "region":
        objectness = REGION_OBJECTNESS
    else:
        objectness = min(0.01, OBJECTS_PER_HEAD / (spec.num_anchors * (NOMINAL_SIDE / spec.stride) ** 2))
    box = torch.tensor([0.0, 0.0, 0.0, 0.0])
    entry = torch.cat([box, torch.tensor([objectness]).logit(), classes.logit()])
    return entry.repeat(spec.num_anchors)
