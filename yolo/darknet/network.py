"""Networks built from a cfg: detectors like any other, and classifiers."""

import logging
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from yolo.darknet.cfg import parse_cfg
from yolo.darknet.heads import Shape, generation, loss_options
from yolo.darknet.keys import HEADS
from yolo.darknet.layers import Connected
from yolo.darknet.plan import Layer, Plan, plan
from yolo.darknet.weights import Header, Slot, batchnorm_slot, layer_slot
from yolo.models.detector import Detector, Recipe
from yolo.models.initial import initialise, prior_bias
from yolo.models.layers import Weighted

log = logging.getLogger(__name__)

RECIPE = "darknet"  # the name under which checkpoints know these networks
FIXED = frozenset({"local", "connected", "crop"})  # layers that take one input size only
SKIPPED_AT_END = frozenset({"softmax", "cost", "dropout"})  # what a classifier's loss does itself
PREDICTOR_STD = 0.01


class Graph(nn.Module):
    """A run of cfg layers, each reading the outputs of earlier ones.

    Args:
        layers: The modules by the index of their layer.
        sources: Which outputs each reads; -1 is the picture.
        takes: Indices of the outputs given to ``forward``, in order.
        gives: Indices of the outputs that it returns.
    """

    def __init__(
        self,
        layers: dict[int, nn.Module],
        sources: dict[int, tuple[int, ...]],
        takes: Sequence[int],
        gives: Sequence[int],
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(index): layer for index, layer in layers.items()})
        self.sources = sources
        self.takes, self.gives = tuple(takes), tuple(gives)
        readers = {source: index for index, read in sources.items() for source in read}  # the last one stays
        self.done = {
            index: tuple(s for s in set(read) if readers[s] == index and s not in self.gives)
            for index, read in sources.items()
        }

    def run(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Every output named by ``gives``; others are dropped as soon as nothing reads them any more."""
        outputs = dict(zip(self.takes, given, strict=True))
        for name, layer in self.layers.items():
            index = int(name)
            outputs[index] = layer(*(outputs[source] for source in self.sources[index]))
            for source in self.done[index]:
                del outputs[source]
        return [outputs[index] for index in self.gives]


class Backbone(Graph):
    """The layers before the first head's neck: images ``[N, C, H, W]`` to the maps that the rest reads."""

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.run([images])


class Head(Graph):
    """The rest of the layers, with what each ``[detection]``, ``[region]`` or ``[yolo]`` is given as output."""

    def __init__(
        self, layers: dict[int, nn.Module], sources: dict[int, tuple[int, ...]], takes: Sequence[int], gives: Sequence[int],
        flat: Sequence[bool],
    ) -> None:  # fmt: skip
        super().__init__(layers, sources, takes, gives)
        self.flat = tuple(flat)

    @property
    def predictors(self) -> list[Weighted]:
        """The convolution or linear layer under each head."""
        return [_weighted(self.layers[str(index)]) for index in self.gives if str(index) in self.layers]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        outputs = self.run(maps)
        return [x.flatten(1) if flat else x for x, flat in zip(outputs, self.flat, strict=True)]


def _weighted(module: nn.Module) -> Weighted:
    """The one layer with weights inside ``module``."""
    return cast(Weighted, module.linear if isinstance(module, Connected) else module.get_submodule("conv"))


class CfgDetector(Detector):
    """A detector built from a cfg.

    Attributes:
        plan: Its layers.
        header: Version and images seen of the weights it came from.
        loss_options: Per head, what the cfg says of its training (:func:`yolo.darknet.heads.loss_options`).
        input_size: Height and width in ``[net]``.
    """

    def __init__(self, plan: Plan, header: Header) -> None:
        modules, sources = _modules(plan)
        cut = neck_start(plan)
        outputs = [head.sources[0] for head in plan.heads]
        takes = sorted(
            {s for layer in plan.layers[cut:] if layer.kind not in HEADS for s in layer.sources if s < cut}
            | {index for index in outputs if index < cut}
        )
        super().__init__(
            Backbone({i: m for i, m in modules.items() if i < cut}, sources, [-1], takes),
            Head(
                {i: m for i, m in modules.items() if i >= cut}, sources, takes, outputs,
                [head.kind == "detection" for head in plan.heads],
            ),
            [head.spec for head in plan.heads if head.spec is not None],
            generation([head.section for head in plan.heads]),
            plan.input[1:] if any(layer.kind in FIXED for layer in plan.layers) else None,
        )  # fmt: skip
        self.plan = plan
        self.header = header
        self.input_size = plan.input[1:]
        self.loss_options = tuple(loss_options(head.section) for head in plan.heads)
        self.recipe = Recipe(RECIPE, {"cfg": plan.cfg.text, "header": list(header)})
        self._stride = coarsest(plan)

    @property
    def stride(self) -> int:
        """Height and width of an input must be multiples of this: of what the deepest layer needs."""
        return self._stride

    @property
    def slots(self) -> list[Slot]:
        """Where the numbers of a weights file go."""
        return _slots(self.plan, {**self.backbone.layers, **self.head.layers})  # type: ignore[dict-item]


class CfgClassifier(nn.Module):
    """A network without heads, as a classifier: images to logits ``[N, C]``; a map ``[N, C, H, W]`` if it ends in one.

    The softmax, cost and dropout at its end are left out: they belong to the loss.
    """

    def __init__(self, plan: Plan, header: Header) -> None:
        super().__init__()
        modules, sources = _modules(plan)
        last = len(plan.layers) - 1
        while plan.layers[last].kind in SKIPPED_AT_END and last > 0:
            last = plan.layers[last].sources[0]
        cut = _end_of_backbone(plan, last)
        kept = {index: module for index, module in modules.items() if index <= last}
        takes = sorted({s for layer in plan.layers[cut : last + 1] for s in layer.sources if s < cut})
        self.backbone = Backbone({i: m for i, m in kept.items() if i < cut}, sources, [-1], takes)
        self.head = Head(
            {i: m for i, m in kept.items() if i >= cut},
            sources,
            takes,
            [last],
            [plan.layers[last].shape[1:] == (1, 1)],
        )
        self.plan = plan
        self.header = header
        self.input_size = plan.input[1:]
        self.num_classes = plan.layers[last].shape[0]
        self.recipe: Recipe | None = Recipe(RECIPE, {"cfg": plan.cfg.text, "header": list(header)})

    @property
    def slots(self) -> list[Slot]:
        """Where the numbers of a weights file go."""
        return _slots(self.plan, {**self.backbone.layers, **self.head.layers})  # type: ignore[dict-item]

    def forward(self, images: Tensor) -> Tensor:
        (output,) = self.head(self.backbone(images))
        return output


CfgNetwork = CfgDetector | CfgClassifier


def build_network(plan: Plan, header: Header = Header()) -> CfgNetwork:  # noqa: B008
    """The network of a plan, freshly initialised: a detector if it has heads, else a classifier."""
    for note in plan.cfg.notes:
        log.info("%s: %s", plan.cfg.source, note)
    if not plan.heads:
        classifier = CfgClassifier(plan, header)
        initialise(classifier)
        return classifier
    detector = CfgDetector(plan, header)
    initialise(detector)
    for head, predictor in zip(plan.heads, detector.head.predictors, strict=False):
        _start_at_prior(head, predictor)
    return detector


def build_cfg(cfg: str, header: Sequence[int] = (0, 2, 5, 0), source: str = "cfg") -> CfgDetector:
    """The detector of a cfg's text: what checkpoints and configs call.

    Args:
        cfg: The text.
        header: Major, minor, revision and images seen, as in the weights file it came from.
        source: Where the text comes from, for messages.

    Raises:
        ValueError: The cfg is wrong, or describes a network without a detection head.
    """
    network = build_network(plan(parse_cfg(cfg, source)), Header(*header))
    if not isinstance(network, CfgDetector):
        raise ValueError(
            f"{source}: this cfg has no [yolo], [region] or [detection] section: a classifier, not a detector"
        )
    return network


def neck_start(plan: Plan) -> int:
    """The first layer that belongs to the first head rather than to the backbone.

    Counted back from the first head as long as one convolution simply follows another at the same size: in
    yolov3.cfg that is layer 74, Darknet's own cut.
    """
    return _end_of_backbone(plan, plan.heads[0].sources[0])


def _end_of_backbone(plan: Plan, predictor: int) -> int:
    index = max(predictor, 0)
    while index > 0 and _follows(plan.layers[index - 1], plan):
        index -= 1
    return index if index > 0 else max(predictor, 0)


def _follows(layer: Layer, plan: Plan) -> bool:
    above = plan.layers[layer.index - 1].kind if layer.index else ""
    plain = layer.kind in ("convolutional", "local", "connected", "dropout") and layer.sources == (
        layer.index - 1,
    )
    return plain and above != "" and layer.shape[1:] == layer.inputs[1:]


def coarsest(plan: Plan) -> int:
    """Pixels of input per position of the smallest map that still grows with the input."""
    fixed = next(
        (layer.index for layer in plan.layers if layer.kind in FIXED | {"avgpool"}), len(plan.layers)
    )
    strides = [max(1, -(-plan.input[1] // layer.shape[1])) for layer in plan.layers[:fixed]]
    heads = [round(head.spec.stride) for head in plan.heads if head.spec is not None]
    return max(heads) if fixed < len(plan.layers) else max([*strides, *heads])


def _start_at_prior(head: Layer, predictor: Weighted) -> None:
    """Small weights and the bias of a rare object, as for the native models."""
    if head.spec is None or head.spec.squared or predictor.bias is None:
        return
    std = 0.1 / predictor.weight[0].numel() ** 0.5 if head.kind == "detection" else PREDICTOR_STD
    nn.init.normal_(predictor.weight, std=std)
    with torch.no_grad():
        predictor.bias.copy_(prior_bias(head.spec))


def _modules(plan: Plan) -> tuple[dict[int, nn.Module], dict[int, tuple[int, ...]]]:
    """A module for every layer but heads and costs, and what each reads (through the layers left out)."""
    modules: dict[int, nn.Module] = {}
    sources: dict[int, tuple[int, ...]] = {}
    for layer in plan.layers:
        if layer.kind in HEADS:
            continue
        module = layer.make()
        if layer.lender is not None:
            _share(module, modules[layer.lender])
        modules[layer.index] = module
        sources[layer.index] = layer.sources
    return modules, sources


def _share(module: nn.Module, lender: nn.Module) -> None:
    """Give ``module`` the weights and the batch norm of ``lender`` (``share_index``)."""
    mine, theirs = module.get_submodule("conv"), lender.get_submodule("conv")
    mine.weight, mine.bias = theirs.weight, theirs.bias
    module.register_module("norm", lender.get_submodule("norm"))


def _slots(plan: Plan, modules: dict[str, nn.Module]) -> list[Slot]:
    slots = []
    for layer in plan.layers:
        if not layer.floats:
            continue
        module = modules[str(layer.index)]
        if layer.kind == "batchnorm":
            slots.append(batchnorm_slot(layer.index, layer.name, cast(nn.BatchNorm2d, module)))
            continue
        weighted = module.local if layer.kind == "local" else _weighted(module)
        norm = None if layer.kind == "local" else module.norm
        slots.append(
            layer_slot(
                layer.index,
                layer.name,
                cast(Weighted, weighted),
                norm if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) else None,
            )
        )
    return slots


def shape_of(network: CfgNetwork) -> Shape:
    """Channels, height and width that ``[net]`` asks for."""
    return network.plan.input
