"""From the sections with weights to layers."""

from functools import partial

from torch import nn

from yolo.darknet import layers
from yolo.darknet.cfg import Section
from yolo.darknet.outline import MOST_SIDE, Before, Builder, Layer, Make, activation_of, strides_of
from yolo.models.layers import NORM_EPS, NORM_MOMENTUM, ConvBnAct, Local


def _convolutional(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    filters, size = section.integer("filters", 1, 1), section.integer("size", 1, 1, MOST_SIDE)
    groups = section.integer("groups", 1, 1)
    if c % groups or filters % groups:
        raise section.fault(
            f"has groups={groups}, which must divide its {c} inputs and {filters} filters", "groups"
        )
    stride = strides_of(section)
    dilation, padding = (
        section.integer("dilation", 1, 1, MOST_SIDE),
        section.integer("padding", 0, 0, MOST_SIDE),
    )
    dilation = dilation if size > 1 else 1
    padding = size // 2 if section.flag("pad") else padding
    normalize = section.integer("batch_normalize", 0, 0, 2) > 0  # 2 trains over several batches
    act = activation_of(section, "logistic")
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
    act = activation_of(section, "logistic")

    def make() -> nn.Module:
        return layers.Locally(Local(c, filters, (h, w), size, stride, padding), act)

    positions = out[0] * out[1]
    floats = positions * filters * (c * size * size + 1)
    return Layer(section, (above,), (c, h, w), (filters, out[0], out[1]), make, floats)


def _connected(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    outputs, normalize = section.integer("output", 1, 1), section.flag("batch_normalize")
    make = partial(layers.Connected, c * h * w, outputs, activation_of(section, "logistic"), normalize)
    floats = outputs * (c * h * w + (4 if normalize else 1))
    return Layer(section, (above,), (c, h, w), (outputs, 1, 1), make, floats)


def _batchnorm(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    make = partial(nn.BatchNorm2d, shape[0], NORM_EPS, NORM_MOMENTUM)
    return Layer(section, (above,), shape, shape, make, 4 * shape[0])


BUILDERS: dict[str, Builder] = {
    "convolutional": _convolutional,
    "local": _local,
    "connected": _connected,
    "batchnorm": _batchnorm,
}
