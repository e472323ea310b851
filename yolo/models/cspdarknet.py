"""The backbones of YOLOv4: cross-stage partial networks (arXiv:1911.11929), in cfg order."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from yolo.models.darknet import scaled
from yolo.models.layers import ConvBnAct, MaxPool, Residual


class CspStage(nn.Module):
    """Half the channels pass by, the other half run through residuals; a 1x1 convolution joins both.

    Args:
        in_channels: Of the input, which a 3x3 convolution of stride 2 brings to ``channels``.
        channels: Of the output.
        branch: Of each half. The first stage of CSPDarknet-53 gives each all ``channels``.
        hidden: Inside the residuals.
        depth: Residuals.
    """

    def __init__(self, in_channels: int, channels: int, branch: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.down = ConvBnAct(in_channels, channels, 3, stride=2, act="mish")
        self.bypass = ConvBnAct(channels, branch, 1, act="mish")
        self.enter = ConvBnAct(channels, branch, 1, act="mish")
        self.blocks = nn.Sequential(*(Residual(branch, hidden, act="mish") for _ in range(depth)))
        self.leave = ConvBnAct(branch, branch, 1, act="mish")
        self.join = ConvBnAct(2 * branch, channels, 1, act="mish")

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        bypass = self.bypass(x)
        deep = self.leave(self.blocks(self.enter(x)))
        return self.join(torch.cat([deep, bypass], dim=1))


class CspDarknet53(nn.Module):
    """A stem and five cross-stage partial stages with Mish. Returns the maps of stride 8, 16 and 32."""

    strides = (8, 16, 32)

    def __init__(self, width: float = 1.0, depths: Sequence[int] = (1, 2, 8, 8, 4)) -> None:
        super().__init__()
        channels = scaled(32, width)
        self.stem = ConvBnAct(3, channels, 3, act="mish")
        stages = []
        for index, depth in enumerate(depths):
            out, half = scaled(64 << index, width), scaled(32 << index, width)
            branch = half if index else out
            stages.append(CspStage(channels, out, branch, half, depth))
            channels = out
        self.stages = nn.ModuleList(stages)
        self.out_channels = tuple(scaled(c, width) for c in (256, 512, 1024))

    def forward(self, images: Tensor) -> list[Tensor]:
        x, maps = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[-3:]


class CspTinyBlock(nn.Module):
    """Four convolutions, two of them on the second half of the channels (``groups=2, group_id=1``).

    Returns the output, twice as many channels as ``channels``, and the map before the outer concatenation.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.enter = ConvBnAct(in_channels, channels, 3)
        self.first = ConvBnAct(half, half, 3)
        self.second = ConvBnAct(half, half, 3)
        self.join = ConvBnAct(channels, channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enter(x)
        first = self.first(x[:, x.shape[1] // 2 :])
        joined = self.join(torch.cat([self.second(first), first], dim=1))
        return torch.cat([x, joined], dim=1), joined


class CspDarknetTiny(nn.Module):
    """Two strided convolutions, three blocks with max-pools, one more: yolov4-tiny.cfg, layers 0 to 26.

    Returns the maps of stride 16 and 32.
    """

    strides = (16, 32)

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        c32, c64, c128, c256, c512 = (scaled(c, width) for c in (32, 64, 128, 256, 512))
        self.stem = nn.Sequential(ConvBnAct(3, c32, 3, stride=2), ConvBnAct(c32, c64, 3, stride=2))
        self.blocks = nn.ModuleList(
            [CspTinyBlock(c64, c64), CspTinyBlock(2 * c64, c128), CspTinyBlock(2 * c128, c256)]
        )
        self.pool = MaxPool(2, 2)
        self.last = ConvBnAct(2 * c256, c512, 3)
        self.out_channels = (c256, c512)

    def forward(self, images: Tensor) -> list[Tensor]:
        x, fine = self.stem(images), images
        for block in self.blocks:
            x, fine = block(x)
            x = self.pool(x)
        return [fine, self.last(x)]
