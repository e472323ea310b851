"""Networks built from a cfg: detectors like any other, and classifiers."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from yolo.darknet.cfg import parse_cfg
from yolo.darknet.graph import Backbone, Head, Predictor, build_modules, coarsest, neck_start, weighted
from yolo.darknet.heads import generation, loss_options
from yolo.darknet.layers import Locally, Softmax
from yolo.darknet.plan import Layer, Plan, plan
from yolo.darknet.weights import Header, Slot, batchnorm_slot, layer_slot
from yolo.models.detector import Detector, Recipe
from yolo.models.initial import PREDICTOR_STD, initialise, prior_bias

RECIPE = "darknet"  # the name under which checkpoints know these networks
FIXED = frozenset({"local", "connected", "crop"})  # layers that take one input size only
LOSS_LAYERS = frozenset({"softmax", "cost", "dropout"})  # at the end of a classifier


class CfgDetector(Detector):
    """A detector built from a cfg.

    Attributes:
        plan: Its layers.
        header: Version and images seen of the weights it came from.
        loss_options: Per head, what the cfg says of its training (:func:`yolo.darknet.heads.loss_options`).
        input_size: Height and width in ``[net]``.
        names: The text of the .names file that came with it.
    """

    def __init__(self, plan: Plan, header: Header) -> None:
        predictors = [predictor_of(plan, head) for head in plan.heads]
        modules = build_modules(plan)
        cut = neck_start(plan, min(predictors))
        outputs = [head.sources[0] for head in plan.heads]
        takes = _border(plan, cut)
        backbone = {index: module for index, module in modules.items() if index < cut}
        rest = {index: module for index, module in modules.items() if index >= cut}
        flat = [head.kind == "detection" for head in plan.heads]
        known = [index for index in predictors if plan.layers[index].kind in ("convolutional", "connected")]
        super().__init__(
            Backbone(plan, backbone, [-1], takes),
            Head(plan, rest, takes, outputs, flat, known),
            [head.spec for head in plan.heads if head.spec is not None],
            generation([head.section for head in plan.heads]),
            plan.input[1:] if any(layer.kind in FIXED for layer in plan.layers) else None,
        )
        self.plan = plan
        self.header = header
        self.input_size = plan.input[1:]
        self.loss_options = tuple(loss_options(head.section) for head in plan.heads)
        self.recipe = recipe_of(plan, header)
        self.names: str | None = None
        self.stride = coarsest(plan)  # what the deepest layer needs

    def check_size(self, height: int, width: int) -> None:
        """Raise ValueError if the network cannot take this input size; its one size need be no multiple."""
        if (height, width) != self.fixed_size:
            super().check_size(height, width)

    @property
    def slots(self) -> list[Slot]:
        """Where the numbers of a weights file go."""
        return network_slots(self.plan, self.backbone, self.head)

    def set_names(self, text: str) -> None:
        """Keep the text of a .names file, also in the recipe, so that it can be written again as it was."""
        self.names = text
        self.recipe = recipe_of(self.plan, self.header, text)


class CfgClassifier(nn.Module):
    """A network without heads: images to logits ``[N, C]``, or ``[N, C, H, W]`` if it ends in a map.

    The softmax, cost and dropout at its end are left out: they belong to the loss.
    """

    def __init__(self, plan: Plan, header: Header) -> None:
        super().__init__()
        last, predictor = classifier_end(plan)
        modules = {index: module for index, module in build_modules(plan).items() if index <= last}
        cut = neck_start(plan, predictor)
        takes = _border(plan, cut)
        flat = plan.layers[last].shape[1:] == (1, 1)
        self.backbone = Backbone(plan, {i: m for i, m in modules.items() if i < cut}, [-1], takes)
        known = [predictor] if plan.layers[predictor].kind in ("convolutional", "connected") else []
        self.head = Head(plan, {i: m for i, m in modules.items() if i >= cut}, takes, [last], [flat], known)
        self.plan = plan
        self.header = header
        self.input_size = plan.input[1:]
        self.num_classes = plan.layers[last].shape[0]
        self.recipe: Recipe | None = recipe_of(plan, header)
        self.names: str | None = None

    @property
    def slots(self) -> list[Slot]:
        """Where the numbers of a weights file go."""
        return network_slots(self.plan, self.backbone, self.head)

    def set_names(self, text: str) -> None:
        """Keep the text of a .names file, also in the recipe, so that it can be written again as it was."""
        self.names = text
        self.recipe = recipe_of(self.plan, self.header, text)

    @property
    def predictors(self) -> list[Predictor]:
        """The last layer with weights, as a detector has them."""
        return self.head.predictors

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.backbone(images))[0]
        return output

    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        """``[N, 3, H, W]`` to ``[N, C]`` through the softmax of the cfg, or a plain one where it has none."""
        ends = [layer for layer in self.plan.layers if layer.kind == "softmax"]
        softmax = ends[-1].make() if ends else Softmax()
        result: torch.Tensor = softmax(self(images))
        return result


CfgNetwork = CfgDetector | CfgClassifier


def recipe_of(plan: Plan, header: Header, names: str | None = None) -> Recipe:
    """What a checkpoint stores of a network built from a cfg: arguments of :func:`build_cfg`."""
    kept = {} if names is None else {"names": names}
    return Recipe(RECIPE, {"cfg": plan.cfg.text, "header": list(header), **kept})


def build_network(plan: Plan, header: Header = Header()) -> CfgNetwork:  # noqa: B008
    """The network of a plan, freshly initialised: a detector if it has heads, else a classifier."""
    if not plan.heads:
        classifier = CfgClassifier(plan, header)
        initialise(classifier)
        return classifier
    detector = CfgDetector(plan, header)
    initialise(detector)
    for head in plan.heads:
        module = detector.head.get_submodule("layers")[str(predictor_of(plan, head))]  # type: ignore[index]
        if plan.layers[predictor_of(plan, head)].kind in ("convolutional", "connected"):
            _start_at_prior(plan, head, weighted(module))
    return detector


def build_text(
    cfg: str, header: Sequence[int] = (0, 2, 5, 0), source: str = "cfg", names: str | None = None
) -> CfgNetwork:
    """The network of a cfg's text: what checkpoints and configs call.

    Args:
        cfg: The text.
        header: Major, minor, revision and images seen, as in the weights file it came from.
        source: Where the text comes from, for messages.
        names: The text of its .names file.

    Raises:
        ValueError: The cfg is wrong.
    """
    network = build_network(plan(parse_cfg(cfg, source)), Header(*header))
    if names is not None:
        network.set_names(names)
    return network


def build_cfg(
    cfg: str, header: Sequence[int] = (0, 2, 5, 0), source: str = "cfg", names: str | None = None
) -> CfgDetector:
    """:func:`build_text`, and ValueError unless it is a detector's."""
    network = build_text(cfg, header, source, names)
    if not isinstance(network, CfgDetector):
        raise ValueError(
            f"{source}: no [yolo], [region] or [detection] section: a classifier, not a detector"
        )
    return network


def build_classifier(
    cfg: str, header: Sequence[int] = (0, 2, 5, 0), source: str = "cfg", names: str | None = None
) -> CfgClassifier:
    """:func:`build_text`, and ValueError unless it is a classifier's."""
    network = build_text(cfg, header, source, names)
    if not isinstance(network, CfgClassifier):
        raise ValueError(f"{source}: this cfg has a detection head: a detector, not a classifier")
    return network


def classifier_end(plan: Plan) -> tuple[int, int]:
    """Of a network without heads: the layer that puts out the logits, and the last one with weights."""
    last = len(plan.layers) - 1
    while last > 0 and plan.layers[last].kind in LOSS_LAYERS:
        last = plan.layers[last].sources[0]
    return last, max(index for index in range(last + 1) if plan.layers[index].floats or not index)


def predictor_of(plan: Plan, head: Layer) -> int:
    """The layer that a head's numbers come from, dropout left aside."""
    index = head.sources[0]
    while index > 0 and plan.layers[index].kind == "dropout":
        index = plan.layers[index].sources[0]
    return index


def _border(plan: Plan, cut: int) -> list[int]:
    """Which outputs from before layer ``cut`` are read from it on."""
    return sorted({source for layer in plan.layers[cut:] for source in layer.sources if source < cut})


def _start_at_prior(plan: Plan, head: Layer, predictor: Predictor) -> None:
    """Small weights and the bias of a rare object, as for the native models."""
    activation = plan.layers[predictor_of(plan, head)].section.text("activation", "logistic")
    wanted = "logistic" if head.spec is not None and head.spec.squared else "linear"
    if head.spec is None or predictor.bias is None or activation != wanted:
        return
    std = 0.1 / predictor.weight[0].numel() ** 0.5 if head.kind == "detection" else PREDICTOR_STD
    nn.init.normal_(predictor.weight, std=std)
    with torch.no_grad():
        predictor.bias.copy_(prior_bias(head.spec))


def network_slots(plan: Plan, backbone: nn.Module, head: nn.Module) -> list[Slot]:
    """The layers of both halves as they lie in a weights file."""
    modules: Mapping[str, nn.Module] = {
        **dict(backbone.get_submodule("layers").named_children()),
        **dict(head.get_submodule("layers").named_children()),
    }
    slots = []
    for layer in plan.layers:
        if not layer.floats:
            continue
        module = modules[str(layer.index)]
        if isinstance(module, nn.BatchNorm2d):
            slots.append(batchnorm_slot(layer.index, layer.name, module))
        elif isinstance(module, Locally):
            slots.append(layer_slot(layer.index, layer.name, module.local, None))
        else:
            norm = module.get_submodule("norm")
            known = norm if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) else None
            slots.append(layer_slot(layer.index, layer.name, weighted(module), known))
    return slots
