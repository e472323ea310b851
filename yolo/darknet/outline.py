"""What a layer of a network is before it is allocated, and what it may refer to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from yolo.darknet.cfg import Section
from yolo.darknet.heads import Shape
from yolo.darknet.keys import HEADS
from yolo.darknet.layers import ACTIVATIONS
from yolo.ops.heads import HeadSpec

MOST_SIDE = 65_536  # pixels or windows

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


def activation_of(section: Section, default: str) -> str:
    """The name of a layer's activation; an unknown one is refused, never taken for linear."""
    name = section.text("activation", default)
    if name not in ACTIVATIONS:
        raise section.fault(
            f"has the unknown activation {name!r}; known are {', '.join(ACTIVATIONS)}", "activation"
        )
    return name


def strides_of(section: Section, default: int = 1) -> tuple[int, int]:
    """Vertical and horizontal stride."""
    stride = section.integer("stride", default, 1, MOST_SIDE)
    return section.integer("stride_y", stride, 1, MOST_SIDE), section.integer(
        "stride_x", stride, 1, MOST_SIDE
    )


Builder = Callable[[Section, Before], Layer]
