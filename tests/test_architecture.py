"""Imports point one way, and the list of packages in pyproject.toml is the disk's."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Each layer may import itself and what stands in an earlier row; layers of one row do not know each other.
LAYERS = [
    {"types", "cli", "looks", "__main__"},
    {"ops"},
    {"models"},
    {"darknet", "losses"},
    {"data", "metrics"},
    {"checkpoint", "anchors"},
    {"inference"},
    {"report"},
    {"evaluate", "predict", "doctor"},
    {"classify"},
    {"training", "deploy"},
    {"api", "serve"},
]
ROW = {name: row for row, names in enumerate(LAYERS) for name in names}
ONLY = {
    "pytorch_lightning": {"training"},
    "hydra": {"cli"},
    "omegaconf": {"cli"},
    "cv2": {"data", "report", "predict", "deploy", "doctor"},  # doctor: perceptual hashes, thumbnails
    "albumentations": {"data"},
    "fastapi": {"serve"},
}
FILES = sorted((ROOT / "yolo").rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "yolo").with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = layer_of(path)
    if own == "__init__":
        return
    layers = {name.split(".")[1] for name in imports(path) if name.startswith("yolo.")} - {own, "_C"}
    assert own in ROW, f"{own} has no layer: add it to LAYERS"
    assert sorted(name for name in layers if ROW.get(name, 99) >= ROW[own]) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_libraries_stay_in_their_rooms(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert {library for library in roots & ONLY.keys() if layer_of(path) not in ONLY[library]} == set()


def test_packages_are_those_on_disk() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    on_disk = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "yolo").rglob("__init__.py")}
    assert set(declared) == on_disk | {"yolo.configs", "yolo.tools"}
