"""Exports that several tests look at, made once."""

from pathlib import Path

import pytest

from tests.deploy.making import RULE, toy, write
from yolo.checkpoint import Model
from yolo.deploy.build import Wanted

pytest.importorskip("onnx", reason="the extra 'export' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")
pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")


@pytest.fixture(scope="session")
def model() -> Model:
    return toy()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="session")
def dynamic(model: Model, folder: Path) -> Path:
    """Any batch and size, suppression inside."""
    path = folder / "dynamic.onnx"
    write(model, path, Wanted(rule=RULE))
    return path


@pytest.fixture(scope="session")
def dense(model: Model, folder: Path) -> Path:
    """Any batch at 64x96, every prediction."""
    path = folder / "dense.onnx"
    write(model, path, Wanted(size=(64, 96)))
    return path
