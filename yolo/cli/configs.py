"""The config files of the tools: where they are, how Hydra composes them, what may be chosen."""

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig


def folder() -> Path:
    """Where the configs are: beside the package in a source tree, inside it once installed."""
    spec = importlib.util.find_spec("yolo.configs")
    found = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(found[0]) if found else Path(__file__).resolve().parents[2] / "configs"


def _initialized() -> AbstractContextManager[Any]:
    return hydra.initialize_config_dir(str(folder()), version_base="1.3")


def compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """The config with its groups filled in and its values as ``overrides`` say."""
    with _initialized():
        return hydra.compose(config_name, list(overrides))


def choices(group: str) -> list[str]:
    """The files of a group and of the groups below it."""
    with _initialized():
        loader = GlobalHydra.instance().config_loader()
        nested = [
            f"{below}/{name}"
            for below in loader.list_groups(group)
            for name in loader.get_group_options(f"{group}/{below}")
        ]
        return sorted([*loader.get_group_options(group), *nested])


def chosen(config_name: str, overrides: Sequence[str] = ()) -> dict[str, str | None]:
    """The groups of a config and which file of each is taken."""
    with _initialized():
        loader = GlobalHydra.instance().config_loader()
        taken = loader.load_configuration(config_name, list(overrides), RunMode.RUN).hydra.runtime.choices
    return {str(name): choice for name, choice in taken.items() if not str(name).startswith("hydra/")}


def read(name: str) -> str:
    """The text of ``configs/<name>.yaml``."""
    return (folder() / f"{name}.yaml").read_text("utf-8")
