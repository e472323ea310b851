"""Head descriptions as the plain numbers that an operator's schema can carry, and the checks on them."""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from yolo.ops.heads import HeadSpec

KINDS = ("grid", "region", "yolo")
MAX_HEADS, MAX_BOXES = 8, 32  # heads travel to a CUDA kernel as one argument of 4 KiB; csrc/heads.h
INTS = 7  # per head: kind, classes, A, side, softmax, squared, sqrt
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # float64: references only


def pack(specs: tuple[HeadSpec, ...]) -> tuple[list[int], list[float]]:
    """Flatten ``specs``: per head seven integers, and stride, xy_scale and anchors (w, h; pixels)."""
    return _pack(specs) if torch.compiler.is_compiling() else _pack_once(specs)


def _pack(specs: tuple[HeadSpec, ...]) -> tuple[list[int], list[float]]:
    layout: list[int] = []
    numbers: list[float] = []
    for spec in specs:
        layout += [KINDS.index(spec.kind), spec.num_classes, spec.num_anchors, spec.side]
        layout += [int(spec.softmax), int(spec.squared), int(spec.sqrt)]
        numbers += [float(spec.stride), float(spec.xy_scale)]
        numbers += [float(length) for anchor in spec.anchors for length in anchor]
    return layout, numbers


_pack_once = lru_cache(maxsize=64)(_pack)  # torch.compile warns about caches, eager calls want one


def unpack(layout: Sequence[int], numbers: Sequence[float]) -> list[HeadSpec]:
    """Undo :func:`pack`, as far as decoding is concerned."""
    specs: list[HeadSpec] = []
    at = 0
    for head in range(0, len(layout), INTS):
        kind, classes, count, side, softmax, squared, sqrt = layout[head : head + INTS]
        stride, xy_scale = numbers[at : at + 2]
        lengths = numbers[at + 2 : at + 2 + (0 if kind == 0 else 2 * count)]
        at += 2 + len(lengths)
        specs.append(
            HeadSpec(
                kind=KINDS[kind],  # type: ignore[arg-type]
                num_classes=classes,
                stride=stride,
                all_anchors=tuple(zip(lengths[::2], lengths[1::2], strict=True)),
                mask=() if kind == 0 else tuple(range(count)),
                boxes_per_cell=count if kind == 0 else 0,
                side=side,
                xy_scale=xy_scale,
                softmax=bool(softmax),
                squared=bool(squared),
                sqrt=bool(sqrt),
            )
        )
    return specs


def count_boxes(logits: Tensor, spec: HeadSpec) -> int:
    """How many boxes a head predicts in every image."""
    if spec.kind == "grid":
        return spec.side * spec.side * spec.boxes_per_cell
    return spec.num_anchors * logits.shape[2] * logits.shape[3]


def check_limits(score_threshold: float, iou_threshold: float, max_detections: int) -> None:
    """Refuse thresholds and sizes that cannot be meant.

    Raises:
        ValueError: With the number and its range.
    """
    if math.isnan(score_threshold):
        raise ValueError("score_threshold must be a number, got NaN")
    if not 0.0 <= iou_threshold <= 1.0:
        raise ValueError(f"iou_threshold must lie between 0 and 1, got {iou_threshold}")
    if max_detections < 1:
        raise ValueError(f"max_detections must be at least 1, got {max_detections}")


def check_heads(logits: Sequence[Tensor], specs: Sequence[HeadSpec]) -> None:
    """Refuse outputs that do not fit their descriptions, before anything is computed.

    Raises:
        ValueError: With the head, what came and what was wanted.
    """
    if len(logits) != len(specs) or not specs:
        raise ValueError(
            f"got {len(logits)} head outputs for {len(specs)} head descriptions; they come in pairs"
        )
    if len(specs) > MAX_HEADS:
        raise ValueError(f"at most {MAX_HEADS} heads are decoded together, got {len(specs)}")
    first = logits[0]
    for index, (x, spec) in enumerate(zip(logits, specs, strict=True)):
        channels = spec.channels
        if x.dim() != (2 if spec.kind == "grid" else 4) or x.shape[1] != channels:
            wanted = f"[N, {channels}]" if spec.kind == "grid" else f"[N, {channels}, H, W]"
            raise ValueError(
                f"head {index} ({spec.kind}, {spec.num_anchors} boxes a cell, {spec.num_classes} classes) "
                f"must put out {wanted}, got {list(x.shape)}"
            )
        if spec.num_anchors > MAX_BOXES:
            raise ValueError(
                f"head {index} may predict at most {MAX_BOXES} boxes a cell, got {spec.num_anchors}"
            )
        if x.dtype not in DTYPES or x.dtype != first.dtype:
            raise ValueError(f"head {index} must be float16, bfloat16 or float32 like head 0, got {x.dtype}")
        if x.device != first.device:
            raise ValueError(f"head {index} must be on {first.device} like head 0, got {x.device}")
        if x.shape[0] != first.shape[0]:
            raise ValueError(f"head {index} must hold {first.shape[0]} images like head 0, got {x.shape[0]}")
        if spec.num_classes != specs[0].num_classes:
            raise ValueError(
                f"head {index} must have {specs[0].num_classes} classes like head 0, got {spec.num_classes}"
            )
