"""From the sections without weights to layers."""

from functools import partial

from torch import nn

from yolo.darknet import layers
from yolo.darknet.cfg import Section
from yolo.darknet.heads import head_spec
from yolo.darknet.outline import MOST_SIDE, Before, Builder, Layer, Make, activation_of, strides_of
from yolo.models.layers import MaxPool, Reorg


def _maxpool(section: Section, before: Before) -> Layer:
    above, (c, h, w) = before.last(section)
    stride = strides_of(section)
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
    act = activation_of(section, "linear")
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
    make = partial(layers.ScaleChannels, activation_of(section, "linear"))
    return Layer(section, (above, index), (c, h, w), other, make)


def _sam(section: Section, before: Before) -> Layer:
    above, shape = before.last(section)
    (index, *_) = before.resolve(section, "from")
    if before.shape(index) != shape:
        raise section.fault(
            f"needs two maps of one shape, got {shape} and {before.shape(index)} from layer {index}", "from"
        )
    return Layer(
        section, (above, index), shape, shape, partial(layers.ScaleChannels, activation_of(section, "linear"))
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


BUILDERS: dict[str, Builder] = {
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
