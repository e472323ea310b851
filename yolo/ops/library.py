"""The operator library ``yolo::`` and its compiled half: absent is fine, broken is loud."""

import importlib

import torch

library = torch.library.Library("yolo", "DEF")


def load_extension() -> bool:
    """Load the compiled kernels if this installation has them.

    Raises:
        ImportError: They are here but do not load, say a CUDA build under a CPU-only torch.
    """
    try:
        importlib.import_module("yolo._C")
    except ModuleNotFoundError:
        return False  # every operator keeps its PyTorch reference
    return True


def has_kernel(name: str, device: str) -> bool:
    """Whether ``yolo::name`` has a compiled kernel for ``device``, "cpu" or "cuda"."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"yolo::{name}", device.upper())
