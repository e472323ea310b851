"""Packages that not everybody needs: imported when used, named with their extra when missing."""

import importlib
import importlib.util
from typing import Any

EXTRAS = {
    "onnx": "export",
    "google.protobuf.message": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
    "tensorrt": "tensorrt",
    "tensorrt_rtx": "tensorrt-rtx",
    "cudnn": "fused",
    "fastapi": "serve",
    "uvicorn": "serve",
}


def installed(name: str) -> bool:
    """Whether the package ``name`` can be imported."""
    return importlib.util.find_spec(name) is not None


def require(name: str) -> Any:
    """Import the package ``name``.

    Raises:
        ImportError: It is not installed; the message says how to get it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        install = f"'yolo-lightning[{EXTRAS[name]}]'" if name in EXTRAS else name
        raise ImportError(f"this needs the package {name}: pip install {install}") from error
