"""The backbones of YOLOv1 to v3; each returns the feature maps that its heads read, finest first."""

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from yolo.models.layers import ConvBnAct, MaxPool, Residual


def scaled(channels: int, width: float) -> int:
    """``channels * width`` rounded to a multiple of 8, at least 8; the published number at width 1."""
    if width <= 0:
        raise ValueError(f"width must be above 0, got {width}")
    return channels if width == 1.0 else max(8, 8 * round(channels * width / 8))


def alternating(in_channels: int, channels: Sequence[int], kernel_sizes: Sequence[int]) -> nn.Sequential:
    """Leaky convolutions in a row, with these output channels and kernel sizes."""
    layers = []
    for out_channels, kernel_size in zip(channels, kernel_sizes, strict=True):
        layers.append(ConvBnAct(in_channels, out_channels, kernel_size))
        in_channels = out_channels
    return nn.Sequential(*layers)


class Darknet19(nn.Module):
    """18 convolutions and 5 max-pools (arXiv:1612.08242, table 6); the 19th is the classifier's.

    Returns the maps of stride 16 and 32.
    """

    strides = (16, 32)

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        channels = 3
        for out_channels, count in ((32, 1), (64, 1), (128, 3), (256, 3), (512, 5), (1024, 5)):
            wide, narrow = scaled(out_channels, width), scaled(out_channels // 2, width)
            outs = [narrow if index % 2 else wide for index in range(count)]
            stages.append(alternating(channels, outs, [1 if index % 2 else 3 for index in range(count)]))
            channels = wide
        self.stages = nn.ModuleList(stages)
        self.pool = MaxPool(2, 2)
        self.out_channels = (scaled(512, width), channels)

    def forward(self, images: Tensor) -> list[Tensor]:
        x, maps = images, []
        for index, stage in enumerate(self.stages):
            x = stage(self.pool(x) if index else x)
            maps.append(x)
        return maps[-2:]


class Extraction(nn.Module):
    """The first 20 convolutions of YOLOv1, pretrained as ``extraction.cfg`` (arXiv:1506.02640, sec. 2.1).

    Returns the map of stride 32.
    """

    strides = (32,)

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        stem = ConvBnAct(3, scaled(64, width), 7, stride=2)
        stages: list[nn.Module] = [stem]
        channels = scaled(64, width)
        for outs, first in (
            ((192,), 3),
            ((128, 256, 256, 512), 1),
            ((256, 512, 256, 512, 256, 512, 256, 512, 512, 1024), 1),
            ((512, 1024, 512, 1024), 1),
        ):
            sizes = [first if index % 2 == 0 else 3 for index in range(len(outs))]
            stages.append(alternating(channels, [scaled(out, width) for out in outs], sizes))
            channels = scaled(outs[-1], width)
        self.stages = nn.ModuleList(stages)
        self.pool = MaxPool(2, 2)
        self.out_channels = (channels,)

    def forward(self, images: Tensor) -> list[Tensor]:
        x = images
        for index, stage in enumerate(self.stages):
            x = stage(self.pool(x) if index else x)
        return [x]


class Darknet53(nn.Module):
    """A stem and five stages of residuals (arXiv:1804.02767, table 1).

    Returns the maps of stride 8, 16 and 32.
    """

    strides = (8, 16, 32)

    def __init__(self, width: float = 1.0, depths: Sequence[int] = (1, 2, 8, 8, 4)) -> None:
        super().__init__()
        channels = scaled(32, width)
        self.stem = ConvBnAct(3, channels, 3)
        stages: list[nn.Module] = []
        for index, depth in enumerate(depths):
            wide, narrow = scaled(64 << index, width), scaled(32 << index, width)
            blocks = [Residual(wide, narrow) for _ in range(depth)]
            stages.append(nn.Sequential(ConvBnAct(channels, wide, 3, stride=2), *blocks))
            channels = wide
        self.stages = nn.ModuleList(stages)
        self.out_channels = tuple(scaled(c, width) for c in (256, 512, 1024))

    def forward(self, images: Tensor) -> list[Tensor]:
        x, maps = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[-3:]


class DarknetTiny(nn.Module):
    """Seven convolutions with a max-pool between each two: the tiny v1, v2 and v3.

    Returns the maps of stride 16 and of the end.

    Args:
        width: Scales the channels.
        last_stride: Of the sixth pool: 1 in v2 and v3 (end at stride 32), 2 in v1 (end at stride 64).
    """

    def __init__(self, width: float = 1.0, last_stride: int = 1) -> None:
        super().__init__()
        self.strides = (16, 32 * last_stride)
        sizes = [3, *(scaled(c, width) for c in (16, 32, 64, 128, 256, 512, 1024))]
        self.convs = nn.ModuleList(ConvBnAct(a, b, 3) for a, b in itertools.pairwise(sizes))
        self.pools = nn.ModuleList([*(MaxPool(2, 2) for _ in range(5)), MaxPool(2, last_stride)])
        self.out_channels = (sizes[5], sizes[7])

    def forward(self, images: Tensor) -> list[Tensor]:
        x, maps = self.convs[0](images), []
        for pool, conv in zip(self.pools, self.convs[1:], strict=True):
            x = conv(pool(x))
            maps.append(x)
        return [maps[3], maps[5]]
