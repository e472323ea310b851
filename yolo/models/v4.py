"""YOLOv4 and its tiny form (arXiv:2004.10934; yolov4.cfg, yolov4-tiny.cfg)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from yolo.models.cspdarknet import CspDarknet53, CspDarknetTiny
from yolo.models.darknet import alternating, scaled
from yolo.models.detector import Detector
from yolo.models.layers import ConvBnAct, SpatialPyramid, Upsample
from yolo.models.recipe import PlainAnchors, published
from yolo.models.v3 import TINY_COCO_ANCHORS, TinyHead, yolo_specs
from yolo.ops.heads import Anchors

COCO_ANCHORS: Anchors = (
    *((12.0, 16.0), (19.0, 36.0), (40.0, 28.0)),
    *((36.0, 75.0), (76.0, 55.0), (72.0, 146.0)),
    *((142.0, 110.0), (192.0, 243.0), (459.0, 401.0)),
)


def _five(in_channels: int, channels: int) -> nn.Sequential:
    outs = (channels, 2 * channels, channels, 2 * channels, channels)
    return alternating(in_channels, outs, (1, 3, 1, 3, 1))


class UpStep(nn.Module):
    """The coarser map, twice as large, beside the backbone's, each at ``channels``; five convolutions."""

    def __init__(self, coarse: int, fine: int, channels: int) -> None:
        super().__init__()
        self.lateral = nn.Sequential(ConvBnAct(coarse, channels, 1), Upsample())
        self.squeeze = ConvBnAct(fine, channels, 1)
        self.body = _five(2 * channels, channels)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        lateral = self.lateral(coarse)
        return self.body(torch.cat([self.squeeze(fine), lateral], dim=1))


class DownStep(nn.Module):
    """The finer map, half as large, beside the one of the way up; five convolutions."""

    def __init__(self, fine: int, channels: int) -> None:
        super().__init__()
        self.down = ConvBnAct(fine, channels, 3, stride=2)
        self.body = _five(2 * channels, channels)

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        return self.body(torch.cat([self.down(fine), coarse], dim=1))


class Output(nn.Module):
    """A 3x3 convolution and the predictor."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.expand = ConvBnAct(channels, 2 * channels, 3)
        self.predictor = nn.Conv2d(2 * channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.predictor(self.expand(x))


class PathAggregationHead(nn.Module):
    """Spatial pyramid, then up to stride 8 and down to 32 again (PAN, arXiv:1803.01534, by concatenation).

    Args:
        in_channels: Of the maps of stride 8, 16 and 32.
        out_channels: Of the outputs of stride 8, 16 and 32.
        width: Scales the channels.
    """

    def __init__(self, in_channels: Sequence[int], out_channels: Sequence[int], width: float) -> None:
        super().__init__()
        c128, c256, c512, c1024 = (scaled(c, width) for c in (128, 256, 512, 1024))
        self.pyramid = nn.Sequential(
            *alternating(in_channels[2], (c512, c1024, c512), (1, 3, 1)),
            SpatialPyramid(),
            *alternating(4 * c512, (c512, c1024, c512), (1, 3, 1)),
        )
        self.up16 = UpStep(c512, in_channels[1], c256)
        self.up8 = UpStep(c256, in_channels[0], c128)
        self.output8 = Output(c128, out_channels[0])
        self.down16 = DownStep(c128, c256)
        self.output16 = Output(c256, out_channels[1])
        self.down32 = DownStep(c256, c512)
        self.output32 = Output(c512, out_channels[2])

    @property
    def predictors(self) -> list[nn.Module]:
        return [self.output8.predictor, self.output16.predictor, self.output32.predictor]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        map8, map16, map32 = maps
        top32 = self.pyramid(map32)
        top16 = self.up16(top32, map16)
        x8 = self.up8(top16, map8)
        x16 = self.down16(x8, top16)
        x32 = self.down32(x16, top32)
        return [self.output8(x8), self.output16(x16), self.output32(x32)]


@published
def yolov4(num_classes: int = 80, anchors: PlainAnchors | None = None, width: float = 1.0) -> Detector:
    """``yolov4.cfg``.

    Args:
        num_classes: C.
        anchors: Width and height of each prior, input pixels, small to large; None for ``COCO_ANCHORS``.
        width: Scales the channels.
    """
    masks = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    specs = yolo_specs(num_classes, anchors, COCO_ANCHORS, masks, (8, 16, 32), (1.2, 1.1, 1.05))
    backbone = CspDarknet53(width)
    head = PathAggregationHead(backbone.out_channels, [spec.channels for spec in specs], width)
    return Detector(backbone, head, specs, "v4")


@published
def yolov4_tiny(num_classes: int = 80, anchors: PlainAnchors | None = None, width: float = 1.0) -> Detector:
    """``yolov4-tiny.cfg``; arguments as for :func:`yolov4`, with ``TINY_COCO_ANCHORS``.

    As published, anchor 3 serves both heads and anchor 0 none.
    """
    specs = yolo_specs(
        num_classes, anchors, TINY_COCO_ANCHORS, [(3, 4, 5), (1, 2, 3)], (32, 16), (1.05, 1.05)
    )
    backbone = CspDarknetTiny(width)
    head = TinyHead(*backbone.out_channels, [spec.channels for spec in specs], width)
    return Detector(backbone, head, specs, "v4")
