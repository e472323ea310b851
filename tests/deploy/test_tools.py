"""The command lines, from weights to files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from yolo import models
from yolo.checkpoint import Model, load_model, save_model
from yolo.data import Preprocess
from yolo.deploy import load_detector
from yolo.deploy.onnx import load

onnx = pytest.importorskip("onnx", reason="the extra 'export' is not installed")
ROOT = Path(__file__).parents[2]


def run(tool: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=250)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "best.ckpt"
    detector = models.yolov2_tiny(num_classes=10, width=0.0625)
    save_model(Model(detector, [str(digit) for digit in range(10)], Preprocess((96, 96))), path)
    return path


def test_export_and_what_it_leaves(weights: Path, tmp_path: Path) -> None:
    done = run(
        *("export", f"weights={weights}", "output=x.onnx", "batch=2", "suppression.score_threshold=0.01"),
        *("suppression.candidates=300", "hydra.run.dir=out"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout
    assert "onnxscript" not in done.stdout
    runtime = load_detector(tmp_path / "x.onnx", device="cpu")
    assert runtime.preprocess == Preprocess((96, 96))
    assert json.loads((tmp_path / "out" / "parity.json").read_text())["passed"]


def test_over_tolerance_exits_with_1(weights: Path, tmp_path: Path) -> None:
    done = run(
        *("export", f"weights={weights}", "output=x.onnx", "batch=1", "nms=false", "precision=fp16"),
        *("parity.max_score=0", "parity.count=1", "hydra.run.dir=out"),
        folder=tmp_path,
    )
    assert done.returncode == 1
    assert "x.onnx.rejected: over tolerance" in done.stderr
    assert "failed" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "x.onnx.rejected"]


def test_wrong_values_are_one_line(weights: Path, tmp_path: Path) -> None:
    done = run("export", f"weights={weights}", "precision=int8", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("export.py: precision=int8 needs data=...")


@pytest.mark.slow
def test_x05_a_foreign_engine_is_one_line_and_exit_1(tmp_path: Path) -> None:
    engine = tmp_path / "foreign.engine"
    engine.write_bytes(b"\x08\x0a not an engine")
    done = run("benchmark", "model", f"weights={engine}", folder=tmp_path)
    assert done.returncode == 1
    assert "foreign.engine: found an ONNX file, an engine is needed" in done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_training_for_int8_and_its_export(weights: Path, tmp_path: Path) -> None:
    """quantize=int8 starts from measured ranges, trains them, and the export takes them without calibration."""
    model = ("model=yolov2_tiny", "model.width=0.0625", "data=digits", "data.cache_dir=cache")
    small = ("data.counts=[32,8,8]", "data.workers=0", "data.batch_size=8", "preprocess.size=[96,96]")
    done = run(
        *("train", *model, *small, f"weights={weights}", "quantize=int8", "trainer.max_epochs=1"),
        *("multiscale=null", "augment=none", "trainer.accelerator=cpu", "hydra.run.dir=out"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    ranges = load_model(tmp_path / "out" / "last.ckpt").ranges
    assert len(ranges) == 9
    done = run("export", "weights=out/last.ckpt", "precision=int8", "output=x.onnx", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for one in load(tmp_path / "x.onnx").graph.initializer:
        name = one.name.removeprefix("network.").removesuffix(".input_scale")
        if name in ranges:
            assert onnx.numpy_helper.to_array(one) == pytest.approx(ranges.pop(name) / 127)
    assert not ranges
    done = run("train", *model, "quantize=int8", folder=tmp_path)
    assert done.stderr.strip().splitlines()[-1] == (
        "train.py: quantize=int8 fine-tunes a trained network: give weights=..."
    )


@pytest.mark.slow
def test_tools_take_exported_files(weights: Path, tmp_path: Path) -> None:
    done = run("export", f"weights={weights}", "output=x.onnx", "hydra.run.dir=out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    small = ("data=digits", "data.cache_dir=cache", "data.counts=[2,2,4]")
    for tool, *options in (
        (
            "val",
            *small,
            "match=index",
            "workers=0",
            "batch_size=3",
        ),  # the small model calls its classes 0 to 9
        ("predict", "source=cache/*/test/*.jpg"),
        ("benchmark", "model", "runs=2", "warm_up=1", "batch=[1,3]"),
    ):
        done = run(tool, *options[:1], "weights=x.onnx", *options[1:], "device=cpu", folder=tmp_path)
        assert done.returncode == 0, (tool, done.stderr)


@pytest.mark.slow
def test_benchmark_writes_its_numbers(weights: Path, tmp_path: Path) -> None:
    done = run(
        *("benchmark", "model", f"weights={weights}", "batch=[1,3]", "runs=2", "warm_up=1", "output=t.json"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "images per second, all counted" in done.stdout
    assert [one["batch"] for one in json.loads((tmp_path / "t.json").read_text())] == [1, 3]
