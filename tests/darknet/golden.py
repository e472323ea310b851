"""Reading the golden numbers and pictures of the shared folder."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.helpers.paths import shared


def picture(path: Path) -> Tensor:
    """A picture of the network's size as input: ``[1, 3, H, W]``, RGB, 0 to 1."""
    image = cv2.imread(str(path))
    assert image is not None, path
    return torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1)[None].float() / 255


def models() -> dict[str, Any]:
    return json.loads(shared("golden", "golden.json").read_text())


def layer_case(name: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Parameters and arrays of a case in golden/layers."""
    about = json.loads(shared("golden", "layers", f"{name}.json").read_text())
    with np.load(shared("golden", "layers", f"{name}.npz")) as arrays:
        return about, dict(arrays)


def set_epsilon(network: nn.Module, epsilon: float) -> None:
    """OpenCV adds 1e-6 to the variance where Darknet's GPU code, and this project, add 1e-5."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.eps = epsilon


def logistic(x: NDArray[Any]) -> NDArray[Any]:
    return 1.0 / (1.0 + np.exp(-x))
