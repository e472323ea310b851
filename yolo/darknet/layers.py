"""The layers that only cfg files ask for; the common ones are those of :mod:`yolo.models.layers`.

Every module takes ``[N, C, H, W]`` tensors, one per source, and returns one; a vector is ``[N, C, 1, 1]``.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from yolo.models.layers import LEAKY_SLOPE, NORM_EPS, NORM_MOMENTUM, Local, repeated


class Ramp(nn.Module):
    """``max(x, 0) + x / 10``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0) + 0.1 * x


class Loggy(nn.Module):
    """The logistic stretched to -1 .. 1."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * x.sigmoid() - 1.0


class HardMish(nn.Module):
    """``x / 2 * min(2, max(0, x + 2))``."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (x + 2.0).clamp(0.0, 2.0)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "linear": nn.Identity,
    "leaky": lambda: nn.LeakyReLU(LEAKY_SLOPE, inplace=True),
    "mish": nn.Mish,
    "swish": nn.SiLU,
    "relu": lambda: nn.ReLU(inplace=True),
    "relu6": lambda: nn.ReLU6(inplace=True),
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "hardtan": nn.Hardtanh,
    "ramp": Ramp,
    "loggy": Loggy,
    "hard_mish": HardMish,
}  # activations.h


class Convolutional(nn.Module):
    """``[convolutional]`` in its rarer forms: groups, dilation, no batch norm, other padding or activation.

    Args:
        padding: Pixels on each side, before they grow with the dilation.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int,
        stride: tuple[int, int],
        padding: int,
        act: str,
        *,
        groups: int = 1,
        dilation: int = 1,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels, out_channels, size, stride, padding * dilation, dilation, groups, bias=not normalize
        )
        self.norm = nn.BatchNorm2d(out_channels, NORM_EPS, NORM_MOMENTUM) if normalize else nn.Identity()
        self.act = ACTIVATIONS[act]()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class Connected(nn.Module):
    """``[connected]``: the input in C, H, W order to a vector (``connected_layer.c``)."""

    def __init__(self, inputs: int, outputs: int, act: str, normalize: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=not normalize)
        self.norm = nn.BatchNorm1d(outputs, NORM_EPS, NORM_MOMENTUM) if normalize else nn.Identity()
        self.act = ACTIVATIONS[act]()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.linear(x.flatten(1))))[..., None, None]


class Locally(nn.Module):
    """``[local]`` and its activation."""

    def __init__(self, local: Local, act: str) -> None:
        super().__init__()
        self.local = local
        self.act = ACTIVATIONS[act]()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.local(x))


class PoolUneven(nn.Module):
    """Max-pool with different strides per axis, padding as in :class:`yolo.models.layers.MaxPool`."""

    def __init__(self, size: int, stride: tuple[int, int], padding: int) -> None:
        super().__init__()
        self.size, self.stride, self.padding = size, stride, padding

    def forward(self, x: Tensor) -> Tensor:
        before = self.padding // 2
        after = self.padding - before
        return F.max_pool2d(
            F.pad(x, (before, after, before, after), value=float("-inf")), self.size, self.stride
        )


class Route(nn.Module):
    """``[route]``: the channels of the sources in a row, or of each the same of ``groups`` slices.

    Source: ``route_layer.c``.
    """

    def __init__(self, groups: int = 1, group: int = 0) -> None:
        super().__init__()
        self.groups, self.group = groups, group

    def forward(self, *sources: Tensor) -> Tensor:
        if self.groups > 1:
            sources = tuple(x.chunk(self.groups, dim=1)[self.group] for x in sources)
        return torch.cat(sources, dim=1) if len(sources) > 1 else sources[0]


class Shortcut(nn.Module):
    """``[shortcut]``: ``alpha * x + beta * other`` on the channels that both have, then the activation.

    Maps of different size meet at every n-th pixel of the larger one (``blas.c:shortcut_cpu``); what has no
    partner in ``x`` stays as it is.
    """

    def __init__(self, act: str = "linear", alpha: float = 1.0, beta: float = 1.0) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.act = ACTIVATIONS[act]()

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            x = self._add(x, other)
        return self.act(x)

    def _add(self, x: Tensor, other: Tensor) -> Tensor:
        if x.shape == other.shape and self.alpha == self.beta == 1.0:
            return x + other
        take = max(1, other.shape[-1] // x.shape[-1])
        sow = max(1, x.shape[-1] // other.shape[-1])
        channels = min(x.shape[1], other.shape[1])
        part = other[:, :channels, ::take, ::take]
        met = self.alpha * x[:, :channels, ::sow, ::sow] + self.beta * part
        if sow == 1:
            return torch.cat([met, x[:, channels:]], dim=1) if channels < x.shape[1] else met
        out = x.clone()
        out[:, :channels, ::sow, ::sow] = met
        return out


class ScaleChannels(nn.Module):
    """``[scale_channels]``: the other map times this layer's input, a number per channel or per pixel."""

    def __init__(self, act: str = "linear") -> None:
        super().__init__()
        self.act = ACTIVATIONS[act]()

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.act(other * x)


class AveragePool(nn.Module):
    """``[avgpool]``: the mean of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3), keepdim=True)


class Enlarge(nn.Module):
    """``[upsample]``: every pixel ``stride`` times in both directions, times ``scale``."""

    def __init__(self, stride: int, scale: float = 1.0) -> None:
        super().__init__()
        self.stride, self.scale = stride, scale

    def forward(self, x: Tensor) -> Tensor:
        x = repeated(x, self.stride)
        return x if self.scale == 1.0 else x * self.scale


class ReorgReverse(nn.Module):
    """``[reorg] reverse=1``: undoes Darknet's reorg on the map read as ``[C / s / s, H * s, W * s]``."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        s = self.stride
        blocks = x.reshape(n, s, s, c // (s * s), h, w).permute(0, 3, 4, 1, 5, 2)
        return blocks.reshape(n, c // (s * s), h * s, w * s)


class Extra(nn.Module):
    """``[reorg] extra=n``: the input as a vector and n zeros after it (``reorg_layer.c``)."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x.flatten(1), (0, self.extra))[..., None, None]


class Softmax(nn.Module):
    """``[softmax]`` over ``groups`` equal parts of the vector, logits divided by ``temperature``."""

    def __init__(self, groups: int = 1, temperature: float = 1.0) -> None:
        super().__init__()
        self.groups, self.temperature = groups, temperature

    def forward(self, x: Tensor) -> Tensor:
        parts = x.flatten(1).reshape(x.shape[0], self.groups, -1) / self.temperature
        return parts.softmax(dim=-1).reshape(x.shape)


class Crop(nn.Module):
    """``[crop]`` as at test time: the middle of the picture, 0 .. 1 stretched to -1 .. 1."""

    def __init__(self, height: int, width: int, adjust: bool = True) -> None:
        super().__init__()
        self.height, self.width, self.adjust = height, width, adjust

    def forward(self, x: Tensor) -> Tensor:
        top, left = (x.shape[-2] - self.height) // 2, (x.shape[-1] - self.width) // 2
        x = x[..., top : top + self.height, left : left + self.width]
        return 2.0 * x - 1.0 if self.adjust else x
