"""Start from trained weights: what fits is taken, what does not is named, what is frozen is shown."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from yolo.anchors import same_anchors
from yolo.checkpoint import AnyClassifier, load_any
from yolo.darknet import slots_of
from yolo.darknet.zoo import backbone_file, load_backbone
from yolo.models import Baseline, CenterNet, darknet_layers
from yolo.models import detector as models
from yolo.models.detector import Detector

Mode = Literal["finetune", "freeze_backbone", "head_only"]
Network = models.Network | AnyClassifier


@dataclass(frozen=True)
class Row:
    """One top-level part of the network in the table that training prints."""

    part: str
    loaded: int  # values taken from the source
    skipped: int  # values that keep their fresh start
    frozen: int  # values that training will not change


def _parts(network: Network) -> list[tuple[str, nn.Module]]:
    """The children of backbone and head, by their names in the state dict."""
    found: list[tuple[str, nn.Module]] = []
    for half, module in network.named_children():
        inner = [(f"{half}.{name}", child) for name, child in module.named_children()]
        found += inner or [(half, module)]
    return found


def _by_name(source: nn.Module, target: nn.Module) -> dict[str, Tensor]:
    theirs, ours = source.state_dict(), target.state_dict()
    return {
        name: theirs[name]
        for name, value in ours.items()
        if name in theirs and theirs[name].shape == value.shape
    }


def _by_order(source: nn.Module, target: nn.Module) -> dict[str, Tensor]:
    """Pair the layers in cfg order, so that a cfg-built network can feed a native one and the other way round."""
    names = {id(module): name for name, module in target.named_modules()}
    found: dict[str, Tensor] = {}
    for theirs, ours in zip(darknet_layers(source), darknet_layers(target), strict=False):
        found |= _paired(theirs, ours, names)
    return found


def _lent(source: nn.Module, target: nn.Module) -> dict[str, Tensor]:
    """What a classifier lends a detector: its layers in cfg order but the last, up to the first that does not fit."""
    names = {id(module): name for name, module in target.named_modules()}
    found: dict[str, Tensor] = {}
    for theirs, ours in zip(list(darknet_layers(source))[:-1], darknet_layers(target), strict=False):
        values = _paired(theirs, ours, names)
        if len(values) < sum(len(module.state_dict()) for module in ours if module is not None):
            break
        found |= values
    return found


def _paired(
    theirs: Sequence[nn.Module | None], ours: Sequence[nn.Module | None], names: Mapping[int, str]
) -> dict[str, Tensor]:
    """The values of one layer and its norm that fit."""
    found: dict[str, Tensor] = {}
    for one, other in zip(theirs, ours, strict=True):
        if one is None or other is None:
            continue
        state = other.state_dict()
        for name, value in one.state_dict().items():
            if name in state and state[name].shape == value.shape:
                found[f"{names[id(other)]}.{name}"] = value
    return found


def _read_alike(source: Network, target: Network) -> bool:
    """Whether the same raw outputs mean the same boxes and classes to both; those of classifiers always do."""
    if not isinstance(source, Detector) or not isinstance(target, Detector):
        return True
    readings = [
        [(spec.kind, spec.xy_scale, spec.softmax, spec.squared, spec.sqrt) for spec in detector.specs]
        for detector in (source, target)
    ]
    return readings[0] == readings[1] and same_anchors(source.specs, target.specs)


def start_from(
    weights: str, cfg: str | None, target: Network, mode: Mode = "finetune"
) -> tuple[list[Row], list[nn.Module]]:
    """:func:`transfer` from weights of any kind.

    Args:
        weights: As for :func:`yolo.checkpoint.load_any`, classifiers too; or a backbone file of Darknet
            (``darknet53.conv.74``), whose name says before which layer of the cfg it ends.
        cfg: Of a ``.weights`` file.
        target: Takes them.
        mode: See :func:`transfer`.
    """
    backbone = backbone_file(weights)
    if backbone is None:
        return transfer(load_any(weights, cfg).network, target, mode)
    _check_mode(mode)
    if isinstance(target, Baseline | CenterNet):
        raise ValueError(f"weights={weights} goes by the layers of a cfg, and this model has none")
    slots = [slot for slot in slots_of(target) if slot.layer < backbone.cutoff]
    load_backbone(slots, backbone)
    places = {id(tensor) for slot in slots for tensor in slot.tensors}
    taken = {name for name, value in target.state_dict(keep_vars=True).items() if id(value) in places}
    frozen = freeze(target, mode)
    return table(target, taken), frozen


def transfer(source: Network, target: Network, mode: Mode = "finetune") -> tuple[list[Row], list[nn.Module]]:
    """Copy every weight of ``source`` that has a place in ``target`` and freeze what ``mode`` says.

    Args:
        source: A classifier lends a detector its backbone.
        target: Takes them.
        mode: ``finetune`` trains everything, ``freeze_backbone`` leaves the backbone as it came, ``head_only`` trains
            nothing but the last layers.

    Returns:
        The table of what happened, and the modules whose batch norms must stay in evaluation mode.

    Raises:
        ValueError: Nothing fits: another architecture.
    """
    _check_mode(mode)
    same = (
        source.recipe is not None and target.recipe is not None and source.recipe.name == target.recipe.name
    )
    kinds = [type(network) for network in (source, target)]
    if isinstance(target, models.Network) and not isinstance(source, models.Network):
        taken = _lent(source, target)
    elif same or Baseline in kinds:  # torchvision's detectors share the names of their backbones
        taken = _by_name(source, target)
    elif CenterNet in kinds:
        taken = _lent(source, target)
    else:
        taken = _by_order(source, target)
    if not _read_alike(source, target):  # trained outputs would mean other boxes
        names = {id(part): name for name, part in target.named_modules()}
        fresh = tuple(f"{names[id(part)]}." for part in target.predictors)
        taken = {name: value for name, value in taken.items() if not name.startswith(fresh)}
    if not taken:
        raise ValueError("none of the weights fits this model: it is another architecture")
    with torch.no_grad():
        state = target.state_dict()
        for name, value in taken.items():
            state[name].copy_(value)
    frozen = freeze(target, mode)
    return table(target, taken), frozen


def _check_mode(mode: str) -> None:
    if mode not in get_args(Mode):
        raise ValueError(f"transfer={mode}: it is finetune, freeze_backbone or head_only")


def freeze(network: Network, mode: Mode) -> list[nn.Module]:
    """Take the gradient from what ``mode`` freezes; return the modules without any trainable weight."""
    if mode == "finetune":
        return []
    kept = {id(p) for part in network.predictors for p in part.parameters()}
    parts: list[nn.Module] = [network]  # of a classifier in any case: all but its last layer
    if mode == "freeze_backbone" and isinstance(network, models.Network):
        parts = [network.get_submodule(network.trunk)]
    for part in parts:
        for parameter in part.parameters():
            parameter.requires_grad_(id(parameter) in kept)
    predictors = {id(m) for part in network.predictors for m in part.modules()}
    return [
        module
        for part in parts
        for module in part.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and id(module) not in predictors
    ]


def table(network: Network, taken: Collection[str]) -> list[Row]:
    """Count per child of backbone and head what was loaded, skipped and frozen."""
    rows = []
    for part, module in _parts(network):
        values = {
            f"{part}.{name}": value
            for name, value in module.state_dict().items()
            if value.is_floating_point()
        }
        loaded = sum(value.numel() for name, value in values.items() if name in taken)
        total = sum(value.numel() for value in values.values())
        still = sum(p.numel() for p in module.parameters() if not p.requires_grad)
        rows.append(Row(part, loaded, total - loaded, still))
    return rows


def show(rows: list[Row]) -> None:
    """Print the table of :func:`transfer`."""
    grid = Table("part", "loaded", "skipped", "frozen", title="weights")
    for row in rows:
        grid.add_row(row.part, f"{row.loaded:,}", f"{row.skipped:,}", f"{row.frozen:,}")
    loaded, skipped, frozen = (
        sum(column) for column in zip(*[(r.loaded, r.skipped, r.frozen) for r in rows], strict=True)
    )
    grid.add_row("all", f"{loaded:,}", f"{skipped:,}", f"{frozen:,}")
    Console().print(grid)
