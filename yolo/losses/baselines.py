"""The loss of torchvision's detectors, which compute it themselves."""

from torch import Tensor

from yolo.losses.assign import read_objects
from yolo.losses.base import Criterion, Run
from yolo.models.baseline import Baseline
from yolo.types import Targets


class BaselineLoss(Criterion):
    """torchvision's terms by its names; objects that cannot be learned (no area, unknown class) are left out."""

    def of(self, network: Run, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        if not isinstance(network, Baseline):
            raise TypeError(f"this is the loss of torchvision's detectors, got a {type(network).__name__}")
        size = (images.shape[2], images.shape[3])
        objects = read_objects(targets, size, network.num_classes)
        each = [objects.active & (objects.image == index) for index in range(len(images))]
        return network.losses(
            images, [{"boxes": objects.boxes[mine], "labels": objects.label[mine]} for mine in each]
        )
