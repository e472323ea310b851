"""torchvision's detectors behind the interface of :class:`Network`: what to compare YOLO with on one's own data.

Networks, target assignment and losses are torchvision's. What is ours: pictures come letterboxed at the network's
size, so its own resizing is replaced (:class:`Normalise`); labels count from 0; detections are padded to fixed
shapes. Nothing is downloaded: weights come from a local file, or training starts from scratch.

torchvision takes two seconds to load, as long as torch, and no other network needs it: it is imported where one of its
detectors is made.
"""

from typing import Any, Literal

from torch import nn

from yolo.models.baseline import STRIDE, Baseline
from yolo.models.local import load_local
from yolo.models.recipe import published

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CAFFE = ((0.48235, 0.45882, 0.40784), (1 / 255, 1 / 255, 1 / 255))  # means, and pixels that go up to 255
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


@published
def fasterrcnn(
    num_classes: int = 80,
    backbone: str = "resnet50",
    smallest_anchor: float = 32.0,
    frozen_norm: bool = False,
    weights: str | None = None,
) -> Baseline:
    """Faster R-CNN (arXiv:1506.01497) on a ResNet with a feature pyramid: two stages.

    Args:
        num_classes: C.
        backbone: ``resnet18`` to ``resnet152``.
        smallest_anchor: Side in pixels of the anchors of the finest map; doubles from map to map. torchvision's 32
            is for pictures of 800 pixels.
        frozen_norm: Keep the batch norms of the backbone as they are loaded: for ``weights`` and small batches.
        weights: A local file of torchvision's, of this detector or of the backbone alone.
    """
    return _two_stages(num_classes, backbone, smallest_anchor, frozen_norm, weights)


@published
def maskrcnn(
    num_classes: int = 80,
    backbone: str = "resnet50",
    smallest_anchor: float = 32.0,
    frozen_norm: bool = False,
    weights: str | None = None,
) -> Baseline:
    """The box branch of Mask R-CNN (arXiv:1703.06870); see :func:`fasterrcnn` for the options.

    Data sets here have boxes and no masks, and a filled box is not a mask: a branch trained on those would learn
    nothing about shapes and pull the backbone with it. So there is none, and the network is that of Faster R-CNN with
    a pyramid and RoIAlign, as Mask R-CNN's is without masks (sec. 4.1). What is left of it is the start:
    ``weights`` takes a file of torchvision's Mask R-CNN, whose backbone has learned from masks.
    """
    return _two_stages(num_classes, backbone, smallest_anchor, frozen_norm, weights)


def _two_stages(
    num_classes: int, backbone: str, smallest: float, frozen_norm: bool, weights: str | None
) -> Baseline:
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    sizes = tuple((int(smallest * 2**level),) for level in range(5))
    anchors = AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))
    body = _pyramid(backbone, frozen_norm)
    network = FasterRCNN(body, num_classes + 1, rpn_anchor_generator=anchors)
    if weights is not None:
        load_local(network, weights)
    last = [network.roi_heads.box_predictor]
    return Baseline(network, num_classes, IMAGENET, last, background=True, last_stage="roi_heads")


@published
def retinanet(
    num_classes: int = 80,
    backbone: str = "resnet50",
    smallest_anchor: float = 32.0,
    frozen_norm: bool = False,
    weights: str | None = None,
) -> Baseline:
    """RetinaNet (arXiv:1708.02002): one stage with anchors and focal loss; options as :func:`fasterrcnn`."""
    from torchvision.models.detection import RetinaNet
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    sizes = tuple(
        tuple(int(smallest_anchor * 2 ** (level + third / 3)) for third in range(3)) for level in range(5)
    )
    anchors = AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))
    network = RetinaNet(_coarse_pyramid(backbone, frozen_norm), num_classes, anchor_generator=anchors)
    if weights is not None:
        load_local(network, weights)
    head = network.head
    last = [head.classification_head.cls_logits, head.regression_head.bbox_reg]
    return Baseline(network, num_classes, IMAGENET, last, background=False)


@published
def fcos(
    num_classes: int = 80,
    backbone: str = "resnet50",
    frozen_norm: bool = False,
    weights: str | None = None,
) -> Baseline:
    """FCOS (arXiv:1904.01355): one stage without anchors; options as :func:`fasterrcnn`."""
    from torchvision.models.detection import FCOS

    network = FCOS(_coarse_pyramid(backbone, frozen_norm), num_classes)
    if weights is not None:
        load_local(network, weights)
    head = network.head
    last = [
        head.classification_head.cls_logits,
        head.regression_head.bbox_reg,
        head.regression_head.bbox_ctrness,
    ]
    return Baseline(network, num_classes, IMAGENET, last, background=False)


@published
def ssd(
    num_classes: int = 80,
    backbone: Literal["vgg16", "mobilenet"] = "vgg16",
    colours: Literal["imagenet", "caffe"] = "imagenet",
    weights: str | None = None,
) -> Baseline:
    """SSD (arXiv:1512.02325): one stage with anchors on many maps.

    Args:
        num_classes: C.
        backbone: ``vgg16`` is SSD300, which takes 300x300 pixels; ``mobilenet`` is SSDlite (arXiv:1801.04381, sec. 6.2)
            on MobileNetV3-Large, meant for 320x320, which takes any multiple of 32.
        colours: Of ``vgg16``: ``caffe`` where ``weights`` are torchvision's SSD300 or its ``vgg16_features``.
        weights: A local file of torchvision's, of this detector or of the backbone alone.
    """
    if backbone not in ("vgg16", "mobilenet") or colours not in ("imagenet", "caffe"):
        raise ValueError(
            "the backbone of an SSD is vgg16 or mobilenet, its colours imagenet or caffe, "
            f"got {backbone!r} and {colours!r}"
        )
    from torchvision.models.detection import ssd300_vgg16, ssdlite320_mobilenet_v3_large

    small = backbone == "mobilenet"
    make = ssdlite320_mobilenet_v3_large if small else ssd300_vgg16
    network = make(weights=None, weights_backbone=None, num_classes=num_classes + 1)
    if weights is not None:
        load_local(network, weights)
    return Baseline(
        network,
        num_classes,
        HALVES if small else IMAGENET if colours == "imagenet" else CAFFE,
        [network.head],
        background=True,
        stride=STRIDE if small else 1,
        fixed_size=None if small else (300, 300),
    )


def _pyramid(name: str, frozen_norm: bool, **options: Any) -> nn.Module:
    """Feature maps of a ResNet, 256 channels each; of stride 4 to 64 unless the options say otherwise."""
    if name not in RESNETS:
        raise ValueError(f"the backbone is one of {', '.join(RESNETS)}, got {name!r}")
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.ops.misc import FrozenBatchNorm2d

    norm = FrozenBatchNorm2d if frozen_norm else nn.BatchNorm2d
    return resnet_fpn_backbone(
        backbone_name=name, weights=None, norm_layer=norm, trainable_layers=5, **options
    )


def _coarse_pyramid(name: str, frozen_norm: bool) -> nn.Module:
    """The same of stride 8 to 128."""
    from torchvision.ops.feature_pyramid_network import LastLevelP6P7

    return _pyramid(name, frozen_norm, returned_layers=[2, 3, 4], extra_blocks=LastLevelP6P7(256, 256))
