"""The ``[detection]``, ``[region]`` and ``[yolo]`` sections as head descriptions and loss options."""

import logging
from typing import Any

from yolo.darknet.cfg import Section
from yolo.darknet.keys import SECTIONS
from yolo.ops.heads import HeadSpec

log = logging.getLogger(__name__)

Shape = tuple[int, int, int]  # C, H, W
WORDS = frozenset({"iou_loss", "iou_thresh_kind"})  # loss options that are text
LISTS = frozenset({"counters_per_class"})
MOST_CLASSES = 1_000_000


def head_spec(section: Section, below: Shape, size: tuple[int, int]) -> HeadSpec:
    """The description of a head.

    Args:
        section: Of the head.
        below: Shape that the layer below puts out.
        size: Height and width of the network input.

    Raises:
        ValueError: The cfg contradicts itself, with the number that was needed.
    """
    if section.kind != "yolo" and section.integer("coords", 4 if section.kind == "region" else 1) != 4:
        raise section.fault("needs coords=4, other box forms are not supported", "coords")
    if section.kind == "detection":
        return _grid(section, below, size)
    return _cells(section, below, size)


def _grid(section: Section, below: Shape, size: tuple[int, int]) -> HeadSpec:
    classes = section.integer("classes", 1, 1, MOST_CLASSES)
    boxes, side = section.integer("num", 1, 1, 1000), section.integer("side", 7, 1, 1000)
    if size[0] != size[1]:
        raise section.fault(f"needs a square input, got {size[0]}x{size[1]} (height x width)")
    needed = side * side * (5 * boxes + classes)
    given = below[0] * below[1] * below[2]
    if needed != given:
        raise section.fault(
            f"gets {given} values from the layer before it, "
            f"{side} x {side} cells x ({boxes} boxes x 5 + {classes} classes) = {needed} are needed"
        )
    return HeadSpec(
        "grid",
        classes,
        size[1] / side,
        boxes_per_cell=boxes,
        side=side,
        softmax=section.flag("softmax"),
        sqrt=section.flag("sqrt"),
    )


def _cells(section: Section, below: Shape, size: tuple[int, int]) -> HeadSpec:
    channels, height, width = below
    if size[0] * width != size[1] * height:
        raise section.fault(
            f"has a grid of {height}x{width} over {size[0]}x{size[1]} pixels: strides differ by axis"
        )
    stride = size[1] / width
    count = section.integer("num", 1, 1, 10_000)
    numbers = section.numbers("anchors") if "anchors" in section else []
    if len(numbers) < 2 * count or len(numbers) % 2:
        raise section.fault(
            f"has num={count} and {len(numbers)} anchor numbers, {2 * count} are needed", "anchors"
        )
    if len(numbers) > 2 * count:  # cspx-p7-mish.cfg
        log.warning(
            "%s", section.fault(f"has {len(numbers) // 2} anchors, the first num={count} are used", "anchors")
        )
        numbers = numbers[: 2 * count]
    unit = stride if section.kind == "region" else 1.0  # region anchors are given in cells
    anchors = tuple((w * unit, h * unit) for w, h in zip(numbers[::2], numbers[1::2], strict=True))
    if not all(w > 0 and h > 0 for w, h in anchors):
        raise section.fault("has anchors that are not positive", "anchors")
    mask = tuple(section.integers("mask")) or tuple(range(count))
    if not all(0 <= index < count for index in mask):
        raise section.fault(f"has mask={','.join(map(str, mask))}, beyond its {count} anchors", "mask")
    classes = section.integer("classes", 20, 1, MOST_CLASSES)
    if channels != len(mask) * (5 + classes):
        raise section.fault(
            f"gets {channels} filters from the layer before it, "
            f"{len(mask)} anchors x ({classes} classes + 5) = {len(mask) * (5 + classes)} are needed"
        )
    scale = section.number("scale_x_y", 1.0)
    if scale <= 0:
        raise section.fault(f"has scale_x_y={scale}, a positive number was expected", "scale_x_y")
    return HeadSpec(
        "region" if section.kind == "region" else "yolo",
        classes,
        stride,
        anchors,
        mask,
        xy_scale=scale,
        softmax=section.flag("softmax"),
        squared=section.flag("new_coords"),
    )


def loss_options(section: Section) -> dict[str, Any]:
    """What the cfg says of a head's training: text, numbers and lists of numbers under Darknet's own keys."""
    options: dict[str, Any] = {}
    for key in section.values:
        if key in WORDS:
            options[key] = section.text(key, "")
        elif key in LISTS:
            options[key] = section.numbers(key)
        elif key in SECTIONS[section.kind].loss:
            options[key] = section.number(key, 0.0)
    return options


def generation(sections: list[Section]) -> str:
    """``v1`` to ``v4``, by the kind of the heads and by the keys that only YOLOv4's have."""
    kinds = {section.kind for section in sections}
    if kinds != {"yolo"}:
        return "v2" if "region" in kinds else "v1"
    return "v4" if any("iou_loss" in section or "iou_thresh" in section for section in sections) else "v3"
