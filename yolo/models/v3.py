"""YOLOv3, also with a spatial pyramid, and its tiny form (arXiv:1804.02767)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from yolo.models.darknet import Darknet53, DarknetTiny, alternating, scaled
from yolo.models.detector import Detector
from yolo.models.layers import ConvBnAct, SpatialPyramid, Upsample
from yolo.models.recipe import PlainAnchors, published, share_anchors
from yolo.ops.heads import Anchors, HeadSpec

COCO_ANCHORS: Anchors = (
    *((10.0, 13.0), (16.0, 30.0), (33.0, 23.0)),
    *((30.0, 61.0), (62.0, 45.0), (59.0, 119.0)),
    *((116.0, 90.0), (156.0, 198.0), (373.0, 326.0)),
)
TINY_COCO_ANCHORS: Anchors = (
    *((10.0, 14.0), (23.0, 27.0), (37.0, 58.0)),
    *((81.0, 82.0), (135.0, 169.0), (344.0, 319.0)),
)


def yolo_specs(
    num_classes: int,
    given: PlainAnchors | None,
    default: Anchors,
    masks: Sequence[tuple[int, ...]],
    strides: Sequence[int],
    xy_scales: Sequence[float],
) -> list[HeadSpec]:
    """One ``yolo`` head per stride, in cfg order (:func:`yolo.models.recipe.share_anchors`)."""
    anchors, shares = share_anchors(given, default, masks, strides)
    return [
        HeadSpec("yolo", num_classes, stride, anchors, mask, xy_scale=xy_scale)
        for stride, mask, xy_scale in zip(strides, shares, xy_scales, strict=True)
    ]


class Level(nn.Module):
    """One scale of YOLOv3: what comes from the coarser one, five convolutions, and the predictor's two."""

    def __init__(
        self, in_channels: int, above: int | None, channels: int, out_channels: int, pyramid: bool
    ) -> None:
        super().__init__()
        self.lateral = None if above is None else nn.Sequential(ConvBnAct(above, channels, 1), Upsample())
        if above is not None:
            in_channels += channels
        if pyramid:
            start = alternating(in_channels, (channels, 2 * channels, channels), (1, 3, 1))
            end = alternating(4 * channels, (channels, 2 * channels, channels), (1, 3, 1))
            self.body = nn.Sequential(*start, SpatialPyramid(), *end)
        else:
            outs = (channels, 2 * channels, channels, 2 * channels, channels)
            self.body = alternating(in_channels, outs, (1, 3, 1, 3, 1))
        self.expand = ConvBnAct(channels, 2 * channels, 3)
        self.predictor = nn.Conv2d(2 * channels, out_channels, 1)

    def forward(self, x: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """The map that the next, finer level reads, and the output."""
        if self.lateral is not None:
            x = torch.cat([self.lateral(above), x], dim=1)
        x = self.body(x)
        return x, self.predictor(self.expand(x))


class PyramidHead(nn.Module):
    """Three levels from coarse to fine, each adding what the coarser one saw (FPN by concatenation).

    Args:
        in_channels: Of the maps of stride 8, 16 and 32.
        out_channels: Of the outputs of stride 32, 16 and 8.
        width: Scales the channels.
        pyramid: A spatial pyramid in the coarsest level (yolov3-spp.cfg).
    """

    def __init__(
        self, in_channels: Sequence[int], out_channels: Sequence[int], width: float, pyramid: bool
    ) -> None:
        super().__init__()
        above: int | None = None
        levels = []
        for index, (enter, leave) in enumerate(zip(reversed(in_channels), out_channels, strict=True)):
            channels = scaled(512 >> index, width)
            levels.append(Level(enter, above, channels, leave, pyramid and index == 0))
            above = channels
        self.levels = nn.ModuleList(levels)

    @property
    def predictors(self) -> list[nn.Module]:
        return [level.predictor for level in self.levels if isinstance(level, Level)]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        above, outputs = None, []
        for level, x in zip(self.levels, reversed(maps), strict=True):
            above, output = level(x, above)
            outputs.append(output)
        return outputs


class TinyHead(nn.Module):
    """Stride 32, then stride 16 with what the former saw: yolov3-tiny.cfg and yolov4-tiny.cfg."""

    def __init__(self, fine: int, coarse: int, out_channels: Sequence[int], width: float) -> None:
        super().__init__()
        c128, c256, c512 = (scaled(c, width) for c in (128, 256, 512))
        self.squeeze = ConvBnAct(coarse, c256, 1)
        self.coarse = ConvBnAct(c256, c512, 3)
        self.coarse_predictor = nn.Conv2d(c512, out_channels[0], 1)
        self.lateral = nn.Sequential(ConvBnAct(c256, c128, 1), Upsample())
        self.fine = ConvBnAct(c128 + fine, c256, 3)
        self.fine_predictor = nn.Conv2d(c256, out_channels[1], 1)

    @property
    def predictors(self) -> list[nn.Module]:
        return [self.coarse_predictor, self.fine_predictor]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        fine, coarse = maps
        x = self.squeeze(coarse)
        merged = torch.cat([self.lateral(x), fine], dim=1)
        return [self.coarse_predictor(self.coarse(x)), self.fine_predictor(self.fine(merged))]


def _yolov3(
    num_classes: int, anchors: PlainAnchors | None, width: float, xy_scale: float, pyramid: bool
) -> Detector:
    masks = [(6, 7, 8), (3, 4, 5), (0, 1, 2)]
    specs = yolo_specs(num_classes, anchors, COCO_ANCHORS, masks, (32, 16, 8), (xy_scale,) * 3)
    backbone = Darknet53(width)
    head = PyramidHead(backbone.out_channels, [spec.channels for spec in specs], width, pyramid)
    return Detector(backbone, head, specs, "v3")


@published
def yolov3(
    num_classes: int = 80, anchors: PlainAnchors | None = None, width: float = 1.0, xy_scale: float = 1.0
) -> Detector:
    """``yolov3.cfg``; with 20 classes also ``yolov3-voc.cfg``.

    Args:
        num_classes: C.
        anchors: Width and height of each prior, input pixels, small to large; None for ``COCO_ANCHORS``.
        width: Scales the channels.
        xy_scale: ``scale_x_y`` of the heads: with 2 a cell also predicts centres in the nearer half of the
            cells beside it.
    """
    return _yolov3(num_classes, anchors, width, xy_scale, pyramid=False)


@published
def yolov3_spp(
    num_classes: int = 80, anchors: PlainAnchors | None = None, width: float = 1.0, xy_scale: float = 1.0
) -> Detector:
    """``yolov3-spp.cfg``: :func:`yolov3` with maxima over 5, 9 and 13 cells before the coarsest output."""
    return _yolov3(num_classes, anchors, width, xy_scale, pyramid=True)


@published
def yolov3_tiny(
    num_classes: int = 80, anchors: PlainAnchors | None = None, width: float = 1.0, xy_scale: float = 1.0
) -> Detector:
    """``yolov3-tiny.cfg``; arguments as for :func:`yolov3`, with ``TINY_COCO_ANCHORS``."""
    masks = [(3, 4, 5), (0, 1, 2)]
    specs = yolo_specs(num_classes, anchors, TINY_COCO_ANCHORS, masks, (32, 16), (xy_scale,) * 2)
    backbone = DarknetTiny(width)
    head = TinyHead(*backbone.out_channels, [spec.channels for spec in specs], width)
    return Detector(backbone, head, specs, "v3")
