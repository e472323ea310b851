"""The cfg of a native network, written from its structure: Darknet and OpenCV can read what was trained here.

Each published network has a function that lays out its sections; sizes, filters and activations are read from
the layers themselves, in the order in which a weights file has them.
"""

from collections.abc import Callable

from torch import nn

from yolo.models.classifier import Classifier
from yolo.models.detector import Detector
from yolo.models.layers import ConvBnAct, Local, darknet_layers
from yolo.ops.heads import HeadSpec

TRAINING = """batch=64
subdivisions=16
momentum=0.9
decay=0.0005
learning_rate=0.001
burn_in=1000
max_batches=10000
policy=steps
steps=8000,9000
scales=.1,.1
saturation=1.5
exposure=1.5
hue=.1"""


def cfg_text(network: Detector | Classifier, size: tuple[int, int]) -> str:
    """A cfg for a network of :mod:`yolo.models`.

    Args:
        network: Built by one of its functions.
        size: Height and width for ``[net]``, pixels.

    Raises:
        ValueError: There is no layout for this network, or it cannot take that size.
    """
    name = network.recipe.name if network.recipe is not None else type(network).__name__
    if name not in LAYOUTS:
        raise ValueError(f"{name} has no Darknet form; those that have one are {', '.join(LAYOUTS)}")
    if isinstance(network, Detector):
        network.check_size(*size)
    writer = Writer(network)
    LAYOUTS[name](writer)
    writer.finish()
    net = f"[net]\nwidth={size[1]}\nheight={size[0]}\nchannels=3\n{TRAINING}\n"
    return "\n".join([net, *writer.sections])


class Writer:
    """Writes sections one after the other, taking layers and heads from the network as they are needed."""

    def __init__(self, network: Detector | Classifier) -> None:
        self.sections: list[str] = []
        self.layers = list(darknet_layers(network))
        self.specs = list(network.specs) if isinstance(network, Detector) else []
        self.reorg = "reorg"
        if network.recipe is not None and network.recipe.arguments.get("reorg") == "space_to_depth":
            self.reorg = "reorg3d"
        self.dropout = next((m.p for m in network.modules() if isinstance(m, nn.Dropout)), 0.5)
        self.acts = {id(m.conv): _activation(m.act) for m in network.modules() if isinstance(m, ConvBnAct)}

    @property
    def last(self) -> int:
        """Index of the layer written last."""
        return len(self.sections) - 1

    def finish(self) -> None:
        assert not self.layers, f"{len(self.layers)} layers are left over: the layout is another network's"
        assert not self.specs, "heads are left over: the layout is another network's"

    def section(self, kind: str, /, **values: object) -> int:
        """Append a section; returns its index."""
        lines = [f"{key.rstrip('_')}={_text(value)}" for key, value in values.items()]
        self.sections.append("\n".join([f"[{kind}]", *lines]) + "\n")
        return self.last

    def convs(self, count: int = 1) -> int:
        """The next ``count`` convolutions."""
        for _ in range(count):
            layer, norm = self.layers.pop(0)
            assert isinstance(layer, nn.Conv2d)
            values: dict[str, object] = {} if norm is None else {"batch_normalize": 1}
            size, stride = layer.kernel_size[0], layer.stride[0]
            values |= {"filters": layer.out_channels, "size": size, "stride": stride, "pad": 1}
            self.section("convolutional", **values, activation=self.acts.get(id(layer), "linear"))
        return self.last

    def pool(self, size: int = 2, stride: int = 2) -> int:
        return self.section("maxpool", size=size, stride=stride)

    def route(self, *layers: int) -> int:
        return self.section("route", layers=layers)

    def residuals(self, count: int) -> int:
        for _ in range(count):
            self.convs(2)
            self.section("shortcut", from_=-3, activation="linear")
        return self.last

    def pyramid(self) -> int:
        """Maxima over 5, 9 and 13 cells beside the input (SPP)."""
        start = self.last
        five = self.pool(5, 1)
        self.route(start)
        nine = self.pool(9, 1)
        self.route(start)
        return self.route(self.pool(13, 1), nine, five, start)

    def local(self) -> int:
        layer, _ = self.layers.pop(0)
        assert isinstance(layer, Local)
        return self.section(
            "local", size=layer.kernel_size, stride=layer.stride, pad=layer.padding,
            filters=layer.out_channels, activation="leaky",
        )  # fmt: skip

    def connected(self) -> int:
        layer, _ = self.layers.pop(0)
        assert isinstance(layer, nn.Linear)
        return self.section("connected", output=layer.out_features, activation="linear")

    def head(self, **options: object) -> int:
        """The next head, reading the layer written last."""
        spec = self.specs.pop(0)
        kind = "detection" if spec.kind == "grid" else spec.kind
        return self.section(kind, **{**_head_values(spec), **options})


def _activation(module: nn.Module) -> str:
    names: dict[type[nn.Module], str] = {nn.LeakyReLU: "leaky", nn.Mish: "mish", nn.Identity: "linear"}
    return names[type(module)]


def _text(value: object) -> str:
    """Numbers as short as they can be without loss."""
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _head_values(spec: HeadSpec) -> dict[str, object]:
    if spec.kind == "grid":
        shape = {"classes": spec.num_classes, "coords": 4, "rescore": 1, "side": spec.side}
        read = {"num": spec.boxes_per_cell, "softmax": int(spec.softmax), "sqrt": int(spec.sqrt)}
        return {**shape, **read, "object_scale": 1, "noobject_scale": 0.5, "class_scale": 1, "coord_scale": 5}
    unit = spec.stride if spec.kind == "region" else 1.0
    anchors = tuple(length / unit for anchor in spec.all_anchors for length in anchor)
    common = {"anchors": anchors, "classes": spec.num_classes, "num": len(spec.all_anchors)}
    if spec.kind == "region":
        scales = {"object_scale": 5, "noobject_scale": 1, "class_scale": 1, "coord_scale": 1}
        return {
            **common, "bias_match": 1, "coords": 4, "softmax": int(spec.softmax), **scales,
            "absolute": 1, "thresh": 0.6, "random": 1,
        }  # fmt: skip
    scale = {} if spec.xy_scale == 1.0 else {"scale_x_y": spec.xy_scale}
    return {"mask": spec.mask, **common, **scale, "ignore_thresh": 0.7, "truth_thresh": 1, "random": 1}


V4 = {"cls_normalizer": 1.0, "iou_normalizer": 0.07, "iou_loss": "ciou"}
V4 |= {"nms_kind": "greedynms", "beta_nms": 0.6}


def _yolov1(w: Writer) -> None:
    for count in (1, 1, 4, 10):
        w.convs(count)
        w.pool()
    w.convs(4 + 4)
    w.local()
    w.section("dropout", probability=w.dropout)
    w.connected()
    w.head(jitter=0.2)


def _seven(w: Writer, last_stride: int) -> int:
    """The tiny backbone; returns the layer of stride 16."""
    fine = 0
    for index in range(7):
        w.convs()
        fine = w.last if index == 4 else fine
        if index < 6:
            w.pool(2, 2 if index < 5 else last_stride)
    return fine


def _yolov1_tiny(w: Writer) -> None:
    _seven(w, 2)
    w.convs()
    w.connected()
    w.head(jitter=0.2)


def _darknet19(w: Writer) -> int:
    """Returns the layer of stride 16."""
    fine = 0
    for index, count in enumerate((1, 1, 3, 3, 5, 5)):
        w.convs(count)
        fine = w.last if index == 4 else fine
        if index < 5:
            w.pool()
    return fine


def _yolov2(w: Writer) -> None:
    fine = _darknet19(w)
    deep = w.convs(2)
    w.route(fine)
    w.convs()
    w.route(w.section(w.reorg, stride=2), deep)
    w.convs(2)
    w.head(jitter=0.3, rescore=1)


def _yolov2_tiny(w: Writer) -> None:
    _seven(w, 1)
    w.convs(2)
    w.head(jitter=0.2, rescore=0)


def _darknet53(w: Writer) -> list[int]:
    """Returns the layers of stride 8, 16 and 32."""
    w.convs()
    ends = []
    for depth in (1, 2, 8, 8, 4):
        w.convs()
        ends.append(w.residuals(depth))
    return ends[-3:]


def _levels(w: Writer, pyramid: bool) -> None:
    maps = _darknet53(w)
    for index, enter in enumerate(reversed(maps)):
        if index:
            w.route(-4)
            w.convs()
            w.route(w.section("upsample", stride=2), enter)
        if pyramid and index == 0:
            w.convs(3)
            w.pyramid()
            w.convs(3)
        else:
            w.convs(5)
        w.convs(2)
        w.head(jitter=0.3)


def _yolov3(w: Writer) -> None:
    _levels(w, pyramid=False)


def _yolov3_spp(w: Writer) -> None:
    _levels(w, pyramid=True)


def _two_levels(w: Writer, fine: int, **options: object) -> None:
    """Stride 32, then stride 16, of the tiny v3 and v4."""
    w.convs(3)
    w.head(jitter=0.3, **options)
    w.route(-4)
    w.convs()
    w.route(w.section("upsample", stride=2), fine)
    w.convs(2)
    w.head(jitter=0.3, **options)


def _yolov3_tiny(w: Writer) -> None:
    _two_levels(w, _seven(w, 1))


def _yolov4_tiny(w: Writer) -> None:
    w.convs(2)
    joined = 0
    for _ in range(3):
        w.convs()
        w.section("route", layers=-1, groups=2, group_id=1)
        w.convs(2)
        w.route(-1, -2)
        joined = w.convs()
        w.route(-6, -1)
        w.pool()
    w.convs()
    _two_levels(w, joined, **V4)


def _cspdarknet53(w: Writer) -> list[int]:
    """Returns the layers of stride 8, 16 and 32."""
    w.convs()
    ends = []
    for depth in (1, 2, 8, 8, 4):
        bypass = w.convs(2)
        w.route(-2)
        w.convs()
        w.residuals(depth)
        w.route(w.convs(), bypass)
        ends.append(w.convs())
    return ends[-3:]


def _yolov4(w: Writer) -> None:
    map8, map16, _ = _cspdarknet53(w)
    w.convs(3)
    w.pyramid()
    top32 = w.convs(3)
    tops = []
    for enter in (map16, map8):
        w.convs()
        up = w.section("upsample", stride=2)
        w.route(enter)
        w.route(w.convs(), up)
        tops.append(w.convs(5))
    options = {**V4, "iou_thresh": 0.213, "max_delta": 5}
    w.convs(2)
    w.head(jitter=0.3, **options)
    for top in (tops[0], top32):
        w.route(-4)
        w.route(w.convs(), top)
        w.convs(7)
        w.head(jitter=0.3, **options)


def _classify_19(w: Writer) -> None:
    _darknet19(w)
    w.convs()
    w.section("avgpool")
    w.section("softmax", groups=1)


def _classify_53(w: Writer) -> None:
    _darknet53(w)
    w.section("avgpool")
    w.convs()
    w.section("softmax", groups=1)


def _classify_csp53(w: Writer) -> None:
    _cspdarknet53(w)
    w.section("avgpool")
    w.convs()
    w.section("softmax", groups=1)


LAYOUTS: dict[str, Callable[[Writer], None]] = {
    "darknet19": _classify_19,
    "darknet53": _classify_53,
    "cspdarknet53": _classify_csp53,
    "yolov1": _yolov1,
    "yolov1_tiny": _yolov1_tiny,
    "yolov2": _yolov2,
    "yolov2_tiny": _yolov2_tiny,
    "yolov3": _yolov3,
    "yolov3_spp": _yolov3_spp,
    "yolov3_tiny": _yolov3_tiny,
    "yolov4": _yolov4,
    "yolov4_tiny": _yolov4_tiny,
}
