"""The first convolution of a network, eight pixels at once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from yolo.ops.library import computed_type

FOLD = 8  # pixels: with fewer the channels of a fold are not a multiple of eight, with more most products are zeros


class FoldedConv2d(nn.Conv2d):
    """A convolution of few channels that trains faster on a GPU; in everything else :class:`torch.nn.Conv2d`.

    For pictures and sizes that the operator of the first block (:mod:`yolo.ops.stem`) does not take.

    Matrix units take eight channels at a time, and cuDNN has slow kernels for three. Pixels of a row lie one after the
    other, so the same memory is also a picture an eighth as wide of eight times as many channels, and the same sums of
    products are a convolution of that, whose weights repeat the given ones and are zero in between. On an H200, 64
    pictures of 640 pixels, 3 to 32 channels, fp16: forward 1.6 to 1.4 ms, gradient of the weights 2.2 to 1.4 ms.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]``."""
        return folded(x, self) if self.training and self._pays(x) else super().forward(x)

    def _pays(self, x: Tensor) -> bool:
        return (
            x.is_cuda
            and computed_type(x) in (torch.float16, torch.bfloat16)
            and x.shape[3] % FOLD == 0
            and x.is_contiguous(memory_format=torch.channels_last)
            and not torch.compiler.is_compiling()
        )


def folded(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """``conv(x)`` by a convolution of folds.

    Args:
        x: ``[N, C, H, W]`` with W a multiple of :data:`FOLD`, and FOLD one of the stride; best channels last.
        conv: Square, half its size in padding, without bias, groups and dilation.

    Returns:
        Channels last.
    """
    n, c, h, w = x.shape
    stride, padding = conv.stride[0], conv.kernel_size[0] // 2
    folds = x.permute(0, 2, 3, 1).reshape(n, h, w // FOLD, FOLD * c).permute(0, 3, 1, 2)
    y = F.conv2d(folds, spread(conv.weight, stride), None, (stride, 1), (padding, 1))
    y = y.permute(0, 2, 3, 1).reshape(n, y.shape[2], w // stride, conv.out_channels)
    return y.permute(0, 3, 1, 2)


def spread(weight: Tensor, stride: int) -> Tensor:
    """Weights of the convolution of folds.

    Args:
        weight: ``[O, C, k, k]`` with k odd.

    Returns:
        ``[J O, FOLD C, k, 3]`` for the J = FOLD / stride outputs of a fold, from its own inputs and its neighbours'.
    """
    k = weight.shape[3]
    # Output j reads k inputs from j stride - k // 2 on. One row of zeros with the weights in it holds that for
    # every j: seen through windows of three folds, from the last j to the first.
    wide = F.pad(weight, (2 * FOLD - stride - k // 2, 2 * FOLD + k // 2 - k))
    windows = wide.unfold(3, 3 * FOLD, stride).flip(3)  # [O, C, k, J, 3 FOLD]
    parts = windows.unflatten(4, (3, FOLD))
    return parts.permute(3, 0, 5, 1, 2, 4).reshape(-1, FOLD * weight.shape[1], k, 3)
