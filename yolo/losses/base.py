"""What every loss shares: its call, its checks, its normalisation, its options."""

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from yolo.losses.assign import Objects, read_objects
from yolo.ops.heads import HeadSpec
from yolo.types import Targets

Run = Callable[[Tensor], Any]
Options = TypeVar("Options")
Head = TypeVar("Head", bound="AnchorHead")


class Terms(NamedTuple):
    """The three parts of a loss, scalars."""

    box: Tensor
    objectness: Tensor
    classes: Tensor


class Criterion(nn.Module):
    """What a training step minimises; called with a network's raw outputs, the objects and the input size."""

    recordable = (
        False  # whether all shapes follow from those of images and targets, and all state is in buffers
    )

    def of(self, network: Run, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        """The named terms, scalars, whose sum is the loss of a batch.

        Args:
            network: The one that this loss was built for, or what runs it in another way (as int8).
            images: ``[N, 3, H, W]``, RGB, 0 to 1.
            targets: Pixels of ``images``.
        """
        terms: dict[str, Tensor] = self(network(images), targets, (images.shape[2], images.shape[3]))
        return terms


class DetectionLoss(Criterion, ABC):
    """Raw outputs and objects to the terms whose sum is minimised.

    All arithmetic is fp32, also under autocast and for half-precision outputs. Nothing waits for the device.

    Every loss of Darknet's is a sum over the batch; here it is divided by the number of objects in the batch
    (of this process), and by the number of predictions in a batch without objects, where one object would
    have been an arbitrary weight. So gradient = -delta / objects, in Darknet's terms.

    Args:
        specs: How each output is read.
        kinds: The heads that this loss can train.
    """

    recordable = True

    def __init__(self, specs: Sequence[HeadSpec], kinds: Sequence[str]) -> None:
        super().__init__()
        self.specs = tuple(specs)
        for spec in self.specs:
            if spec.kind not in kinds:
                raise ValueError(
                    f"{type(self).__name__} trains heads of kind {' or '.join(kinds)}, got {spec.kind}"
                )
        self.num_classes = self.specs[0].num_classes

    def forward(self, logits: Sequence[Tensor], targets: Targets, size: tuple[int, int]) -> dict[str, Tensor]:
        """The terms ``box``, ``objectness`` and ``class``, scalar float32.

        Args:
            logits: One raw output per spec (:class:`yolo.ops.heads.HeadSpec` has the layouts).
            targets: Pixels of the network input.
            size: Height and width of the network input, pixels.
        """
        if len(logits) != len(self.specs):
            raise ValueError(f"the loss was built for {len(self.specs)} heads, got {len(logits)} outputs")
        for x, spec in zip(logits, self.specs, strict=True):
            if x.shape[1] != spec.channels:
                raise ValueError(
                    f"a {spec.kind} head has {spec.channels} values, got an output {tuple(x.shape)}"
                )
        with torch.autocast(logits[0].device.type, enabled=False):
            box, objectness, classes = self.terms(logits, read_objects(targets, size, self.num_classes), size)
        return {"box": box, "objectness": objectness, "class": classes}

    @abstractmethod
    def terms(self, logits: Sequence[Tensor], objects: Objects, size: tuple[int, int]) -> Terms:
        """The terms, normalised."""


class AnchorHead(nn.Module):
    """The constants of one region or yolo head on the device, and what its outputs mean.

    Args:
        spec: The head.
    """

    anchors: Tensor  # [A, 2] width and height, pixels
    every: Tensor  # [all, 2]
    mask: Tensor  # [A] int64, index of each anchor in ``every``

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("every", torch.tensor(spec.all_anchors), persistent=False)
        self.register_buffer("mask", torch.tensor(spec.mask), persistent=False)
        self.register_buffer("anchors", torch.tensor(spec.anchors), persistent=False)

    def split(self, x: Tensor) -> Tensor:
        """``[N, A * (5 + C), H, W]`` to ``[N, A, 5 + C, H, W]``."""
        return x.unflatten(1, (self.spec.num_anchors, 5 + self.spec.num_classes))

    def offset(self, xy: Tensor) -> Tensor:
        """Centre within the cell, of raw outputs, any shape."""
        part = xy if self.spec.squared else xy.sigmoid()
        return self.spec.xy_scale * part - 0.5 * (self.spec.xy_scale - 1.0)

    def boxes(self, raw: Tensor, cell: Tensor, anchors: Tensor) -> Tensor:
        """Boxes ``[..., 4]``, xyxy, pixels.

        Args:
            raw: ``[..., 4]`` outputs.
            cell: ``[..., 2]`` column and row.
            anchors: ``[..., 2]`` width and height, pixels.
        """
        centre = (self.offset(raw[..., :2]) + cell) * self.spec.stride
        shape = raw[..., 2:]
        half = 0.5 * ((2 * shape).square() if self.spec.squared else shape.clamp(max=16.0).exp()) * anchors
        return torch.cat((centre - half, centre + half), dim=-1)

    @torch.no_grad()
    def all_boxes(self, x: Tensor) -> Tensor:
        """``[N, A, 5 + C, H, W]`` to boxes ``[N, A * H * W, 4]``, without gradient."""
        height, width = x.shape[-2:]
        rows, cols = (torch.arange(n, device=x.device) for n in (height, width))
        cell = torch.stack((cols.expand(height, width), rows[:, None].expand(height, width)), dim=-1)
        raw = x[:, :, :4].permute(0, 1, 3, 4, 2).float()
        return self.boxes(raw, cell, self.anchors[:, None, None]).flatten(1, 3)


def of_kind(modules: nn.ModuleList, kind: type[Head]) -> list[Head]:
    """The modules, for the type checker."""
    return [module for module in modules if isinstance(module, kind)]


def per_object(sums: Sequence[Terms], objects: Objects, predictions: int) -> Terms:
    """Add up the heads and divide by the number of objects, or of predictions where there is no object."""
    count = objects.active.sum()
    divisor = torch.where(count > 0, count, predictions)
    return Terms(*(torch.stack(parts).sum() / divisor for parts in zip(*sums, strict=True)))


def processes() -> int:
    """How many processes train together, each on its own share of the images."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def head_options(
    kind: type[Options], heads: int, shared: Mapping[str, Any], each: Sequence[Mapping[str, Any]]
) -> list[Options]:
    """One options object per head: ``shared`` for all of them, then what ``each`` says of its own.

    Raises:
        ValueError: An option that ``kind`` does not have, or not one entry in ``each`` per head.
    """
    if each and len(each) != heads:
        raise ValueError(f"heads= needs one entry for each of the {heads} heads, got {len(each)}")
    result = []
    for own in each or [{}] * heads:
        given = {**shared, **own}
        check_options(given, [field.name for field in dataclasses.fields(kind)], kind.__name__)  # type: ignore[arg-type]
        result.append(kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}))
    return result


def check_options(given: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Raise ValueError for the first name in ``given`` that is not ``known``."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"{where} has no option {name!r}: {hint}known are {', '.join(sorted(known))}")
