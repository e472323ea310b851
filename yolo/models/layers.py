"""The building blocks of every network here, each with the arithmetic of the Darknet layer it stands for."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from yolo.models.folded import FOLD, FoldedConv2d
from yolo.models.fused import conv_norm_act
from yolo.ops import max_pool_2x2, pool

NORM_EPS = 1e-5  # Darknet's cuDNN build (convolutional_layer.c)
NORM_MOMENTUM = 0.03  # share of a batch in the running statistics; Darknet's 0.01 lags behind fast learning
LEAKY_SLOPE = 0.1

Activation = Literal["leaky", "mish", "linear"]
Order = Literal["darknet", "space_to_depth"]


def activation(name: Activation) -> nn.Module:
    """The module of an activation; the leaky one works in place, which batch norm's backward allows."""
    match name:
        case "leaky":
            return nn.LeakyReLU(LEAKY_SLOPE, inplace=True)
        case "mish":
            return nn.Mish()  # in place it would copy its input for the backward pass: no gain
        case "linear":
            return nn.Identity()
    raise ValueError(f"an activation is one of leaky, mish and linear, got {name!r}")


class ConvBnAct(nn.Module):
    """Convolution, batch norm, activation: ``[convolutional]`` with ``batch_normalize=1`` and ``pad=1``.

    In training on a GPU, channels last, one operator does all that follows the convolution, in the first block of a
    network the convolution as well, with the parameters of the plain modules.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        act: Activation = "leaky",
    ) -> None:
        super().__init__()
        kind = FoldedConv2d if in_channels < 8 and FOLD % stride == 0 else nn.Conv2d
        self.conv = kind(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, eps=NORM_EPS, momentum=NORM_MOMENTUM)
        self.act = activation(act)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """``[N, C, H, W]``; ``residual`` is added behind the activation."""
        return conv_norm_act(x, self.conv, self.norm, self.act, residual)


class Residual(nn.Module):
    """``x + f(x)``, f = 1x1 to ``hidden`` channels and 3x3 back: Darknet's ``[shortcut]``."""

    def __init__(self, channels: int, hidden: int, act: Activation = "leaky") -> None:
        super().__init__()
        self.reduce = ConvBnAct(channels, hidden, 1, act=act)
        self.expand = ConvBnAct(hidden, channels, 3, act=act)

    def forward(self, x: Tensor) -> Tensor:
        return self.expand(self.reduce(x), residual=x)


class MaxPool(nn.Module):
    """Maximum over windows with Darknet's padding (``maxpool_layer.c``).

    ``padding`` pixels in all, by default ``size - 1``, the smaller half of them left and above; what lies
    outside is never the maximum. So size 2, stride 1 keeps the size and looks right and down, and size 2,
    stride 2 rounds an odd size up.
    """

    def __init__(self, size: int, stride: int, padding: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.stride = stride
        self.padding = size - 1 if padding is None else padding

    def forward(self, x: Tensor) -> Tensor:
        before = self.padding // 2
        after = self.padding - before
        if before == after and before <= self.size // 2:
            return F.max_pool2d(x, self.size, self.stride, before)
        if (self.size, self.stride, self.padding) == (2, 2, 1):
            return max_pool_2x2(x) if pool.fits(x) else F.max_pool2d(x, 2, 2, ceil_mode=True)
        if self.stride == 1 and after == before + 1 and after <= self.size // 2:
            # one row and one column too many at the start: cheaper for every runtime than padding with -inf
            return F.max_pool2d(x, self.size, 1, after)[..., 1:, 1:]
        x = F.pad(x, (before, after, before, after), value=float("-inf"))
        return F.max_pool2d(x, self.size, self.stride)

    def extra_repr(self) -> str:
        return f"size={self.size}, stride={self.stride}, padding={self.padding}"


class SpatialPyramid(nn.Module):
    """Maxima over 13, 9 and 5 pixels beside the input: 4 times the channels (arXiv:2004.10934, sec. 3.4)."""

    def __init__(self, sizes: tuple[int, ...] = (13, 9, 5)) -> None:
        super().__init__()
        self.pools = nn.ModuleList(MaxPool(size, 1) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([*(pool(x) for pool in self.pools), x], dim=1)


def repeated(x: Tensor, times: int) -> Tensor:
    """Every pixel ``times`` times in both directions; of the type of ``x``, under autocast too.

    Autocast would widen half precision to copy pixels, and with them what they are joined to.
    """
    kind = x.device.type
    widened = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    with torch.autocast(kind, enabled=False) if widened else nullcontext():
        return F.interpolate(x, scale_factor=float(times), mode="nearest")


class Upsample(nn.Module):
    """Every pixel twice in both directions."""

    def forward(self, x: Tensor) -> Tensor:
        return repeated(x, 2)


class Reorg(nn.Module):
    """``[N, C, H, W]`` to ``[N, C * s * s, H / s, W / s]`` by moving pixels into channels.

    Args:
        stride: s.
        order: ``space_to_depth`` puts pixel (dy, dx) of each s x s block of channel c into channel
            ``(dy * s + dx) * C + c`` (``reorg3d``). ``darknet`` is what ``[reorg]`` does and the published
            YOLOv2 weights expect: the same move with the memory of the input taken for
            ``[C / s / s, H * s, W * s]`` (``blas.c:reorg_cpu``).
    """

    def __init__(self, stride: int = 2, order: Order = "darknet") -> None:
        super().__init__()
        if order not in ("darknet", "space_to_depth"):
            raise ValueError(f"the order of a reorg is darknet or space_to_depth, got {order!r}")
        self.stride = stride
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        s = self.stride
        if self.order == "darknet":
            blocks = x.reshape(n, c // (s * s), h, s, w, s)
        else:
            blocks = x.reshape(n, c, h // s, s, w // s, s)
        return blocks.permute(0, 3, 5, 1, 2, 4).reshape(n, c * s * s, h // s, w // s)

    def extra_repr(self) -> str:
        return f"stride={self.stride}, order={self.order}"


class Local(nn.Module):
    """A convolution with weights of its own at every position (Darknet's ``[local]``, ``local_layer.c``).

    ``weight`` is ``[positions, out_channels, in_channels * k * k]`` and ``bias`` ``[out_channels, height,
    width]`` of the output, both as they lie in a weights file. (Five axes would make
    ``to(memory_format=channels_last)`` fail.)

    Args:
        size: Height and width of the input, which is the only one it takes.
        padding: Zeros at the start of each axis. With any, the output has ``(size - 1) // stride + 1``
            positions.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: tuple[int, int],
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 1,
    ) -> None:
        super().__init__()
        used = [side - 1 if padding else side - kernel_size for side in size]
        self.size = size
        self.out_size = (used[0] // stride + 1, used[1] // stride + 1)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        positions = self.out_size[0] * self.out_size[1]
        self.weight = nn.Parameter(torch.empty(positions, out_channels, in_channels * kernel_size**2))
        self.bias = nn.Parameter(torch.zeros(out_channels, *self.out_size))
        nn.init.normal_(self.weight, std=(2.0 / (in_channels * kernel_size**2)) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[-2:]) != self.size:
            raise ValueError(f"this local layer takes {self.size} (height, width), got {tuple(x.shape[-2:])}")
        k, s = self.kernel_size, self.stride
        (oh, ow), (h, w) = self.out_size, self.size
        below = max(0, (oh - 1) * s + k - self.padding - h)
        right = max(0, (ow - 1) * s + k - self.padding - w)
        x = F.pad(x, (self.padding, right, self.padding, below))
        windows = [
            x[:, :, dy : dy + (oh - 1) * s + 1 : s, dx : dx + (ow - 1) * s + 1 : s]
            for dy in range(k)
            for dx in range(k)
        ]
        patches = torch.stack(windows, dim=2).reshape(x.shape[0], -1, oh * ow)  # [N, in * k * k, positions]
        out = torch.bmm(patches.permute(2, 0, 1), self.weight.transpose(1, 2))  # [positions, N, out]
        return out.permute(1, 2, 0).reshape(x.shape[0], self.out_channels, oh, ow) + self.bias

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, size={self.size}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}"
        )


Weighted = nn.Conv2d | nn.Linear | Local
Norm = nn.BatchNorm1d | nn.BatchNorm2d


def darknet_layers(module: nn.Module) -> Iterator[tuple[Weighted, Norm | None]]:
    """Every layer with weights and the batch norm in place of its bias, in the order of a weights file."""
    waiting: Weighted | None = None
    for child in module.modules():
        if isinstance(child, nn.Conv2d | nn.Linear | Local):
            if waiting is not None:
                yield waiting, None
            waiting = child
        elif (
            isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d)
            and waiting is not None
            and waiting.bias is None
        ):
            yield waiting, child
            waiting = None
    if waiting is not None:
        yield waiting, None
