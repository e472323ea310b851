"""The same network for another number of classes."""

import re
from collections.abc import Iterator

import torch

from yolo.darknet.cfg import Section, parse_cfg
from yolo.darknet.network import CfgNetwork, build_text, classifier_end, predictor_of
from yolo.darknet.plan import Plan, plan


def with_classes(text: str, num_classes: int, source: str = "cfg") -> str:
    """The same cfg for another number of classes.

    ``classes=`` of every head and the outputs of the layer before it change, or the outputs of a classifier's
    last layer; all else, comments and line ends too, stays as it is. The same number gives the same text.

    Raises:
        ValueError: The cfg is wrong, or the number cannot be changed in it.
    """
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes}")
    before = plan(parse_cfg(text, source))
    if _classes(before) == {num_classes}:
        return text
    rows = text.splitlines(keepends=True)
    for section, key, value in _changes(before, num_classes):
        if key not in section:
            raise section.fault(f"has no {key}= to change")
        line = section.values[key].line - 1
        rows[line] = _with_value(rows[line], value)
    for head in before.heads:
        if "counters_per_class" in head.section:  # of the old classes
            line = head.section.values["counters_per_class"].line - 1
            rows[line] = f"# {rows[line]}"
    changed = "".join(rows)
    if _classes(plan(parse_cfg(changed, f"{source} with {num_classes} classes"))) != {num_classes}:
        raise ValueError(f"{source}: what its last layer puts out is no class each")
    return changed


def _classes(network: Plan) -> set[int]:
    """The class counts of the heads, or that of a classifier."""
    if not network.heads:
        return {network.layers[classifier_end(network)[0]].shape[0]}
    return {head.spec.num_classes for head in network.heads if head.spec is not None}


def _changes(before: Plan, num_classes: int) -> Iterator[tuple[Section, str, int]]:
    """Sections, keys and new values."""
    if not before.heads:
        last = before.layers[classifier_end(before)[1]].section
        yield last, "output" if last.kind == "connected" else "filters", num_classes
    for head in before.heads:
        assert head.spec is not None
        per_class = head.spec.side**2 if head.kind == "detection" else head.spec.num_anchors
        channels = head.spec.channels + per_class * (num_classes - head.spec.num_classes)
        below = before.layers[predictor_of(before, head)].section
        yield head.section, "classes", num_classes
        yield below, "output" if below.kind == "connected" else "filters", channels


def _with_value(row: str, value: int) -> str:
    found = re.fullmatch(r"(?s)([^=]*=\s*)([^#;\s]+)(.*)", row)
    assert found is not None, f"{row!r} is no key=value"
    return f"{found[1]}{value}{found[3]}"


def change_classes(source: CfgNetwork, num_classes: int) -> CfgNetwork:
    """The network for another number of classes, with all weights but those of the last layers."""
    text = with_classes(source.plan.cfg.text, num_classes, source.plan.cfg.source)
    target = build_text(text, source.header, source.plan.cfg.source)
    with torch.no_grad():
        for theirs, ours in zip(source.slots, target.slots, strict=True):
            for value, place in zip(theirs.tensors, ours.tensors, strict=True):
                if value.shape == place.shape:
                    place.copy_(value)
    return target
