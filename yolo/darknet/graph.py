"""Runs the layers of a plan: each reads the outputs of earlier ones."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from yolo.darknet.keys import HEADS
from yolo.darknet.layers import Connected, Convolutional
from yolo.darknet.plan import Plan
from yolo.models.layers import ConvBnAct

Predictor = nn.Conv2d | nn.Linear


class Graph(nn.Module):
    """Some of the layers of a plan.

    Args:
        plan: Of the whole network.
        modules: The layers of this part by their index, in order.
        takes: Indices of the outputs given to ``forward``; -1 is the picture.
        gives: Indices of the outputs that it returns.
    """

    def __init__(
        self, plan: Plan, modules: Mapping[int, nn.Module], takes: Sequence[int], gives: Sequence[int]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(index): module for index, module in modules.items()})
        self.takes, self.gives = tuple(takes), tuple(gives)
        self.sources = {index: plan.layers[index].sources for index in modules}
        last_reader = {source: index for index, read in self.sources.items() for source in read}
        self.done = {
            index: [s for s in set(read) if last_reader[s] == index and s not in self.gives]
            for index, read in self.sources.items()
        }

    def run(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Every output named by ``gives``; others are dropped as soon as nothing reads them any more."""
        outputs = dict(zip(self.takes, given, strict=True))
        for (index, sources), layer in zip(self.sources.items(), self.layers.values(), strict=True):
            outputs[index] = layer(*(outputs[source] for source in sources))
            for source in self.done[index]:
                del outputs[source]
        return [outputs[index] for index in self.gives]


class Backbone(Graph):
    """The layers before the first head's neck: images ``[N, C, H, W]`` to the maps that the rest reads."""

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.run([images])


class Head(Graph):
    """The rest of the layers: the maps of the backbone to the outputs of the network.

    Args:
        plan: Of the whole network.
        modules: The layers of this part by their index, in order.
        takes: Indices of the maps.
        gives: Indices of the outputs.
        flat: Which outputs are vectors ``[N, C]`` rather than maps.
        predictors: Indices of the layers with weights that the outputs come from.
    """

    def __init__(
        self,
        plan: Plan,
        modules: Mapping[int, nn.Module],
        takes: Sequence[int],
        gives: Sequence[int],
        flat: Sequence[bool],
        predictors: Sequence[int] = (),
    ) -> None:
        super().__init__(plan, modules, takes, gives)
        self.flat = tuple(flat)
        self.last = tuple(predictors)

    @property
    def predictors(self) -> list[Predictor]:
        """The convolution or linear layer under each output."""
        return [weighted(self.layers[str(index)]) for index in self.last]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        outputs = self.run(maps)
        return [x.flatten(1) if flat else x for x, flat in zip(outputs, self.flat, strict=True)]


def weighted(module: nn.Module) -> Predictor:
    """The one convolution or linear layer inside ``module``."""
    if isinstance(module, Connected):
        return module.linear
    assert isinstance(module, ConvBnAct | Convolutional), f"{type(module).__name__} has no convolution"
    return module.conv


def build_modules(plan: Plan) -> dict[int, nn.Module]:
    """A module for every layer but the heads."""
    modules: dict[int, nn.Module] = {}
    for layer in plan.layers:
        if layer.kind in HEADS:
            continue
        module = layer.make()
        if layer.lender is not None:  # share_index
            mine, theirs = weighted(module), weighted(modules[layer.lender])
            mine.weight, mine.bias = theirs.weight, theirs.bias
            module.register_module("norm", modules[layer.lender].get_submodule("norm"))
        modules[layer.index] = module
    return modules


def neck_start(plan: Plan, predictor: int) -> int:
    """The first layer that belongs to the neck of ``predictor`` rather than to the backbone.

    Counted back from the predictor as long as one convolution simply follows another at the same size: in
    yolov3.cfg that is layer 75, the first after Darknet-53.
    """
    index = predictor
    while index > 1 and _follows(plan, index - 1):
        index -= 1
    return index if index > 1 else max(predictor, 0)


def _follows(plan: Plan, index: int) -> bool:
    layer = plan.layers[index]
    plain = layer.kind in ("convolutional", "local", "connected", "dropout")
    return plain and layer.sources == (index - 1,) and layer.shape[1:] == layer.inputs[1:]


def coarsest(plan: Plan) -> int:
    """Pixels of input per position of the smallest map in the network."""
    maps = [-(-plan.input[1] // layer.shape[1]) for layer in plan.layers if layer.shape[1] > 1]
    heads = [round(head.spec.stride) for head in plan.heads if head.spec is not None]
    return max([1, *maps, *heads])
