"""Published weights of torchvision's models from a file on this machine."""

import logging
import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

BACKBONES = ("", "backbone.", "backbone.body.")  # where the names of a file may stand in a detector
CONV4 = 23  # VGG-16: layers up to this one are SSD's ``features``, the next ones part of its ``extra``


def load_local(network: nn.Module, path: str) -> None:
    """Copy every tensor of a file that has a place of its name and shape in ``network``.

    Args:
        network: A detector of torchvision's, or a network with a backbone of torchvision's.
        path: A state dict that torchvision publishes, of a detector or of an ImageNet classifier.

    Raises:
        ValueError: The file is no state dict, or nothing in it fits.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file (weights are not downloaded)")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, LookupError, ValueError) as error:
        raise ValueError(f"{path}: not a file of weights that can be read safely") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path}: not a state dict of torchvision's: tensors by name are wanted")
    ours = network.state_dict()
    best: dict[str, Tensor] = {}
    for prefix in BACKBONES:
        placed = {prefix + _ssd_name(name, ours): value for name, value in state.items()}
        fits = {n: v for n, v in placed.items() if n in ours and ours[n].shape == v.shape}
        best = max(best, fits, key=len)
    if not best:
        raise ValueError(f"{path}: none of its weights fits this network")
    network.load_state_dict(best, strict=False)
    log.info("%s: %d of its %d tensors fit; %d of the network's %d are fresh",
             path, len(best), len(state), len(ours) - len(best), len(ours))  # fmt: skip


def _ssd_name(name: str, ours: dict[str, Tensor]) -> str:
    """Where SSD keeps the layers of a VGG-16 classifier that follow conv4_3."""
    part, _, rest = name.partition(".")
    number, _, what = rest.partition(".")
    if (
        part == "features"
        and number.isdecimal()
        and int(number) >= CONV4
        and "backbone.extra.0.1.weight" in ours
    ):
        return f"extra.0.{int(number) - CONV4}.{what}"
    return name
