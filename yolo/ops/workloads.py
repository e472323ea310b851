"""What the operators are measured on: YOLOv3's heads with ordinary, dense and evaluation scenes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from yolo.ops.heads import Anchors, HeadSpec

COCO_ANCHORS: Anchors = (
    (10.0, 13.0),
    (16.0, 30.0),
    (33.0, 23.0),
    (30.0, 61.0),
    (62.0, 45.0),
    (59.0, 119.0),
    (116.0, 90.0),
    (156.0, 198.0),
    (373.0, 326.0),
)
CLASSES = 80
IOU_THRESHOLD = 0.45
MAX_DETECTIONS = 300


@dataclass(frozen=True)
class Scene:
    """Head outputs of a known kind."""

    name: str
    specs: tuple[HeadSpec, ...]
    logits: list[Tensor]
    score_threshold: float
    multi_label: bool

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of :func:`yolo.ops.detect`."""
        return {
            "score_threshold": self.score_threshold,
            "iou_threshold": IOU_THRESHOLD,
            "max_detections": MAX_DETECTIONS,
            "multi_label": self.multi_label,
            "class_agnostic": False,
        }


def yolov3_specs() -> tuple[HeadSpec, ...]:
    """The three heads of YOLOv3 for COCO."""
    masks = ((32.0, (6, 7, 8)), (16.0, (3, 4, 5)), (8.0, (0, 1, 2)))
    return tuple(HeadSpec("yolo", CLASSES, stride, COCO_ANCHORS, mask) for stride, mask in masks)


def random_logits(specs: Sequence[HeadSpec], images: int, size: int, device: str) -> list[Tensor]:
    """Standard normal head outputs for square pictures, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    sides = [int(size / spec.stride) for spec in specs]
    return [
        torch.randn(images, spec.channels, side, side, generator=generator).to(device)
        for spec, side in zip(specs, sides, strict=True)
    ]


def scenes(device: str) -> Iterator[Scene]:
    """Ordinary, dense and evaluation scenes for one picture and a batch."""
    specs = yolov3_specs()
    dtype = torch.float16 if device == "cuda" else torch.float32
    for images in (1, 32) if device == "cuda" else (1, 4):
        logits = [x.to(dtype) for x in ordinary_logits(specs, images, device)]
        yield Scene(f"detect YOLOv3 416, ordinary, batch {images}", specs, logits, 0.25, False)
        last = [x.to(memory_format=torch.channels_last) for x in logits]
        yield Scene(f"detect YOLOv3 416, channels last, batch {images}", specs, last, 0.25, False)
        yield dense_scene(images, device)
    images = images if device == "cuda" else 1
    logits = [(x - 2.5).to(dtype) for x in random_logits(specs, images, 416, device)]
    yield Scene(f"detect YOLOv3 416, evaluation, batch {images}", specs, logits, 0.001, True)
    if device == "cuda":
        dense = dense_scene(images, device)
        yield Scene(f"detect dense, evaluation, batch {images}", dense.specs, dense.logits, 0.001, True)


def ordinary_logits(specs: Sequence[HeadSpec], images: int, device: str) -> list[Tensor]:
    """About 200 candidates a picture: 2 % of the cells see something, and are sure of one class."""
    logits = random_logits(specs, images, 416, device)
    generator = torch.Generator().manual_seed(1)
    for x, spec in zip(logits, specs, strict=True):
        view = x.view(images, spec.num_anchors, 5 + spec.num_classes, *x.shape[2:])
        seen = torch.rand(view[:, :, 4].shape, generator=generator).to(device) < 0.02
        view[:, :, 4] += torch.where(seen, 5.0, -5.0)
        view[:, :, 5:] -= 3.0
        label = torch.randint(spec.num_classes, seen.shape, generator=generator).to(device)
        view[:, :, 5:].scatter_add_(2, label[:, :, None], torch.full_like(view[:, :, :1], 6.0))
    return logits


def dense_scene(images: int, device: str) -> Scene:
    """8,400 predictions at 640 pixels, about 7,900 of them above 0.25.

    Class scores are uniform numbers to the 40th power; boxes, 8 to 88 pixels wide and high, lie anywhere in
    their cells.
    """
    specs = tuple(HeadSpec("yolo", CLASSES, stride, ((32.0, 32.0),), (0,)) for stride in (8.0, 16.0, 32.0))
    generator = torch.Generator().manual_seed(0)
    logits = []
    for spec in specs:
        side = int(640 / spec.stride)
        x = torch.rand(images, spec.channels, side, side, generator=generator)
        x[:, :2] = x[:, :2].logit(1e-6)
        x[:, 2:4] = ((x[:, 2:4] * 80 + 8) / 32).log()
        x[:, 4] = 30.0
        x[:, 5:] = (x[:, 5:] ** 40).clamp(1e-20, 1 - 1e-6).logit()
        logits.append(x.to(device))
    return Scene(f"detect dense (8,400 predictions), batch {images}", specs, logits, 0.25, False)
