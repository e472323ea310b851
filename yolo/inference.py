"""A model at work: canvases in, detections in pixels of the pictures out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from yolo.checkpoint import AnyModel, ClassifierModel, Model
from yolo.darknet.suppress import NmsKind, resolve_kind, suppress_by_distance
from yolo.data.batch import to_float
from yolo.data.preprocess import Interpolation, Preprocess, Resize, undo
from yolo.types import Detections, Found, Placement

Precision = Literal["fp32", "bf16", "fp16"]
DEFAULT_RATE = 25.0  # frames per second of a stream that does not say
MOST_CANDIDATES = 10_000  # of a picture that reach the suppression by distance
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Shot:
    """One picture of a source, or why it could not be read."""

    source: str  # file or camera as it was asked for
    name: PurePath  # where its results go below an output folder
    image: NDArray[np.uint8] | None  # [H, W, 3], RGB
    problem: str = ""
    frame: int | None = None  # 0, 1, ... in a video
    rate: float = DEFAULT_RATE  # frames per second of a video


def choose_device(device: str) -> torch.device:
    """``auto`` is the first GPU where there is one.

    Raises:
        ValueError: The device does not exist here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={device} was asked for, PyTorch sees {torch.cuda.device_count()} GPUs")
    return chosen


def with_preprocess(
    model: "AnyModel | Runnable",
    resize: Resize | None,
    size: Sequence[int] | None,
    interpolation: Interpolation | None = None,
) -> "AnyModel | Runnable":
    """The same network, fed by another way to resize or at another size; None keeps what the model says.

    Raises:
        ValueError: The network cannot take that size.
    """
    preprocess = model.preprocess
    if resize is not None:
        preprocess = replace(preprocess, resize=resize)
    if interpolation is not None:
        preprocess = replace(preprocess, interpolation=interpolation)
    if size is not None:
        if len(size) != 2:
            raise ValueError(f"size must be height and width in pixels, got {list(size)}")
        preprocess = replace(preprocess, size=(size[0], size[1]))
    if isinstance(model, ClassifierModel):
        return ClassifierModel(model.classifier, model.classes, preprocess)
    if not isinstance(model, Model):
        return model.prepared(preprocess)
    model.detector.check_size(*preprocess.size)
    return replace(model, preprocess=preprocess)


def to_found(detections: Detections, placements: Sequence[Placement], clip: bool = True) -> list[Found]:
    """Take the detections of a batch back to the pixels of each picture.

    Args:
        detections: Boxes in pixels of the canvas.
        placements: How each picture was put on it.
        clip: Cut boxes at the edges of the picture; those that lie in the padding altogether vanish.
    """
    counts = detections.count.tolist()
    boxes, scores, labels = (
        values.cpu().numpy()
        for values in (detections.boxes.float(), detections.scores.float(), detections.labels)
    )
    results = []
    for index, (count, placement) in enumerate(zip(counts, placements, strict=True)):
        mine = Found(undo(boxes[index, :count], placement), scores[index, :count], labels[index, :count])
        results.append(_inside(mine, placement, clip))
    return results


def _inside(found: Found, placement: Placement, clip: bool) -> Found:
    """Without boxes that have no area; ``clip`` cuts them first."""
    boxes = found.boxes
    if clip:
        limits = (placement.width, placement.height) * 2
        boxes = boxes.clip(0, np.asarray(limits, boxes.dtype))
    kept = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    return Found(boxes[kept], found.scores[kept], found.labels[kept])


class Runnable(Protocol):
    """Anything else that detects: an exported file in its runtime (:mod:`yolo.deploy`)."""

    classes: list[str]
    preprocess: Preprocess
    device: torch.device

    def ruled(self, **options: Any) -> Self:
        """The same with these options of :func:`yolo.ops.detect`."""

    def prepared(self, preprocess: Preprocess) -> Self:
        """The same for pictures that are prepared so."""

    def any_batch(self, images: Tensor) -> Detections:
        """Detections of ``[N, 3, H, W]`` RGB as ``preprocess`` gives it, in pixels of it."""


class Inference:
    """Runs a model over batches.

    The network moves to the device and to evaluation mode.

    Args:
        model: Network, class names and how pictures are prepared; or an exported file in its runtime, which
            keeps its own device and precision.
        score_threshold: Candidates score strictly more.
        iou_threshold: A box falls to a better one of its class at a strictly greater IoU.
        max_detections: Kept per picture.
        multi_label: Every class of a box may be a candidate, not only its best one (Darknet's evaluation).
        class_agnostic: Boxes of different classes suppress each other.
        clip: Cut boxes at the edges of the picture.
        nms_kind: What ``iou_threshold`` is compared with: ``iou``; ``distance``, Darknet's ``greedynms``
            (:mod:`yolo.darknet.suppress`); ``cfg``, the one that the network's cfg names.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        precision: Of the network's arithmetic; boxes and scores are always float32.
    """

    def __init__(
        self,
        model: Model | Runnable,
        *,
        score_threshold: float = 0.25,
        iou_threshold: float = 0.45,
        max_detections: int = 300,
        multi_label: bool = False,
        class_agnostic: bool = False,
        clip: bool = True,
        nms_kind: NmsKind = "iou",
        device: str = "auto",
        precision: Precision = "fp32",
    ) -> None:
        if precision not in DTYPES:
            raise ValueError(f"precision must be one of {', '.join(DTYPES)}, got {precision!r}")
        self.model = model
        self.precision = precision
        self.clip = clip
        self.rule: dict[str, Any] = {
            "score_threshold": score_threshold,
            "iou_threshold": iou_threshold,
            "max_detections": max_detections,
            "multi_label": multi_label,
            "class_agnostic": class_agnostic,
        }
        self.detections: Callable[[Tensor], Detections]
        self.nms_kind = resolve_kind(nms_kind, model.detector if isinstance(model, Model) else None)
        self.keep, self.threshold = max_detections, iou_threshold
        if self.nms_kind == "distance":
            if class_agnostic:
                raise ValueError("nms_kind=distance suppresses within a class, got class_agnostic=true")
            self.rule |= {"iou_threshold": 1.0, "max_detections": MOST_CANDIDATES}
        if isinstance(model, Model):
            self.device = choose_device(device)
            self.detector = model.detector.to(self.device).to(memory_format=torch.channels_last).eval()
            self.detections = self._network
        else:
            if precision != "fp32":
                raise ValueError(f"precision={precision} was asked for, an exported file keeps its own")
            self.device = model.device
            self.detections = model.ruled(**self.rule).any_batch

    @torch.inference_mode()
    def __call__(self, images: Tensor, placements: Sequence[Placement]) -> list[Found]:
        """Detections of ``images`` ``[N, 3, H, W]`` RGB, uint8 or float32, whose pictures were placed so."""
        detections = self.detections(images)
        if self.nms_kind == "iou":
            return to_found(detections, placements, self.clip)
        whole = zip(to_found(detections, placements, clip=False), placements, strict=True)
        return [_inside(self._by_distance(found, place), place, self.clip) for found, place in whole]

    def _by_distance(self, found: Found, placement: Placement) -> Found:
        return suppress_by_distance(found, placement.height, placement.width, self.threshold, self.keep)

    def _network(self, images: Tensor) -> Detections:
        images = to_float(images.to(self.device, non_blocking=True))
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, DTYPES[self.precision], enabled=self.precision != "fp32"):
            return self.detector.detect(images, **self.rule)
