"""CenterNet (arXiv:1904.07850): an object is a peak in a heat map; no anchors, no suppression."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from yolo.models.cspdarknet import CspDarknet53
from yolo.models.darknet import Darknet19, Darknet53, scaled
from yolo.models.detector import Network
from yolo.models.initial import initialise
from yolo.models.local import load_local
from yolo.models.peaks import decode_peaks
from yolo.models.recipe import published
from yolo.ops.nms import nms
from yolo.types import Detections

DARKNETS = {"darknet19": Darknet19, "darknet53": Darknet53, "cspdarknet53": CspDarknet53}
RESNETS = {"resnet18": 512, "resnet34": 512, "resnet50": 2048, "resnet101": 2048, "resnet152": 2048}
STRIDE = 4  # pixels a cell of the outputs
UP = (256, 128, 64)  # channels of the up-convolutions from stride 32 (appendix A, ResNet)
HEAD = 64  # channels before each output (appendix A)
PRIOR = 0.01  # chance of a centre in a cell of a fresh network; RetinaNet's, which starts with a smaller loss than .1
PRIOR_SIZE = 8.0  # cells


class ResNet(nn.Module):
    """torchvision's ResNet without its classifier, with the normalisation of its published weights.

    Returns the maps of stride 8, 16 and 32.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str) -> None:
        super().__init__()
        import torchvision  # see yolo.models.baselines

        self.body = torchvision.models.get_model(name, weights=None)
        self.body.fc = nn.Identity()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406])[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225])[:, None, None], persistent=False)
        self.out_channels = (RESNETS[name] // 4, RESNETS[name] // 2, RESNETS[name])

    def forward(self, images: Tensor) -> list[Tensor]:
        body = self.body
        x = body.maxpool(body.relu(body.bn1(body.conv1((images - self.mean) / self.std))))
        maps = []
        for stage in (body.layer1, body.layer2, body.layer3, body.layer4):
            x = stage(x)
            maps.append(x)
        return maps[1:]


def _branch(channels: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, hidden, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(hidden, outputs, 1)
    )


class PeakHead(nn.Module):
    """The coarsest map, brought from stride 32 to 4, to heat, offset and size.

    A plain convolution stands before each up-convolution, where the paper has a deformable one (appendix A).
    """

    def __init__(self, in_channels: int, num_classes: int, width: float) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        for channels in (scaled(c, width) for c in UP):
            steps += [nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
            steps += [nn.ReLU(inplace=True), nn.ConvTranspose2d(channels, channels, 4, 2, 1, bias=False)]
            steps += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            in_channels = channels
        self.up = nn.Sequential(*steps)
        hidden = scaled(HEAD, width)
        self.heat = _branch(in_channels, hidden, num_classes)
        self.offset = _branch(in_channels, hidden, 2)
        self.size = _branch(in_channels, hidden, 2)
        self._initialise()

    @property
    def predictors(self) -> list[nn.Conv2d]:
        """The last layers: of heat, offset and size."""
        return [cast("nn.Conv2d", branch[-1]) for branch in (self.heat, self.offset, self.size)]

    def _initialise(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.ConvTranspose2d):  # each channel by itself, bilinear (appendix A)
                side = torch.tensor([0.25, 0.75, 0.75, 0.25])
                with torch.no_grad():
                    layer.weight.zero_()
                    each = torch.arange(layer.out_channels)
                    layer.weight[each, each] = side[:, None] * side
        starts = (math.log(PRIOR / (1 - PRIOR)), 0.5, PRIOR_SIZE)
        for predictor, start in zip(self.predictors, starts, strict=True):
            nn.init.normal_(predictor.weight, std=0.001)
            assert predictor.bias is not None
            nn.init.constant_(predictor.bias, start)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        x = self.up(maps[-1])
        return [self.heat(x), self.offset(x), self.size(x)]


class CenterNet(Network):
    """Images to heat ``[N, C, H, W]`` (logits), offset and size ``[N, 2, H, W]`` (cells), 4 pixels a cell.

    Args:
        backbone: Images to feature maps, the last of stride 32.
        head: That map to the three outputs.
        num_classes: C.
    """

    def __init__(self, backbone: nn.Module, head: PeakHead, num_classes: int) -> None:
        super().__init__(num_classes, stride=32)
        self.backbone = backbone
        self.head = head

    @property
    def predictors(self) -> Sequence[nn.Module]:
        return self.head.predictors

    def forward(self, images: Tensor) -> list[Tensor]:
        self.check_size(images.shape[-2], images.shape[-1])
        return self.head(self.backbone(images))

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
        """As :meth:`Network.detect`; peaks need no suppression, so ``iou_threshold`` counts across classes only.

        ``multi_label`` changes nothing: each class has a map and peaks of its own.
        """
        heat, offset, size = self(images)
        found = decode_peaks(heat, offset, size, STRIDE, score_threshold, max_detections)
        if not class_agnostic:
            return found
        return nms(
            *found[:3], iou_threshold=iou_threshold, max_detections=max_detections, class_agnostic=True
        )


@published
def centernet(
    num_classes: int = 80, backbone: str = "resnet18", width: float = 1.0, weights: str | None = None
) -> CenterNet:
    """CenterNet on a backbone of Darknet's or torchvision's.

    Args:
        num_classes: C.
        backbone: ``darknet19``, ``darknet53``, ``cspdarknet53``, or ``resnet18`` to ``resnet152``.
        width: Scales the channels of the head and of a Darknet backbone.
        weights: A local file of torchvision's with the ImageNet weights of a ResNet.
    """
    if backbone in DARKNETS:
        if weights is not None:
            raise ValueError(f"weights={weights} is for a ResNet: Darknet's go to the tool's own weights=")
        body: nn.Module = DARKNETS[backbone](width)
        initialise(body)
        channels = cast("tuple[int, ...]", body.out_channels)[-1]
    elif backbone in RESNETS:
        body, channels = ResNet(backbone), RESNETS[backbone]
    else:
        raise ValueError(f"the backbone is one of {', '.join([*DARKNETS, *RESNETS])}, got {backbone!r}")
    network = CenterNet(body, PeakHead(channels, num_classes, width), num_classes)
    if weights is not None:
        load_local(network, weights)
    return network
