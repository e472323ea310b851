"""YOLOv2 and its tiny form (arXiv:1612.08242; yolov2.cfg, yolov2-tiny.cfg)."""

import torch
from torch import Tensor, nn

from yolo.models.darknet import Darknet19, DarknetTiny, alternating, scaled
from yolo.models.detector import Detector
from yolo.models.layers import ConvBnAct, Order, Reorg
from yolo.models.recipe import PlainAnchors, published, share_anchors
from yolo.ops.heads import Anchors, HeadSpec

STRIDE = 32


def _pixels(*cells: float) -> Anchors:
    """Published anchors, in cells, as pairs in pixels: exact, since the stride is a power of two."""
    return tuple((w * STRIDE, h * STRIDE) for w, h in zip(cells[::2], cells[1::2], strict=True))


COCO_ANCHORS = _pixels(
    0.57273, 0.677385, 1.87446, 2.06253, 3.33843, 5.47434, 7.88282, 3.52778, 9.77052, 9.16828
)
VOC_ANCHORS = _pixels(1.3221, 1.73145, 3.19275, 4.00944, 5.05587, 8.09892, 9.47112, 4.84053, 11.2364, 10.0071)
TINY_VOC_ANCHORS = _pixels(1.08, 1.19, 3.42, 4.41, 6.63, 11.38, 9.42, 5.11, 16.62, 10.52)


class PassthroughHead(nn.Module):
    """Two convolutions at stride 32, the map of stride 16 folded in beside them, one more, the predictor."""

    def __init__(self, fine: int, coarse: int, out_channels: int, width: float, reorg: Order) -> None:
        super().__init__()
        wide, folded = scaled(1024, width), scaled(64, width)
        self.deep = alternating(coarse, (wide, wide), (3, 3))
        self.squeeze = ConvBnAct(fine, folded, 1)
        self.reorg = Reorg(2, reorg)
        self.merge = ConvBnAct(4 * folded + wide, wide, 3)
        self.predictor = nn.Conv2d(wide, out_channels, 1)

    @property
    def predictors(self) -> list[nn.Module]:
        return [self.predictor]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        fine, coarse = maps
        deep = self.deep(coarse)
        folded = self.reorg(self.squeeze(fine))
        return [self.predictor(self.merge(torch.cat([folded, deep], dim=1)))]


class PlainHead(nn.Module):
    """One 3x3 convolution on the coarsest map, the predictor."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int) -> None:
        super().__init__()
        self.conv = ConvBnAct(in_channels, hidden, 3)
        self.predictor = nn.Conv2d(hidden, out_channels, 1)

    @property
    def predictors(self) -> list[nn.Module]:
        return [self.predictor]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        return [self.predictor(self.conv(maps[-1]))]


def _spec(num_classes: int, anchors: PlainAnchors | None) -> HeadSpec:
    every, (mask,) = share_anchors(anchors, COCO_ANCHORS, [tuple(range(len(COCO_ANCHORS)))], [STRIDE])
    return HeadSpec("region", num_classes, STRIDE, every, mask, softmax=True)


@published
def yolov2(
    num_classes: int = 80, anchors: PlainAnchors | None = None, width: float = 1.0, reorg: Order = "darknet"
) -> Detector:
    """``yolov2.cfg``; with 20 classes and ``VOC_ANCHORS`` also ``yolov2-voc.cfg``.

    Args:
        num_classes: C.
        anchors: Width and height of each prior in pixels of the input; None for ``COCO_ANCHORS``.
        width: Scales the channels.
        reorg: How the finer map is folded in: ``darknet`` for the published weights, or ``space_to_depth``.
    """
    spec = _spec(num_classes, anchors)
    backbone = Darknet19(width)
    return Detector(
        backbone, PassthroughHead(*backbone.out_channels, spec.channels, width, reorg), [spec], "v2"
    )


@published
def yolov2_tiny(
    num_classes: int = 80, anchors: PlainAnchors | None = None, width: float = 1.0, hidden: int = 512
) -> Detector:
    """``yolov2-tiny.cfg``; ``yolov2-tiny-voc.cfg`` has 20 classes, ``TINY_VOC_ANCHORS`` and ``hidden=1024``.

    Args:
        num_classes: C.
        anchors: Width and height of each prior in pixels of the input; None for ``COCO_ANCHORS``.
        width: Scales the channels.
        hidden: Channels of the head's convolution, before scaling.
    """
    spec = _spec(num_classes, anchors)
    backbone = DarknetTiny(width)
    return Detector(
        backbone, PlainHead(backbone.out_channels[-1], scaled(hidden, width), spec.channels), [spec], "v2"
    )
