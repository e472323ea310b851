"""One interface over everything that can run a detector."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from yolo.data.batch import to_bytes, to_float
from yolo.data.preprocess import Preprocess
from yolo.deploy.graph import InputType, Suppression
from yolo.ops import nms
from yolo.types import Detections


class Limits(NamedTuple):
    """Inputs that a runtime takes: smallest and largest batch, height and width, and what sides divide by."""

    batch: tuple[int, int]
    height: tuple[int, int]
    width: tuple[int, int]
    stride: int

    def take(self, shape: Sequence[int]) -> bool:
        """Whether images of this shape, ``[N, 3, H, W]``, can be run."""
        n, _, height, width = shape
        inside = all(
            low <= side <= high
            for side, (low, high) in zip(
                (n, height, width), (self.batch, self.height, self.width), strict=True
            )
        )
        return inside and height % self.stride == 0 and width % self.stride == 0

    def __str__(self) -> str:
        def one(bounds: tuple[int, int]) -> str:
            return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]} to {bounds[1]}"

        multiple = f", sides multiples of {self.stride}" if self.height[0] != self.height[1] else ""
        return f"batch {one(self.batch)}, height {one(self.height)}, width {one(self.width)}{multiple}"


INPUTS: dict[InputType, torch.dtype] = {"uint8": torch.uint8, "float32": torch.float32}
ANY = 1 << 16  # no picture is larger


class Runtime(ABC):
    """A detector that is ready to run.

    ``runtime(images)`` goes through four stages that can also be called one by one (and timed):
    :meth:`upload`, :meth:`network`, :meth:`suppress`, :meth:`download`.

    Args:
        name: For tables: backend, precision, device.
        classes: Names, in the order of the labels.
        preprocess: How pictures become ``images``.
        rule: The suppression of the results.
        limits: What ``images`` may be.
        input_type: What the network is fed: ``uint8`` as given, or converted to ``float32`` 0 to 1.
        device: Where it runs.
        suppresses: Whether :meth:`network` already ends with detections.
    """

    def __init__(
        self,
        name: str,
        classes: Sequence[str],
        preprocess: Preprocess,
        rule: Suppression,
        limits: Limits,
        device: torch.device,
        input_type: InputType = "uint8",
        suppresses: bool = False,
    ) -> None:
        self.name = name
        self.classes = list(classes)
        self.preprocess = preprocess
        self.rule = rule
        self.limits = limits
        self.device = device
        self.input_type = input_type
        self.suppresses = suppresses

    def ruled(self, **options: Any) -> Self:
        """The same runtime with other suppression, options as for :func:`yolo.ops.detect`.

        Raises:
            ValueError: Suppression is inside the file, and these options are not narrower.
        """
        other = copy.copy(self)
        limit = options.get("max_detections", self.rule.max_detections)
        other.rule = self.allowed(replace(self.rule, candidates=max(self.rule.candidates, limit), **options))
        return other

    def allowed(self, rule: Suppression) -> Suppression:
        """``rule``, unless this runtime cannot follow it."""
        return rule

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether images of this shape, ``[N, 3, H, W]``, can be run."""
        return self.limits.take(shape)

    def prepared(self, preprocess: Preprocess) -> Self:
        """The same runtime for pictures that are prepared in another way.

        Raises:
            ValueError: It does not take that size.
        """
        height, width = preprocess.size
        if not self.limits.take((self.limits.batch[0], 3, height, width)):
            raise ValueError(f"{self.name} takes {self.limits}; got height {height}, width {width}")
        other = copy.copy(self)
        other.preprocess = preprocess
        return other

    def any_batch(self, images: Tensor) -> Detections:
        """Like a call, for any number of images: split or filled up as the file needs it."""
        low, high = self.limits.batch
        parts = []
        for chunk in images.split(high):
            missing = max(0, low - len(chunk))
            full = torch.cat((chunk, chunk[-1:].expand(missing, -1, -1, -1))) if missing else chunk
            parts.append([values[: len(chunk)] for values in self(full)])
        return Detections(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def __call__(self, images: Tensor) -> Detections:
        """Detect in a batch.

        Args:
            images: ``[N, 3, H, W]`` RGB, prepared by ``preprocess``: uint8, or float32 from 0 to 1 where that
                gives floats; on any device.

        Returns:
            Boxes in pixels of ``images``, on ``device``.

        Raises:
            ValueError: Another type, or a size or batch that this runtime does not take.
        """
        return self.suppress(self.network(self.upload(images)))

    def check(self, images: Tensor) -> None:
        """Raise ValueError unless ``images`` can be run."""
        kinds = [torch.uint8, torch.float32] if self.preprocess.in_floats else [torch.uint8]
        if images.dtype not in kinds or images.dim() != 4 or images.shape[1] != 3:
            wanted = " or ".join(str(kind).removeprefix("torch.") for kind in kinds)
            raise ValueError(f"images must be [N, 3, H, W] {wanted}, got {list(images.shape)} {images.dtype}")
        if not self.limits.take(images.shape):
            n, _, height, width = images.shape
            raise ValueError(
                f"{self.name} takes {self.limits}; got batch {n}, height {height}, width {width}"
            )

    def upload(self, images: Tensor) -> Tensor:
        """Bring ``images`` to the device, in the type that the network is fed."""
        self.check(images)
        return self.fed(images.to(self.device, non_blocking=True))

    def fed(self, images: Tensor) -> Tensor:
        """``images`` in the type that the network is fed; floats are rounded for one that is fed bytes."""
        return to_bytes(images) if self.input_type == "uint8" else to_float(images)

    def check_fed(self, images: Tensor) -> None:
        """Raise ValueError unless ``images`` are of the type that the network is fed."""
        wanted = INPUTS[self.input_type]
        if images.dtype != wanted:
            raise ValueError(f"{self.name} is fed {wanted}, got {images.dtype}")

    @abstractmethod
    def network(self, images: Tensor) -> tuple[Tensor, ...]:
        """Run what was loaded: ``boxes, scores`` of every prediction, or detections if :attr:`suppresses`."""

    def every(self, images: Tensor) -> tuple[Tensor, Tensor] | None:
        """Boxes ``[N, M, 4]`` and scores ``[N, M, C]`` of every prediction, where they can be seen."""
        if self.suppresses:
            return None
        boxes, scores = self.network(self.upload(images))
        return boxes, scores

    def suppress(self, outputs: Sequence[Tensor]) -> Detections:
        """The detections of what :meth:`network` gave."""
        if self.suppresses:
            return Detections(*outputs)
        boxes, scores = outputs
        return suppress_dense(boxes, scores, self.rule)

    def download(self, detections: Detections) -> Detections:
        """Bring the result to the CPU and wait for it."""
        return Detections(*(values.cpu() for values in detections))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def suppress_dense(boxes: Tensor, scores: Tensor, rule: Suppression) -> Detections:
    """:func:`yolo.ops.detect` from decoded predictions: boxes ``[N, M, 4]`` and scores ``[N, M, C]``."""
    n, m, classes = scores.shape
    if rule.multi_label:
        label = torch.arange(classes, device=scores.device).repeat(m).expand(n, -1)
        boxes, scores = boxes.repeat_interleave(classes, dim=1), scores.flatten(1)
    else:
        scores, label = scores.masked_fill(scores.isnan(), -torch.inf).max(dim=-1)
    return nms(
        boxes,
        scores,
        label,
        iou_threshold=rule.iou_threshold,
        score_threshold=rule.score_threshold,
        max_detections=rule.max_detections,
        class_agnostic=rule.class_agnostic,
    )


def narrowed(detections: Detections, rule: Suppression) -> Detections:
    """Of detections made at lower thresholds, those that ``rule`` would have kept."""
    boxes, scores, labels, _ = (
        detections.boxes[:, : rule.max_detections],
        detections.scores[:, : rule.max_detections],
        detections.labels[:, : rule.max_detections],
        detections.count,
    )
    keep = scores > rule.score_threshold
    used = torch.arange(scores.shape[1], device=scores.device) < detections.count.unsqueeze(1)
    keep = keep & used  # scores fall from left to right, so what is kept stays in front
    return Detections(
        torch.where(keep.unsqueeze(-1), boxes, 0.0),
        torch.where(keep, scores, 0.0),
        torch.where(keep, labels, 0),
        keep.sum(dim=1),
    )


def agreed(built_in: Suppression | None, wanted: Suppression | None, where: str) -> Suppression:
    """The rule of a loaded file: its own where suppression is in the graph, narrowed at most.

    Raises:
        ValueError: The wanted rule needs another file.
    """
    if built_in is None:
        return wanted or Suppression()
    if wanted is None:
        return built_in
    fixed = replace(
        wanted,
        score_threshold=built_in.score_threshold,
        max_detections=built_in.max_detections,
        candidates=built_in.candidates,
    )
    if fixed != built_in:
        has, wants = asdict(built_in), asdict(fixed)
        other = [name for name in has if has[name] != wants[name]]
        said = ", ".join(f"{name}={has[name]} (wanted {wants[name]})" for name in other)
        raise ValueError(f"{where} was exported with {said}; export it again, or with nms=false")
    if wanted.score_threshold < built_in.score_threshold or wanted.max_detections > built_in.max_detections:
        raise ValueError(
            f"{where} was exported with score_threshold={built_in.score_threshold} and max_detections="
            f"{built_in.max_detections}; wanted {wanted.score_threshold} and {wanted.max_detections}"
        )
    return replace(wanted, candidates=built_in.candidates)
