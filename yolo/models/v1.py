"""YOLOv1 and its tiny form (arXiv:1506.02640; yolov1.cfg, yolov1-tiny.cfg): one input size only."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from yolo.models.darknet import DarknetTiny, Extraction, alternating, scaled
from yolo.models.detector import Detector
from yolo.models.layers import ConvBnAct, Local, activation
from yolo.models.recipe import published
from yolo.ops.heads import HeadSpec

STRIDE = 64


class LocalHead(nn.Module):
    """Four convolutions, a locally connected layer at stride 64, dropout, a linear layer over everything."""

    def __init__(self, in_channels: int, side: int, out_features: int, width: float, dropout: float) -> None:
        super().__init__()
        wide, narrow = scaled(1024, width), scaled(256, width)
        self.convs = nn.Sequential(
            ConvBnAct(in_channels, wide, 3),
            ConvBnAct(wide, wide, 3, stride=2),
            *alternating(wide, (wide, wide), (3, 3)),
        )
        self.local = Local(wide, narrow, (side, side), kernel_size=3, padding=1)
        self.act = activation("leaky")
        self.dropout = nn.Dropout(dropout)
        self.predictor = nn.Linear(narrow * side * side, out_features)

    @property
    def predictors(self) -> list[nn.Module]:
        return [self.predictor]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        x = self.act(self.local(self.convs(maps[-1])))
        return [self.predictor(torch.flatten(self.dropout(x), 1))]


class LinearHead(nn.Module):
    """One convolution, one linear layer over everything (yolov1-tiny.cfg)."""

    def __init__(self, in_channels: int, side: int, out_features: int, width: float) -> None:
        super().__init__()
        narrow = scaled(256, width)
        self.conv = ConvBnAct(in_channels, narrow, 3)
        self.predictor = nn.Linear(narrow * side * side, out_features)

    @property
    def predictors(self) -> list[nn.Module]:
        return [self.predictor]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        return [self.predictor(torch.flatten(self.conv(maps[-1]), 1))]


def _side(image_size: int | Sequence[int]) -> int:
    """S, the cells along one axis, of an input of ``image_size`` pixels."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    if height != width:
        raise ValueError(
            f"YOLOv1 has as many rows as columns of cells, so its input is square, got {height}x{width}"
        )
    if height < STRIDE or height % STRIDE:
        raise ValueError(
            f"the image_size of YOLOv1 must be a multiple of {STRIDE} pixels, got {height}x{width}"
        )
    return height // STRIDE


def _spec(num_classes: int, boxes_per_cell: int, side: int) -> HeadSpec:
    return HeadSpec("grid", num_classes, STRIDE, boxes_per_cell=boxes_per_cell, side=side)


@published
def yolov1(
    num_classes: int = 20,
    width: float = 1.0,
    image_size: int | Sequence[int] = 448,
    boxes_per_cell: int = 3,
    dropout: float = 0.5,
) -> Detector:
    """``yolov1.cfg``: a local layer and one linear one, where the paper had two linear ones.

    Args:
        num_classes: C.
        width: Scales the channels.
        image_size: Height and width of the input, pixels: equal, multiples of 64, the only size it takes.
        boxes_per_cell: B of the paper, which has 2.
        dropout: Share of the local layer's output that a training step leaves out.
    """
    side = _side(image_size)
    spec = _spec(num_classes, boxes_per_cell, side)
    backbone = Extraction(width)
    head = LocalHead(backbone.out_channels[-1], side, spec.channels, width, dropout)
    return Detector(backbone, head, [spec], "v1", (side * STRIDE, side * STRIDE))


@published
def yolov1_tiny(
    num_classes: int = 20, width: float = 1.0, image_size: int | Sequence[int] = 448, boxes_per_cell: int = 2
) -> Detector:
    """``yolov1-tiny.cfg``; arguments as for :func:`yolov1`."""
    side = _side(image_size)
    spec = _spec(num_classes, boxes_per_cell, side)
    backbone = DarknetTiny(width, last_stride=2)
    head = LinearHead(backbone.out_channels[-1], side, spec.channels, width)
    return Detector(backbone, head, [spec], "v1", (side * STRIDE, side * STRIDE))
