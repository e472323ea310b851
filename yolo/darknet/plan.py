"""From the sections of a cfg to what each layer reads, puts out and holds, before anything is allocated."""

from dataclasses import dataclass

from yolo.darknet import unweighted, weighted
from yolo.darknet.cfg import Cfg
from yolo.darknet.heads import Shape
from yolo.darknet.outline import MOST_SIDE, Before, Layer

MOST_VALUES = 2**31 - 1  # floats that one layer may hold or put out for one picture: Darknet counts in int
BUILDERS = weighted.BUILDERS | unweighted.BUILDERS

__all__ = ["Layer", "Plan", "plan"]


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
        layer = BUILDERS[section.kind](section, Before(shape, done))
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
