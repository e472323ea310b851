"""Another hue, saturation and exposure for every picture of a batch, where the batch lies."""

import torch
from torch import Tensor

from yolo.ops.library import register


def vary_colour(images: Tensor, colours: Tensor) -> Tensor:
    """Turn the hue and multiply saturation and value (Darknet ``image.c:distort_image``).

    Saturation and value stop at their largest: what Darknet lets grow past it, 8 bits cannot hold.

    Args:
        images: ``[N, 3, H, W]`` uint8, RGB.
        colours: ``[N, 3]`` float32: turn of the hue as a part of the circle, factors of saturation and of value.

    Returns:
        Of the shape, type and memory format of ``images``. (0, 1, 1) changes nothing.

    Raises:
        ValueError: Shapes, types or devices do not fit.
    """
    check(images, colours)
    return torch.ops.yolo.vary_colour.default(images, colours.contiguous())


def check(images: Tensor, colours: Tensor) -> None:
    """Refuse what does not fit, with what came and what was wanted."""
    if images.dim() != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8 [N, 3, H, W], got {images.dtype} {list(images.shape)}")
    wanted = (images.shape[0], 3)
    if colours.shape != wanted or colours.dtype != torch.float32:
        raise ValueError(f"colours must be float32 {list(wanted)}, got {colours.dtype} {list(colours.shape)}")
    if colours.device != images.device:
        raise ValueError(f"colours must be on {images.device} like images, got {colours.device}")


def vary_colour_reference(images: Tensor, colours: Tensor) -> Tensor:
    """:func:`vary_colour` in plain PyTorch."""
    check(images, colours)
    turn, by_saturation, by_value = colours.t()[:, :, None, None]
    pixels = images.float()
    r, g, b = pixels.unbind(1)
    high, low = pixels.amax(1), pixels.amin(1)
    span = high - low
    divisor = torch.where(span > 0, span, 1.0)
    green_or_blue = torch.where(g == high, 2 + (b - r) / divisor, 4 + (r - g) / divisor)
    hue = torch.where(r == high, (g - b) / divisor, green_or_blue)
    saturation = (span / torch.where(high > 0, high, 1.0) * by_saturation).clamp(0, 1)
    value = (high * by_value).clamp(0, 255)
    turned, chroma = hue + 6 * turn, value * saturation
    result = torch.empty_like(images)
    for index, n in enumerate((5, 3, 1)):
        k = n + turned
        k = k - 6 * torch.floor(k / 6)
        result[:, index] = torch.round(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return result


def _fake(images: Tensor, colours: Tensor) -> Tensor:
    check(images, colours)
    return torch.empty_like(images)


register(
    "vary_colour",
    "(Tensor images, Tensor colours) -> Tensor",
    vary_colour_reference,
    _fake,
)
