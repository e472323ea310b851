"""The input sizes of multi-scale training: one rule for training and for anchors."""

import math


def scaled_sizes(size: tuple[int, int], stride: int, low: float, high: float) -> list[tuple[int, int]]:
    """Multiples of ``stride`` from ``low`` to ``high`` times ``size``, aspect kept as well as that allows.

    Args:
        size: Height and width in pixels.
        stride: Of the coarsest map.
        low: Smallest factor, above 0.
        high: Largest factor.
    """
    if not 0 < low <= high:
        raise ValueError(f"multi-scale needs 0 < low <= high, got {low} and {high}")
    longest = max(size)
    lowest = -(-int(low * longest) // stride) * stride
    highest = int(high * longest) // stride * stride
    lengths = range(min(lowest, longest), max(highest, longest) + 1, stride)
    return [_scaled(size, length / longest, stride) for length in lengths]


def _scaled(size: tuple[int, int], factor: float, stride: int) -> tuple[int, int]:
    """``size`` times ``factor``, each side rounded up to a multiple of ``stride``."""
    height, width = (math.ceil(side * factor / stride - 1e-9) * stride for side in size)
    return height, width
