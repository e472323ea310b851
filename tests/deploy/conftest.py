"""Exports that several tests look at, made once."""

from pathlib import Path
from typing import Any

import pytest

from tests.deploy.making import dense_file, dynamic_file, engine_file, half_file, rtx_module, toy
from yolo.checkpoint import Model


@pytest.fixture(scope="session")
def model() -> Model:
    return toy()


@pytest.fixture(scope="session")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dynamic_file(tmp_path_factory)


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dense_file(tmp_path_factory)


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return half_file(tmp_path_factory)


@pytest.fixture(scope="session")
def rtx() -> Any:
    return rtx_module()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engine_file(tmp_path_factory)
