"""What the functions that build the published networks share: recipes, anchors over heads, widths."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from yolo.models.classifier import Classifier
from yolo.models.detector import Detector, Network, Recipe
from yolo.models.initial import initialise, initialise_detector
from yolo.ops.heads import Anchors

PlainAnchors = Sequence[
    Sequence[float]
]  # as a config or a checkpoint has them: pairs of width and height, pixels

P = ParamSpec("P")
Built = TypeVar("Built", bound=Network | Classifier)
# arguments that name a file of this machine: what was loaded from it is in the checkpoint itself
LOCAL = ("weights",)


def published(function: Callable[P, Built]) -> Callable[P, Built]:
    """For a function that puts a network together: adds the recipe to build it again, and ours get first weights."""
    signature = inspect.signature(function)

    @wraps(function)
    def build(*args: P.args, **kwargs: P.kwargs) -> Built:
        network = function(*args, **kwargs)
        if isinstance(network, Detector):
            initialise_detector(network)
        elif isinstance(network, Classifier):
            initialise(network)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        network.recipe = Recipe(
            function.__name__,
            {name: plain(name, value) for name, value in bound.arguments.items() if name not in LOCAL},
        )
        return network

    return build


def plain(name: str, value: Any) -> Any:
    """``value`` in JSON types: sequences become lists."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence):
        return [plain(name, item) for item in value]
    raise ValueError(
        f"{name} must be numbers, text or lists of them to be stored in a checkpoint, got {value!r}"
    )


def share_anchors(
    given: PlainAnchors | None, default: Anchors, masks: Sequence[tuple[int, ...]], strides: Sequence[int]
) -> tuple[Anchors, list[tuple[int, ...]]]:
    """Which anchors there are and which of them each head has.

    Args:
        given: In place of ``default``, the published ones.
        masks: Published indices of each head, used when there are as many anchors as published.
        strides: Of the heads. Another number of anchors is divided evenly, the smallest to the finest stride.
    """
    if given is None:
        return default, list(masks)
    anchors = []
    for pair in given:
        if len(pair) != 2:
            raise ValueError(f"an anchor is a width and a height in pixels, got {list(pair)}")
        anchors.append((float(pair[0]), float(pair[1])))
    if len(anchors) == len(default):
        return tuple(anchors), list(masks)
    heads = len(strides)
    if not anchors or len(anchors) % heads:
        raise ValueError(
            f"the number of anchors must be a multiple of {heads}, the number of heads, got {len(anchors)}"
        )
    order = sorted(range(len(anchors)), key=lambda index: anchors[index][0] * anchors[index][1])
    each = len(anchors) // heads
    ranks = {stride: rank for rank, stride in enumerate(sorted(strides))}
    return tuple(anchors), [tuple(sorted(order[ranks[s] * each : (ranks[s] + 1) * each])) for s in strides]
