"""From coefficients to pixels in the arithmetic of stb_image, the decoder that Darknet is built with.

A JPEG file does not say how to round. libjpeg rounds elsewhere in the inverse transform, in the samples between
those of colour, and in the colours: in one pixel of fifty a channel differs by 1 to 3, more at coloured edges
where colour has half the resolution. That is enough to swap two detections of nearly the same score.
"""

import numpy as np
from numpy.typing import NDArray

from yolo.data.jpeg import ZIGZAG, Coefficients, Plane, read_jpeg

Samples = NDArray[np.int32]
CHUNK = 2048  # blocks that are transformed at a time: they stay in the cache
STRIP = 64  # rows whose colours are computed at a time


def decode_stb(data: bytes) -> NDArray[np.uint8] | None:
    """``[H, W, 3]`` RGB of a plain JPEG file, EXIF not applied; None for any other and for a damaged one."""
    found = read_jpeg(data)
    return None if found is None else pixels(found)


def pixels(picture: Coefficients) -> NDArray[np.uint8]:
    """``[H, W, 3]`` RGB."""
    height, width = picture.height, picture.width
    full = [
        upsample(samples(plane)[: -(-height // plane.down), : -(-width // plane.across)], plane)[
            :height, :width
        ]
        for plane in picture.planes
    ]
    if len(full) == 1:
        return np.repeat(full[0][:, :, None], 3, axis=2)
    out = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, STRIP):
        strip = slice(top, top + STRIP)
        out[strip] = _rgb(*(plane[strip].astype(np.int32) for plane in full))
    return out


def samples(plane: Plane) -> NDArray[np.uint8]:
    """The inverse transform of all blocks: ``[8 * rows, 8 * columns]``."""
    rows, columns, _ = plane.blocks.shape
    flat = plane.blocks.reshape(-1, 64)
    out = np.empty((rows * columns, 8, 8), np.uint8)
    for start in range(0, len(flat), CHUNK):
        part = flat[start : start + CHUNK].T * plane.divisors[:, None]
        natural = np.empty_like(part)
        natural[ZIGZAG] = part
        out[start : start + CHUNK] = inverse(natural.reshape(8, 8, -1)).transpose(2, 0, 1)
    return out.reshape(rows, columns, 8, 8).transpose(0, 2, 1, 3).reshape(rows * 8, columns * 8)


def inverse(blocks: Samples) -> Samples:
    """Coefficients ``[8, 8, N]``, down and across, to samples 0 to 255."""
    columns = _pass(blocks, 512, 10)
    rows = _pass(columns.swapaxes(0, 1), (1 << 16) + (128 << 17), 17)
    return rows.swapaxes(0, 1).clip(0, 255)


def _fixed(number: float) -> int:
    """A constant with 12 bits after the point, cut off after half was added, as in C."""
    return int(number * 4096 + 0.5)


def _pass(s: Samples, bias: int, shift: int) -> Samples:
    """One dimension of the transform of Loeffler, Ligtenberg and Moschytz, ``[8, ...]``, 12-bit constants."""
    p1 = (s[2] + s[6]) * _fixed(0.5411961)
    low, high = p1 + s[6] * _fixed(-1.847759065), p1 + s[2] * _fixed(0.765366865)
    plus, minus = (s[0] + s[4]) * 4096 + bias, (s[0] - s[4]) * 4096 + bias
    even = (plus + high, minus + low, minus - low, plus - high)
    p5 = (s[7] + s[3] + s[5] + s[1]) * _fixed(1.175875602)
    p1, p2 = p5 + (s[7] + s[1]) * _fixed(-0.899976223), p5 + (s[5] + s[3]) * _fixed(-2.562915447)
    p3, p4 = (s[7] + s[3]) * _fixed(-1.961570560), (s[5] + s[1]) * _fixed(-0.390180644)
    odd = (
        s[1] * _fixed(1.501321110) + p1 + p4,
        s[3] * _fixed(3.072711026) + p2 + p3,
        s[5] * _fixed(2.053119869) + p2 + p4,
        s[7] * _fixed(0.298631336) + p1 + p3,
    )
    out = np.empty_like(s)
    for at in range(4):
        np.add(even[at], odd[at], out=out[at])
        np.subtract(even[at], odd[at], out=out[7 - at])
    out >>= shift
    return out


def upsample(small: NDArray[np.uint8], plane: Plane) -> NDArray[np.uint8]:
    """A sample for every pixel: three parts of the nearer one and one of the next, where there are two to one."""
    match plane.down, plane.across:
        case 1, 1:
            return small
        case 2, 1:
            return ((_between_rows(small) + 2) >> 2).astype(np.uint8)
        case 1, 2:
            out = _across(small.astype(np.int32), 2)
            if small.shape[1] > 1:  # in stb_image the last pixel but one leans to the left
                out[:, -2] = _across(small[:, -2:].astype(np.int32), 2)[:, 1]
            return out
        case 2, 2:
            return _across(_between_rows(small), 4)
        case down, across:
            return small.repeat(down, axis=0).repeat(across, axis=1)


def _between_rows(small: NDArray[np.uint8]) -> Samples:
    """``[2 * H, W]``, four times too large: each row, and the one above (even rows) or below it."""
    wide = small.astype(np.int32)
    out = np.repeat(wide * 3, 2, axis=0)
    out[2::2] += wide[:-1]
    out[0] += wide[0]
    out[1:-1:2] += wide[1:]
    out[-1] += wide[-1]
    return out


def _across(rows: Samples, bits: int) -> NDArray[np.uint8]:
    """``[H, 2 * W]``: the same across, then without the last ``bits``; the outermost samples have one neighbour."""
    half, half_outside = 1 << (bits - 1), (1 << (bits - 2)) // 2
    out = np.empty((rows.shape[0], rows.shape[1] * 2), np.uint8)
    out[:, 1:-1:2] = (3 * rows[:, :-1] + rows[:, 1:] + half) >> bits
    out[:, 2::2] = (3 * rows[:, 1:] + rows[:, :-1] + half) >> bits
    out[:, 0] = (rows[:, 0] + half_outside) >> (bits - 2)
    out[:, -1] = (rows[:, -1] + half_outside) >> (bits - 2)
    return out


def _rgb(y: Samples, blue: Samples, red: Samples) -> Samples:
    """YCbCr to RGB in 20-bit fixed point; green takes only the upper half of what blue-difference adds."""
    y = (y << 20) + (1 << 19)
    blue, red = blue - 128, red - 128
    parts = (
        y + red * (_fixed(1.402) << 8),
        y - red * (_fixed(0.71414) << 8) + ((-blue * (_fixed(0.34414) << 8)) & ~0xFFFF),
        y + blue * (_fixed(1.772) << 8),
    )
    return (np.stack(parts, axis=2) >> 20).clip(0, 255)
