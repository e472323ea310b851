"""Backbones as ImageNet classifiers: what detectors are pretrained as."""

from typing import Literal

from torch import Tensor, nn

from yolo.models.detector import Recipe


class Classifier(nn.Module):
    """Images ``[N, 3, H, W]`` (RGB, 0 to 1) to class logits ``[N, C]``, at any size the backbone takes.

    Its ``backbone`` is the same module as a detector's, so the state dict of one loads into the other.

    Args:
        backbone: Returns feature maps; the last one counts.
        channels: Of that map.
        num_classes: C.
        pool: Average the map ``before`` the last 1x1 convolution (Darknet-53) or ``after`` it (Darknet-19).
    """

    def __init__(
        self,
        backbone: nn.Module,
        channels: int,
        num_classes: int,
        pool: Literal["before", "after"] = "before",
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"a classifier needs at least one class, got num_classes={num_classes}")
        self.backbone = backbone
        self.predictor = nn.Conv2d(channels, num_classes, 1)
        self.num_classes = num_classes
        self.pool = pool
        self.recipe: Recipe | None = None  # set by yolo.models.recipe.published

    @property
    def predictors(self) -> list[nn.Conv2d]:
        """The last layer, as a detector has them."""
        return [self.predictor]

    def forward(self, images: Tensor) -> Tensor:
        x = self.backbone(images)[-1]
        if self.pool == "before":
            return self.predictor(x.mean(dim=(2, 3), keepdim=True)).flatten(1)
        return self.predictor(x).mean(dim=(2, 3))

    def probabilities(self, images: Tensor) -> Tensor:
        """``[N, 3, H, W]`` to ``[N, C]``, rows that sum to 1."""
        return self(images).softmax(dim=1)
