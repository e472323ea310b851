"""What is wrong with a command line, in one sentence."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from yolo.cli.configs import choices, chosen, compose


class UsageError(ValueError):
    """The command line asks for something that does not exist."""


def check(config_name: str, overrides: Sequence[str]) -> None:
    """Raise UsageError unless every override changes an option that exists, to a value of its kind."""
    parsed = [_parse(override) for override in overrides]
    groups = chosen(config_name)
    for one in parsed:
        if one.key_or_group in groups:
            _check_choice(one)
    base = compose(config_name, [one.input_line or "" for one in parsed if one.key_or_group in groups])
    for one in parsed:
        if one.key_or_group not in groups:
            _check_one(one, base, groups)
    given = {one.key_or_group for one in parsed} - groups.keys()  # a choice does not give what it leaves open
    missing = [key for key in _keys(base) if _is_missing(base, key) and not _covered(key, given)]
    if missing:
        raise UsageError(
            f"{', '.join(f'{key}=...' for key in sorted(missing))} must be given (--help shows an example)"
        )


def _parse(override: str) -> Override:
    """One override, or a sentence that shows how to quote it."""
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        key, equals, value = override.partition("=")
        if not equals:
            raise UsageError(f"{override!r} is no option: options are written key=value") from error
        escaped = value.strip("'\"").replace("\\", "\\\\").replace("'", "\\'")
        raise UsageError(
            f"the value of {override} needs quotes, for the shell and for Hydra: \"{key}='{escaped}'\""
        ) from error


def _check_choice(override: Override) -> None:
    group, choice = override.key_or_group, override.value()
    known = choices(group)
    if isinstance(choice, str) and choice not in known:
        raise UsageError(f"no {group}={choice}{_nearest(choice, known, f'{group}=')}")


def _check_one(override: Override, base: DictConfig, groups: Collection[str]) -> None:
    key = override.key_or_group
    if key.startswith("hydra/"):
        return  # a group of Hydra's: it names the choices itself
    if key.startswith("hydra.") or key == "hydra":
        _check_hydra(key)
        return
    known = list(_keys(base))
    if key not in known:
        adds = override.is_add() or override.is_force_add()
        if adds and _takes_keywords(base, key):
            return  # the constructor that reads it refuses what it does not know
        raise UsageError(f"no option {key!r}{_nearest(key, [*known, *groups])}")
    if override.is_delete():
        return
    if override.is_sweep_override():
        value = (override.input_line or "").partition("=")[2]
        raise UsageError(
            f"{key}={value} would be several runs: write {key}=[{value}] for a list, or add --multirun"
        )
    _check_kind(key, OmegaConf.select(base, key, throw_on_missing=False), override.value())


def _check_kind(key: str, before: Any, value: Any) -> None:
    """Numbers stay numbers (or the word auto) and switches stay switches; constructors judge the rest."""
    if isinstance(before, DictConfig) and value is not None and not isinstance(value, dict):
        raise UsageError(f"{key} is a group of options ({', '.join(map(str, before))}), got {value!r}")
    if not isinstance(value, str) or value.startswith("${"):
        return
    if isinstance(before, bool):
        raise UsageError(f"{key} is true or false, got {value!r}")
    if isinstance(before, int | float) and value != "auto":
        raise UsageError(f"{key} is a number (now {before}), got {value!r}")


def _check_hydra(key: str) -> None:
    """Hydra takes unknown keys below ``hydra`` without a word."""
    node: Any = OmegaConf.structured(HydraConf)
    path = "hydra"
    for part in key.split(".")[1:]:
        if not OmegaConf.is_dict(node) or OmegaConf.get_type(node) is dict:
            return  # a free mapping
        names = [str(name) for name in node]
        if part not in names:
            raise UsageError(f"no option '{path}.{part}'{_nearest(part, names, f'{path}.')}")
        node, path = OmegaConf.select(node, part, throw_on_missing=False), f"{path}.{part}"


def _nearest(key: str, known: Sequence[str], prefix: str = "") -> str:
    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, key, candidate).ratio()
        last = difflib.SequenceMatcher(None, key.split(".")[-1], candidate.split(".")[-1]).ratio()
        return max(whole, 0.9 * last)

    best = sorted(known, key=likeness, reverse=True)[:1]
    return f"; the nearest is '{prefix}{best[0]}' (--help lists all)" if best else ""


def _keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of every node of a config."""
    for name in node:
        path = f"{prefix}{name!s}"
        yield path
        if OmegaConf.is_missing(node, str(name)) or OmegaConf.is_interpolation(node, str(name)):
            continue
        child = node[name]
        if isinstance(child, DictConfig):
            yield from _keys(child, f"{path}.")
        elif OmegaConf.is_list(child):
            yield from (f"{path}.{index}" for index in range(len(child)))


def _is_missing(base: DictConfig, key: str) -> bool:
    """Whether the value of a dotted key is ``???``; other values may exist only in a run and are not read."""
    above, _, name = key.rpartition(".")
    node = OmegaConf.select(base, above) if above else base
    return isinstance(node, DictConfig) and OmegaConf.is_missing(node, name)


def _takes_keywords(base: DictConfig, key: str) -> bool:
    """Whether the node directly above ``key`` is the arguments of a constructor."""
    above = OmegaConf.select(base, key.rpartition(".")[0]) if "." in key else None
    return isinstance(above, DictConfig) and "_target_" in above


def _covered(key: str, given: set[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in given)
