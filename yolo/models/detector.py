"""What every network that finds objects offers, and the one class of the YOLO family, native or built from a cfg."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from yolo.ops.detect import detect
from yolo.ops.heads import HeadSpec
from yolo.types import Detections


@dataclass(frozen=True)
class Recipe:
    """How to build a network again: a function of :mod:`yolo.models` and plain arguments (JSON types)."""

    name: str
    arguments: dict[str, Any]


class Network(nn.Module, ABC):
    """What evaluation, prediction, checkpoints and training ask of a network, of whatever kind it is.

    Training goes through the network's loss (:meth:`yolo.losses.Criterion.of`), all else through :meth:`detect`.

    Args:
        num_classes: C.
        stride: Height and width of an input must be multiples of this.
        fixed_size: Height and width, where the network takes only one.
        specs: How each raw output is read; none where :func:`yolo.ops.detect` cannot read them.
    """

    trunk = "backbone"  # the name of the sub-module that transfer learning may freeze

    def __init__(
        self,
        num_classes: int,
        stride: int,
        fixed_size: tuple[int, int] | None = None,
        specs: Sequence[HeadSpec] = (),
    ) -> None:
        super().__init__()
        if not isinstance(num_classes, int) or num_classes < 1:
            raise ValueError(f"a detector needs a whole number of classes, at least one, got {num_classes!r}")
        self.num_classes = num_classes
        self.stride = stride
        self.fixed_size = fixed_size
        self.specs = tuple(specs)
        self.recipe: Recipe | None = None  # set by yolo.models.published

    @property
    @abstractmethod
    def predictors(self) -> Sequence[nn.Module]:
        """The last layers: all that the number of classes or anchors decides."""

    @abstractmethod
    def detect(
        self,
        images: Tensor,
        *,
        score_threshold: float = 0.25,
        iou_threshold: float = 0.45,
        max_detections: int = 300,
        multi_label: bool = False,
        class_agnostic: bool = False,
    ) -> Detections:
        """Objects in ``images`` ``[N, 3, H, W]`` (RGB, 0 to 1); the options are those of :func:`yolo.ops.detect`."""

    def check_size(self, height: int, width: int) -> None:
        """Raise ValueError if the network cannot take this input size."""
        if self.fixed_size is not None and (height, width) != self.fixed_size:
            raise ValueError(
                f"this model takes only {self.fixed_size[0]}x{self.fixed_size[1]}, got {height}x{width}"
            )
        if height < self.stride or width < self.stride or height % self.stride or width % self.stride:
            rows, columns = (max(-(-side // self.stride), 1) * self.stride for side in (height, width))
            raise ValueError(
                f"the input size must be a multiple of {self.stride} (the stride), got {height}x{width}: "
                f"{rows}x{columns} would do"
            )


class Detector(Network):
    """The YOLO family: images to raw head outputs. Knows nothing of losses or training.

    Sub-modules are registered in the order of the published cfg: Darknet weights load by walking them.

    Args:
        backbone: Images ``[N, 3, H, W]`` (RGB, 0 to 1) to the feature maps that ``head`` reads.
        head: Feature maps to one raw output per spec, in the order of ``specs``; has ``predictors``, the list
            of its last layers.
        specs: How each output is read.
        generation: ``v1`` to ``v4``: which published loss belongs to it.
        fixed_size: Height and width, where the network takes only one (v1).
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        specs: Sequence[HeadSpec],
        generation: str,
        fixed_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(specs[0].num_classes, int(max(spec.stride for spec in specs)), fixed_size, specs)
        self.backbone = backbone
        self.head = head
        self.generation = generation
        self.loss_options: tuple[dict[str, Any], ...] = ()  # per head, what a cfg says of its training

    @property
    def predictors(self) -> list[nn.Conv2d | nn.Linear]:
        """The last layer of each head, in the order of ``specs``."""
        return list(cast("Iterable[nn.Conv2d | nn.Linear]", self.head.predictors))

    def forward(self, images: Tensor) -> list[Tensor]:
        """``[N, 3, H, W]`` to one raw output per head (:class:`yolo.ops.heads.HeadSpec` has the layouts)."""
        self.check_size(images.shape[-2], images.shape[-1])
        return self.head(self.backbone(images))

    def detect(self, images: Tensor, **rule: Any) -> Detections:
        return detect(self(images), self.specs, **rule)
