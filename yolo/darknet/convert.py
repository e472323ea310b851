"""Files to networks and back: the functions behind ``tools/darknet.py`` and every ``weights=x.weights``."""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from yolo.darknet.cfg import Cfg, decode, encode, parse_cfg, read_cfg
from yolo.darknet.classes import with_classes
from yolo.darknet.network import (
    CfgClassifier,
    CfgDetector,
    CfgNetwork,
    build_network,
    build_text,
)
from yolo.darknet.plan import Plan, plan
from yolo.darknet.template import cfg_text
from yolo.darknet.weights import (
    Header,
    Slot,
    check_count,
    load_weights,
    native_slots,
    read_header,
    save_weights,
)
from yolo.models.classifier import Classifier
from yolo.models.detector import Detector

log = logging.getLogger(__name__)

NATIVE_SIZE = (416, 416)  # for the cfg of a native network whose picture size nobody says


def find_cfg(weights: Path) -> Path:
    """The cfg of the same stem beside a weights file, also without what Darknet's training appends.

    Raises:
        ValueError: There is none, with the names that were tried.
    """
    shorter = re.sub(r"(_final|_last|_best|_\d+)$", "", weights.stem)
    tried = [weights.with_name(f"{stem}.cfg") for stem in dict.fromkeys((weights.stem, shorter))]
    for path in tried:
        if path.is_file():
            return path
    raise ValueError(
        f"{weights}: no {' or '.join(path.name for path in tried)} beside it, name the cfg with cfg="
    )


def parse_names(text: str) -> list[str]:
    """The names in a .names file: one a line, empty lines at the end left out."""
    rows = [row.strip() for row in text.splitlines()]
    while rows and not rows[-1]:
        rows.pop()
    return rows


def find_names(beside: Path, num_classes: int) -> Path | None:
    """The .names file beside ``beside`` with as many names; of several the one of the same stem, or none."""
    found = [path for path in sorted(beside.parent.glob("*.names")) if len(_names(path)) == num_classes]
    own = [path for path in found if path.stem == beside.stem]
    if own or len(found) == 1:
        return (own or found)[0]
    return None


def _names(path: Path) -> list[str]:
    return parse_names(decode(path.read_bytes()))


def class_names(network: CfgNetwork) -> list[str]:
    """The names that came with a network, or ``class0``, ``class1`` and so on."""
    names = parse_names(network.names or "")
    if len(names) == network.num_classes:
        return names
    return [f"class{index}" for index in range(network.num_classes)]


def import_network(
    cfg: Path, weights: Path | None = None, names: Path | None = None, cutoff: int | None = None
) -> CfgNetwork:
    """Build the network of a cfg and fill it from a weights file.

    Args:
        cfg: The .cfg file.
        weights: The .weights file; None leaves the network fresh.
        names: The .names file; None looks for one beside the cfg, then beside the weights.
        cutoff: Load only the layers before this index.

    Raises:
        ValueError: A file is wrong, or they do not fit together; nothing has been allocated by then.
    """
    layers = plan(parse_cfg(read_cfg(cfg), str(cfg)))
    header = Header()
    if weights is not None:
        header = read_header(weights)
        counts = [(layer.index, layer.name, layer.floats) for layer in layers.layers if layer.floats]
        check_count(weights, header, counts, cutoff)
    network = build_network(layers, header)
    _report(layers)
    if names is None:
        places = [path for path in (cfg, weights) if path is not None]
        names = next(filter(None, (find_names(path, network.num_classes) for path in places)), None)
    elif len(_names(names)) != network.num_classes:
        raise ValueError(f"{names} has {len(_names(names))} names, the cfg has {network.num_classes} classes")
    if names is not None:
        network.set_names(decode(names.read_bytes()))
    if weights is not None:
        load_weights(network.slots, weights, cutoff)
    return network


def load_darknet(
    weights: Path, cfg: Path | None = None, names: Path | None = None, cutoff: int | None = None
) -> tuple[CfgDetector, list[str]]:
    """A detector and its class names from Darknet files; the cfg is looked for beside the weights.

    Raises:
        ValueError: As :func:`import_network`, or the cfg is a classifier's.
    """
    cfg = find_cfg(weights) if cfg is None else cfg
    network = import_network(cfg, weights, names, cutoff)
    if isinstance(network, CfgClassifier):
        raise ValueError(f"{cfg}: no [yolo], [region] or [detection] section: a classifier, not a detector")
    return network, class_names(network)


def from_cfg(cfg: str, num_classes: int | None = None) -> CfgNetwork:
    """A fresh network from a .cfg file, as a model to train.

    Args:
        cfg: Path of the file.
        num_classes: Rewrites the cfg to this many classes (:func:`with_classes`); None keeps it.
    """
    text = read_cfg(cfg)
    network = build_text(text if num_classes is None else with_classes(text, num_classes, cfg), source=cfg)
    _report(network.plan)
    return network


def _report(plan: Plan) -> None:
    """Say what of a cfg was read without effect."""
    for note in plan.cfg.notes:
        log.info("%s: %s", plan.cfg.source, note)


def native_plan(network: Detector | Classifier, size: tuple[int, int] | None = None) -> Plan:
    """The plan of a network of :mod:`yolo.models`, by way of the cfg that is written for it.

    Args:
        network: Any that :func:`yolo.darknet.template.cfg_text` knows.
        size: Height and width for ``[net]``.
    """
    fixed = network.fixed_size if isinstance(network, Detector) else None
    return plan(parse_cfg(cfg_text(network, size or fixed or NATIVE_SIZE), "the written cfg"))


def slots_of(network: nn.Module) -> list[Slot]:
    """Where the numbers of a weights file go, in a network built from a cfg or a native one, by cfg index."""
    if isinstance(network, CfgDetector | CfgClassifier):
        return network.slots
    slots = native_slots(network)
    if not isinstance(network, Detector | Classifier) or network.recipe is None:
        return slots
    layers = [layer for layer in native_plan(network).layers if layer.floats]
    return [
        slot._replace(layer=layer.index, name=layer.name) for slot, layer in zip(slots, layers, strict=True)
    ]


def load_into(network: nn.Module, weights: Path | str, cutoff: int | None = None) -> Header:
    """Fill a network, native or built from a cfg, from a weights file of the same layers."""
    return load_weights(slots_of(network), weights, cutoff)


def export_network(
    network: Detector | Classifier | CfgClassifier,
    classes: Sequence[str],
    folder: Path,
    stem: str,
    size: tuple[int, int] | None = None,
    header: Header | None = None,
) -> list[Path]:
    """Write ``stem.cfg``, ``stem.weights`` and ``stem.names``.

    A network that came from a cfg gives that text back, byte for byte, and the header of its weights.

    Args:
        network: Native or built from a cfg.
        classes: Names.
        folder: Made if it is not there.
        stem: Of the three files.
        size: Height and width for the cfg of a native network.
        header: Instead of the one that the weights came with.

    Returns:
        The three paths.

    Raises:
        ValueError: The network has no Darknet form, or the names do not fit it.
    """
    if len(classes) != network.num_classes:
        raise ValueError(f"{len(classes)} names were given for {network.num_classes} classes")
    names = "".join(f"{name}\n" for name in classes)
    if isinstance(network, CfgDetector | CfgClassifier):
        cfg, kept = network.plan.cfg, network.header
        if network.names is not None and parse_names(network.names) == list(classes):
            names = network.names
    else:
        cfg, kept = native_plan(network, size).cfg, Header()
    slots = slots_of(network)
    _check_same_layers(cfg, slots)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{stem}.{ending}" for ending in ("cfg", "weights", "names")]
    _write(paths[0], encode(cfg.text))
    save_weights(slots, paths[1], header or kept)
    _write(paths[2], encode(names))
    return paths


def _check_same_layers(cfg: Cfg, slots: Sequence[Slot]) -> None:
    wanted = [layer.floats for layer in plan(cfg).layers if layer.floats]
    found = [slot.floats for slot in slots]
    if wanted != found:
        raise ValueError(f"the network holds {sum(found)} numbers, its cfg describes {sum(wanted)}")


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
