"""One way from a path to something that detects."""

from pathlib import Path
from typing import Literal

import torch

from yolo.checkpoint import AnyModel, Model, load_any, load_model
from yolo.deploy.extras import require
from yolo.deploy.graph import Suppression
from yolo.deploy.metadata import ENGINES
from yolo.deploy.run_network import NetworkRuntime
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_tensorrt import TensorRTRuntime
from yolo.deploy.run_torch import Mode, Precision, TorchRuntime
from yolo.deploy.runtime import Runtime
from yolo.models.detector import Detector

Kind = Literal["pytorch", "onnx", "engine"]


def kind_of(path: Path | str) -> Kind:
    """What a file is, by its name; everything but exports goes to :func:`yolo.checkpoint.load_model`."""
    suffix = Path(path).suffix.lower()
    if suffix == ".onnx":
        return "onnx"
    return "engine" if suffix in ENGINES else "pytorch"


def load_detector(
    path: Path | str,
    rule: Suppression | None = None,
    *,
    device: torch.device | str = "auto",
    precision: Precision = "fp32",
    mode: Mode = "eager",
    autotune: bool = False,
    cfg: Path | str | None = None,
    download: bool = False,
) -> Runtime:
    """A detector from a checkpoint, Darknet weights, an ONNX file or an engine.

    Args:
        path: What it is goes by the name: ``.onnx``, ``.engine`` or ``.plan``; else as for
            :func:`yolo.checkpoint.load_model`.
        rule: Suppression of the results; None for what the file says, or the usual.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        precision: Of a PyTorch network; exported files have theirs.
        mode: Of a PyTorch network: eager, compiled or graph.
        autotune: See :class:`yolo.deploy.run_torch.TorchRuntime`.
        cfg: Of a ``.weights`` file.
        download: Fetch published weights that are not in the cache yet.

    Raises:
        ValueError: The file is not what its name says, or cannot run here; one line.
    """
    kind = kind_of(path)
    where = _device(device, kind)
    if kind == "pytorch":
        model = load_model(path, cfg, download)
        if not isinstance(model.detector, Detector) and (precision, mode) == ("fp32", "eager"):
            return NetworkRuntime(model, rule, device=where)
        return TorchRuntime(model, rule, device=where, precision=precision, mode=mode, autotune=autotune)
    if precision != "fp32" or mode != "eager":
        raise ValueError(
            f"{path}: precision and mode of an exported file are fixed, got {precision} and {mode}"
        )
    if kind == "onnx":
        return OnnxRuntime(Path(path), rule, device=where)
    return TensorRTRuntime(Path(path), rule, device=where)


def open_model(
    weights: Path | str,
    cfg: Path | str | None = None,
    download: bool = False,
    *,
    device: torch.device | str = "auto",
) -> Model | Runtime:
    """A detector for evaluation and prediction: a model where it is PyTorch's, else a runtime.

    Args:
        weights: As for :func:`load_detector`.
        cfg: Of a ``.weights`` file.
        download: Fetch published weights that are not in the cache yet.
        device: Where an exported file runs.
    """
    if kind_of(weights) == "pytorch":
        return load_model(weights, cfg, download)
    return load_detector(weights, device=device)


def open_any(
    weights: Path | str,
    cfg: Path | str | None = None,
    download: bool = False,
    *,
    device: torch.device | str = "auto",
) -> AnyModel | Runtime:
    """:func:`open_model`, classifiers too."""
    if kind_of(weights) == "pytorch":
        return load_any(weights, cfg, download)
    return load_detector(weights, device=device)


def _device(device: torch.device | str, kind: Kind) -> torch.device:
    if isinstance(device, torch.device) or device != "auto":
        return torch.device(device)
    if kind == "engine":
        return torch.device("cuda")
    if kind == "onnx":  # the plain onnxruntime wheel has no CUDA
        have = require("onnxruntime").get_available_providers()
        return torch.device(
            "cuda" if "CUDAExecutionProvider" in have and torch.cuda.is_available() else "cpu"
        )
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
