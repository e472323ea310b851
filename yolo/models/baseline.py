"""One of torchvision's detectors behind the interface of :class:`Network`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from yolo.models.detector import Network
from yolo.ops.nms import empty_result, nms
from yolo.types import Detections

if TYPE_CHECKING:
    from torchvision.models.detection.image_list import ImageList

CANDIDATES = 10_000  # of a picture that reach a suppression across classes
STRIDE = 32  # of the backbones; coarser maps of a pyramid round their size up

Objects = dict[str, Tensor]  # of one picture: boxes [T, 4] and labels [T]


class Normalise(nn.Module):
    """In place of torchvision's transform: pictures keep their size, only their colours change.

    Args:
        mean: Of red, green and blue, 0 to 1.
        std: What the difference to the mean is divided by.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def forward(
        self, images: Tensor, targets: list[Objects] | None = None
    ) -> tuple["ImageList", list[Objects] | None]:
        from torchvision.models.detection.image_list import ImageList  # see yolo.models.baselines

        size = (int(images.shape[-2]), int(images.shape[-1]))
        return ImageList((images - self.mean) / self.std, [size] * len(images)), targets

    def postprocess(
        self, result: list[Objects], image_shapes: object, original_image_sizes: object
    ) -> list[Objects]:
        """Boxes are in pixels of the pictures already."""
        return result


class Baseline(Network):
    """One of torchvision's detectors.

    Args:
        network: As torchvision builds it; in training it turns images and objects into losses.
        num_classes: C, without a background.
        colours: Mean and standard deviation that pictures are normalised by.
        predictors: Its last layers.
        background: Whether its label 0 is the background, so that ours are one lower.
        last_stage: The name of the part that thresholds and suppresses; empty for the network itself.
        stride: Of the sizes that it takes.
        fixed_size: If it takes only one.
    """

    trunk = "network.backbone"

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        colours: tuple[Sequence[float], Sequence[float]],
        predictors: Sequence[nn.Module],
        *,
        background: bool,
        last_stage: str = "",
        stride: int = STRIDE,
        fixed_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(num_classes, stride, fixed_size)
        network.transform = Normalise(*colours)
        self.network = network
        self.first = int(background)
        self.last_stage = last_stage
        self._predictors = tuple(predictors)  # a tuple, so that they are registered once, in the network

    @property
    def predictors(self) -> Sequence[nn.Module]:
        return self._predictors

    def losses(self, images: Tensor, objects: Sequence[Objects]) -> dict[str, Tensor]:
        """Torchvision's loss terms, by its names.

        Args:
            images: ``[N, 3, H, W]``, RGB, 0 to 1.
            objects: Of each picture, ``boxes`` ``[T, 4]`` (xyxy, pixels, with an area) and ``labels`` ``[T]``.
        """
        self.check_size(images.shape[-2], images.shape[-1])
        shifted = [{"boxes": one["boxes"], "labels": one["labels"] + self.first} for one in objects]
        terms: Mapping[str, Tensor] = self.network(images, shifted)
        return {name.removeprefix("loss_"): value for name, value in terms.items()}

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
        """As :meth:`Network.detect`; torchvision suppresses, with these numbers.

        ``multi_label`` is always on: these detectors have every class of a box for a candidate (Faster R-CNN even
        with a box of its own).
        """
        self.check_size(images.shape[-2], images.shape[-1])
        rules: Any = self.network.get_submodule(self.last_stage)
        rules.score_thresh = score_threshold
        rules.nms_thresh = 1.0 if class_agnostic else iou_threshold
        rules.detections_per_img = CANDIDATES if class_agnostic else max_detections
        found: list[Objects] = self.network(images)
        rows = max(len(one["scores"]) for one in found) if class_agnostic else max_detections
        result = Detections(*empty_result(images, max(rows, 1)))
        for index, one in enumerate(found):
            count = len(one["scores"])
            result.boxes[index, :count] = one["boxes"].float()
            result.scores[index, :count] = one["scores"].float()
            result.labels[index, :count] = one["labels"] - self.first
            result.count[index] = count
        if not class_agnostic:
            return result
        return nms(
            *result[:3], iou_threshold=iou_threshold, max_detections=max_detections, class_agnostic=True
        )
