"""From the sections of a cfg to what each layer reads, puts out and holds, before anything is allocated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from yolo.darknet import layers
from yolo.darknet.cfg import Cfg, Section
from yolo.darknet.heads import Shape, head_spec
from yolo.darknet.keys import HEADS
from yolo.models.layers import NORM_EPS, NORM_MOMENTUM, ConvBnAct, Local, MaxPool, Reorg
from yolo.ops.heads import HeadSpec

MOST_SIDE = 65_536  # pixels or windows
MOST_VALUES = 2**31 - 1  # floats that one layer may hold or put out for one picture: Darknet counts in int

Make = Callable[[], nn.Module]


@dataclass(frozen=True)
class Layer:
    """One layer of the plan.

    Args:
        section: It comes from.
        sources: Layers whose output it reads, as indices; -1 is the picture.
        inputs: Shape of the first source.
        shape: Of its output.
        make: Builds the module.
        floats: Numbers that a weights file holds for it.
        operations: As Darknet counts them for its BFLOPs: two per weight and position of a convolution, the
            window of a max-pool, one per value of a shortcut, nothing else.
        spec: Of a head.
        lender: The layer whose weights it shares.
    """

    section: Section
    sources: tuple[int, ...]
    inputs: Shape
    shape: Shape
    make: Make
    floats: int = 0
    operations: int = 0
    spec: HeadSpec | None = None
    lender: int | None = None

    @property
    def kind(self) -> str:
        return self.section.kind

    @property
    def index(self) -> int:
        return self.section.index

    @property
    def name(self) -> str:
        return f"layer {self.index} [{self.kind}]"


@dataclass(frozen=True)
class Plan:
    """A whole network: channels, height and width of its input, and the layers."""

    cfg: Cfg
    input: Shape
    layers: tuple[Layer, ...]

    @property
    def floats(self) -> int:
        """Numbers in a weights file of this network."""
        return sum(layer.floats for layer in self.layers)

    @property
    def heads(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.spec is not None)


def plan(cfg: Cfg) -> Plan:
    """Work out every layer of ``cfg``.

    Raises:
        ValueError: A layer that cannot be, with file and line.
    """
    net = cfg.net
    missing = [key for key in ("width", "height") if key not in net]
    if missing:
        raise net.fault(
            f"gives no {' and no '.join(missing)}: only networks that read pictures are supported"
        )
    sides = [net.integer(key, 0, 1, MOST_SIDE) for key in ("height", "width")]
    shape = (net.integer("channels", 3, 1, MOST_SIDE), sides[0], sides[1])
    done: list[Layer] = []
    for section in cfg.layers:
        layer = _BUILDERS[section.kind](section, Before(shape, done))
        _check(layer)
        done.append(layer)
    return Plan(cfg, shape, tuple(done))


def _check(layer: Layer) -> None:
    c, h, w = layer.shape
    if min(c, h, w) < 1:
        raise layer.section.fault(f"would put out {c}x{h}x{w} values (channels x height x width)")
    if layer.floats > MOST_VALUES or c * h * w > MOST_VALUES:
        raise layer.section.fault(
            f"would need {layer.floats:,} weights for {c}x{h}x{w} outputs: no such network is real"
        )


class Before:
    """What a layer can refer to: the picture and the layers above it."""

    def __init__(self, picture: Shape, done: Sequence[Layer]) -> None:
        self.picture = picture
        self.done = done

    def shape(self, index: int) -> Shape:
        return self.done[index].shape if index >= 0 else self.picture

    def last(self, section: Section) -> tuple[int, Shape]:
        """Index and shape of the layer just above."""
        index = len(self.done) - 1
        if index >= 0 and self.done[index].kind in HEADS:
            raise section.fault(f"follows the head {self.done[index].name}, whose output only decoding reads")
        return index, self.shape(index)

    def resolve(self, section: Section, key: str) -> list[int]:
        """The indices behind ``key``: counted back from this layer when negative."""
        here = len(self.done)
        found = []
        for given in section.integers(key):
            index = given if given >= 0 else here + given
            if not 0 <= index < here:
                raise section.fault(f"has {key}={given}, only layers 0 to {here - 1} stand before it", key)
            if self.done[index].kind in HEADS:
                raise section.fault(
                    f"reads the head {self.done[index].name}, whose output only decoding reads", key
                )
            found.append(index)
        if not found:
            raise section.fault(f"needs {key}=")
        return found


def _activation(section: Section, default: str) -> str:
    name = section.text("activation", default)
    if name not in layers.ACTIVATIONS:
        raise section.fault(
            f"has the unknown activation {name!r}; known are {', '.join(layers.ACTIVATIONS)}", "activation"
        )
    return name


def _strides(section: Section, default: int = 1) -> tuple[int, int]:
    """Vertical and horizontal stride."""
    stride = section.integer("stride", default, 1, MOST_SIDE)
    return section.integer("stride_y", stride, 1, MOST_SIDE), section.integer(
        "stride_x", stride, 1, MOST_SIDE
    )


def _convolutional(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    filters, size = section.integer("filters", 1, 1), section.integer("size", 1, 1, MOST_SIDE)
    groups = section.integer("groups", 1, 1)
    if c % groups or filters % groups:
        raise section.fault(
            f"has groups={groups}, which must divide its {c} inputs and {filters} filters", "groups"
        )
    stride = _strides(section)
    dilation, padding = (
        section.integer("dilation", 1, 1, MOST_SIDE),
        section.integer("padding", 0, 0, MOST_SIDE),
    )
    dilation = dilation if size > 1 else 1
    padding = size // 2 if section.flag("pad") else padding
    normalize = section.integer("batch_normalize", 0, 0, 2) > 0  # 2 trains over several batches
    act = _activation(section, "logistic")
    reach = dilation * (size - 1) + 1
    out = [
        (side + 2 * padding * dilation - reach) // step + 1 for side, step in zip((h, w), stride, strict=True)
    ]
    shape = (filters, out[0], out[1])
    weights = filters * (c // groups) * size * size
    lender = _lender(section, before, (c, filters, size, groups, normalize))
    plain = (
        groups == dilation == 1
        and normalize
        and lender is None
        and padding == size // 2
        and stride[0] == stride[1]
    )
    make: Make
    if plain and act in ("leaky", "mish", "linear"):
        make = partial(ConvBnAct, c, filters, size, stride[0], act)  # type: ignore[arg-type]
    else:
        make = partial(
            layers.Convolutional, c, filters, size, stride, padding, act,
            groups=groups, dilation=dilation, normalize=normalize,
        )  # fmt: skip
    floats = 0 if lender is not None else weights + filters * (4 if normalize else 1)
    return Layer(
        section, (above,), (c, h, w), shape, make, floats, 2 * weights * out[0] * out[1], lender=lender
    )


def _lender(section: Section, before: Before, form: tuple[object, ...]) -> int | None:
    """The layer whose weights ``share_index`` names."""
    if "share_index" not in section:
        return None
    (index,) = before.resolve(section, "share_index")[:1]
    other = before.done[index]
    if other.kind == "convolutional":
        theirs = other.section
        same = (
            other.inputs[0], other.shape[0], theirs.integer("size", 1), theirs.integer("groups", 1),
            theirs.integer("batch_normalize", 0) > 0,
        )  # fmt: skip
        if same == form:
            return index if other.lender is None else other.lender
    raise section.fault(f"shares the weights of {other.name}, which has another form", "share_index")


def _local(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    filters, size = section.integer("filters", 1, 1), section.integer("size", 1, 1, MOST_SIDE)
    stride, padding = section.integer("stride", 1, 1), section.integer("pad", 0, 0, MOST_SIDE)
    out = [(side - (1 if padding else size)) // stride + 1 for side in (h, w)]
    act = _activation(section, "logistic")

    def make() -> nn.Module:
        return layers.Locally(Local(c, filters, (h, w), size, stride, padding), act)

    positions = out[0] * out[1]
    floats = positions * filters * (c * size * size + 1)
    return Layer(section, (above,), (c, h, w), (filters, out[0], out[1]), make, floats)


def _connected(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    outputs, normalize = section.integer("output", 1, 1), section.flag("batch_normalize")
    make = partial(layers.Connected, c * h * w, outputs, _activation(section, "logistic"), normalize)
    floats = outputs * (c * h * w + (4 if normalize else 1))
    return Layer(section, (above,), (c, h, w), (outputs, 1, 1), make, floats)


def _batchnorm(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    make = partial(nn.BatchNorm2d, shape[0], NORM_EPS, NORM_MOMENTUM)
    return Layer(section, (above,), shape, shape, make, 4 * shape[0])


def _maxpool(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    stride = _strides(section)
    size = section.integer("size", stride[1], 1, MOST_SIDE)
    padding = section.integer("padding", size - 1, 0, MOST_SIDE)
    out = [(side + padding - size) // step + 1 for side, step in zip((h, w), stride, strict=True)]
    make: Make
    if stride[0] == stride[1]:
        make = partial(MaxPool, size, stride[0], padding)
    else:
        make = partial(layers.PoolUneven, size, stride, padding)
    return Layer(
        section, (above,), (c, h, w), (c, out[0], out[1]), make, operations=size * size * c * out[0] * out[1]
    )


def _avgpool(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    return Layer(section, (above,), shape, (shape[0], 1, 1), layers.AveragePool)


def _route(section: Section, before: Before) -> Layer:
    sources = before.resolve(section, "layers")
    shapes = [before.shape(index) for index in sources]
    groups = section.integer("groups", 1, 1)
    group = section.integer("group_id", 0, 0, groups - 1)
    for index, shape in zip(sources, shapes, strict=True):
        if shape[1:] != shapes[0][1:]:
            raise section.fault(
                f"joins maps of different size: {shapes[0][1]}x{shapes[0][2]} from layer {sources[0]}, "
                f"{shape[1]}x{shape[2]} from layer {index}"
            )
        if shape[0] % groups:
            raise section.fault(
                f"has groups={groups}, which does not divide the {shape[0]} channels of layer {index}",
                "groups",
            )
    channels = sum(shape[0] // groups for shape in shapes)
    make = partial(layers.Route, groups, group)
    return Layer(section, tuple(sources), shapes[0], (channels, *shapes[0][1:]), make)


def _shortcut(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    others = before.resolve(section, "from")
    for index in others:
        _, h, w = before.shape(index)
        ratios = {
            (max(a, b) // min(a, b), a > b) if max(a, b) % min(a, b) == 0 else None
            for a, b in ((h, shape[1]), (w, shape[2]))
        }
        if None in ratios or len(ratios) > 1:
            raise section.fault(
                f"adds the {h}x{w} map of layer {index} to one of {shape[1]}x{shape[2]}", "from"
            )
    act = _activation(section, "linear")
    make = partial(layers.Shortcut, act, section.number("alpha", 1.0), section.number("beta", 1.0))
    return Layer(section, (above, *others), shape, shape, make, operations=shape[0] * shape[1] * shape[2])


def _scale_channels(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    (index, *_) = before.resolve(section, "from")
    other = before.shape(index)
    if (section.flag("scale_wh") and (c, h, w) != (1, *other[1:])) or (
        not section.flag("scale_wh") and (c, h, w) != (other[0], 1, 1)
    ):
        raise section.fault(
            f"scales the {'x'.join(map(str, other))} map of layer {index} by {c}x{h}x{w} values", "from"
        )
    make = partial(layers.ScaleChannels, _activation(section, "linear"))
    return Layer(section, (above, index), (c, h, w), other, make)


def _sam(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    (index, *_) = before.resolve(section, "from")
    if before.shape(index) != shape:
        raise section.fault(
            f"needs two maps of one shape, got {shape} and {before.shape(index)} from layer {index}", "from"
        )
    return Layer(
        section, (above, index), shape, shape, partial(layers.ScaleChannels, _activation(section, "linear"))
    )


def _upsample(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    stride = section.integer("stride", 2, 1, 64)
    make = partial(layers.Enlarge, stride, section.number("scale", 1.0))
    return Layer(section, (above,), (c, h, w), (c, h * stride, w * stride), make)


def _reorg(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    stride = section.integer("stride", 1, 1, 64)
    if section.integer("extra", 0, 0) > 0:
        extra = section.integer("extra", 0, 0)
        return Layer(section, (above,), (c, h, w), (c * h * w + extra, 1, 1), partial(layers.Extra, extra))
    squared = stride * stride
    odd = section.kind == "reorg"
    if (odd and c % squared) or (not section.flag("reverse") and (h % stride or w % stride)):
        raise section.fault(f"cannot fold {c}x{h}x{w} (channels x height x width) by stride {stride}")
    if section.flag("reverse"):
        return Layer(
            section,
            (above,),
            (c, h, w),
            (c // squared, h * stride, w * stride),
            partial(layers.ReorgReverse, stride),
        )
    make = partial(Reorg, stride, "darknet" if odd else "space_to_depth")
    return Layer(section, (above,), (c, h, w), (c * squared, h // stride, w // stride), make)


def _dropout(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    probability = section.number("probability", 0.2)
    if not 0.0 <= probability < 1.0:
        raise section.fault(f"has probability={probability}, expected 0 to below 1", "probability")
    return Layer(section, (above,), shape, shape, partial(nn.Dropout, probability))


def _softmax(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    groups, temperature = section.integer("groups", 1, 1), section.number("temperature", 1.0)
    if shape[0] * shape[1] * shape[2] % groups:
        raise section.fault(
            f"has groups={groups}, which does not divide its {shape[0] * shape[1] * shape[2]} inputs",
            "groups",
        )
    if temperature <= 0:
        raise section.fault(f"has temperature={temperature}, a positive number was expected", "temperature")
    return Layer(section, (above,), shape, shape, partial(layers.Softmax, groups, temperature))


def _crop(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    height, width = section.integer("crop_height", 1, 1), section.integer("crop_width", 1, 1)
    if height > h or width > w:
        raise section.fault(f"cuts {height}x{width} out of {h}x{w} pixels")
    make = partial(layers.Crop, height, width, not section.flag("noadjust"))
    return Layer(section, (above,), (c, h, w), (c, height, width), make)


def _cost(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    return Layer(section, (above,), shape, shape, nn.Identity)


def _head(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    spec = head_spec(section, shape, before.picture[1:])
    return Layer(section, (above,), shape, shape, nn.Identity, spec=spec)


_BUILDERS: dict[str, Callable[[Section, Before], Layer]] = {
    "convolutional": _convolutional,
    "local": _local,
    "connected": _connected,
    "batchnorm": _batchnorm,
    "maxpool": _maxpool,
    "avgpool": _avgpool,
    "route": _route,
    "shortcut": _shortcut,
    "scale_channels": _scale_channels,
    "sam": _sam,
    "upsample": _upsample,
    "reorg": _reorg,
    "reorg3d": _reorg,
    "dropout": _dropout,
    "softmax": _softmax,
    "crop": _crop,
    "cost": _cost,
    "detection": _head,
    "region": _head,
    "yolo": _head,
}
