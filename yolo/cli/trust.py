"""Which objects a config may make."""

import os
from collections.abc import Iterator
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from yolo.cli.check import UsageError

TRUSTED = ("yolo", "albumentations", "pytorch_lightning", "torch.optim", "torch.nn", "torchvision.transforms")


def check_targets(config: DictConfig) -> None:
    """Raise UsageError if an object of the config is not one that this package makes.

    A ``_target_`` is a call of anything that Python can import. Classes of the libraries that configs use and
    what is defined in this package are allowed, by where they are defined and not only by their dotted name
    (``yolo.cli.os.system`` is a name, too); YOLO_TRUST names further packages, separated by commas.
    """
    for key, target in _targets(OmegaConf.to_container(config), ""):
        name = OmegaConf.select(config, key) if "${" in str(target) else target
        if not isinstance(name, str) or not _is_trusted(name):
            raise UsageError(
                f"{key}={name} is refused: objects come from {', '.join(TRUSTED)}; "
                f"YOLO_TRUST=package in the environment adds one of yours"
            )


def _targets(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        if name == "_target_":
            yield f"{path}_target_", child
        yield from _targets(child, f"{path}{name}.")


def _is_trusted(name: str) -> bool:
    own = [
        f"{package.strip()}." for package in os.environ.get("YOLO_TRUST", "").split(",") if package.strip()
    ]
    if any(name.startswith(package) for package in own):
        return True
    package = next((package for package in TRUSTED if name.startswith(f"{package}.")), None)
    if package is None:
        return False
    found = hydra.utils.get_object(name)
    if package != "yolo" and not isinstance(found, type):
        return False
    return f"{found.__module__}.".startswith(f"{package}.")
