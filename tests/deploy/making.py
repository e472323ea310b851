"""A detector so small that exporting it takes seconds, and scenes to suppress."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from yolo.checkpoint import Model
from yolo.data import Preprocess
from yolo.deploy.build import Wanted, deployed, describe
from yolo.deploy.graph import Suppression
from yolo.deploy.metadata import Metadata
from yolo.deploy.onnx import export_onnx
from yolo.deploy.tensorrt import EngineOptions, Profile, build_engine
from yolo.models.detector import Detector
from yolo.models.layers import ConvBnAct, Upsample
from yolo.ops.heads import HeadSpec

CLASSES = ["ant", "bee", "cat"]
ANCHORS = ((10.0, 14.0), (23.0, 27.0), (37.0, 58.0), (81.0, 82.0))
STRIDE = 16


class Trunk(nn.Module):
    """Two maps, of stride 8 and 16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBnAct(3, 8, 3, stride=2)
        self.down = ConvBnAct(8, 8, 3, stride=2)
        self.fine = ConvBnAct(8, 8, 3, stride=2)
        self.coarse = ConvBnAct(8, 16, 3, stride=2, act="mish")

    def forward(self, images: Tensor) -> list[Tensor]:
        fine = self.fine(self.down(self.stem(images)))
        return [fine, self.coarse(fine)]


class Top(nn.Module):
    """A head on either map; the finer one sees the coarser."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up = Upsample()
        self.first = nn.Conv2d(16, channels, 1)
        self.second = nn.Conv2d(24, channels, 1)

    @property
    def predictors(self) -> list[nn.Module]:
        return [self.first, self.second]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        fine, coarse = maps
        return [self.first(coarse), self.second(torch.cat([self.up(coarse), fine], dim=1))]


def toy(seed: int = 0) -> Model:
    """Random weights with confident, busy heads; 3 classes, any multiple of 16 pixels."""
    torch.manual_seed(seed)
    specs = [
        HeadSpec("yolo", len(CLASSES), 16, ANCHORS, (2, 3)),
        HeadSpec("yolo", len(CLASSES), 8, ANCHORS, (0, 1), xy_scale=1.05),
    ]
    detector = Detector(Trunk(), Top(specs[0].channels), specs, "v3").eval()
    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.7, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    for predictor in detector.predictors:
        nn.init.normal_(predictor.weight, 0, 0.25)
        nn.init.normal_(predictor.bias, 0, 0.5)
    return Model(detector, list(CLASSES), Preprocess((64, 96)))


def pictures(count: int, height: int, width: int, seed: int = 1) -> Tensor:
    """Smooth random colours ``[N, 3, H, W]`` uint8: more like a picture than noise is."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand((count, 3, 6, 6), generator=generator)
    smooth = nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (smooth * 255).to(torch.uint8)


def write(model: Model, path: Path, wanted: Wanted, opset: int = 20) -> Metadata:
    """Export without calibration and gate."""
    about = describe(model, wanted)
    module, _ = deployed(model.detector, wanted, half=wanted.precision == "fp16")
    export_onnx(module, path, about, opset)
    return about


def scene(boxes: Sequence[Sequence[float]], scores: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
    """One picture's predictions ``[1, M, 4]`` and ``[1, M, C]``."""
    return torch.tensor([boxes], dtype=torch.float32), torch.tensor([scores], dtype=torch.float32)


RULE = Suppression(score_threshold=0.3, max_detections=50, candidates=600)
TWO = (Profile((1, 64, 96), (1, 64, 96), (2, 64, 96)), Profile((4, 128, 128), (8, 128, 128), (8, 128, 192)))


def needs_export() -> None:
    """Skip where the packages that write and run ONNX are not installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed (pip install 'yolo-lightning[export]')")


def rtx_module() -> Any:
    """TensorRT for RTX, which builds engines on any Linux or Windows machine."""
    reason = "tensorrt-rtx is not installed (pip install 'yolo-lightning[tensorrt-rtx]')"
    return pytest.importorskip("tensorrt_rtx", reason=reason)


def dynamic_file(factory: pytest.TempPathFactory) -> Path:
    """The toy for any batch and size, suppression inside; written once a session."""
    needs_export()
    path = factory.getbasetemp() / "dynamic.onnx"
    if not path.exists():
        write(toy(), path, Wanted(rule=RULE))
    return path


def dense_file(factory: pytest.TempPathFactory) -> Path:
    """The toy for any batch at 64x96, every prediction; written once a session."""
    needs_export()
    path = factory.getbasetemp() / "dense.onnx"
    if not path.exists():
        write(toy(), path, Wanted(size=(64, 96)))
    return path


def half_file(factory: pytest.TempPathFactory) -> Path:
    """As :func:`dense_file` in float16; written once a session."""
    needs_export()
    path = factory.getbasetemp() / "half.onnx"
    if not path.exists():
        write(toy(), path, Wanted("fp16", size=(64, 96)))
    return path


def engine_file(factory: pytest.TempPathFactory) -> Path:
    """A real engine of :func:`dynamic_file` with two profiles, for two kinds of GPU; built once a session."""
    rtx_module()
    path = factory.getbasetemp() / "dynamic.engine"
    if not path.exists():
        options = EngineOptions("tensorrt_rtx", profiles=TWO, targets=(89, 120))
        build_engine(dynamic_file(factory), path, options, progress=True)
    return path
