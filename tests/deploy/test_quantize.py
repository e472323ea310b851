"""int8: ranges by hand, symmetric pairs in the graph, layers left out where it hurts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.deploy.making import pictures
from yolo.checkpoint import Model
from yolo.deploy.calibrate import Histogram, Sensitivity, measure, sensitivities, simulated
from yolo.deploy.onnx import load, save
from yolo.deploy.precision import folded
from yolo.deploy.quantize import insert_pairs
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.models import FakeQuant
from yolo.models.quantize import quantizable
from yolo.ops import decode

LAYERS = ["backbone.stem.conv", "backbone.down.conv", "backbone.fine.conv", "backbone.coarse.conv"]
HEADS = ["head.first", "head.second"]

onnx = pytest.importorskip("onnx", reason="the extra 'export' is not installed")


def test_ranges_by_hand() -> None:
    """A thousand values up to 1 and one outlier of 100: its share decides whether it counts."""
    histogram = Histogram()
    histogram.add(torch.linspace(-1, 1, 999))
    histogram.add(torch.tensor([-100.0]))
    assert histogram.range("max", 0) == 100.0
    assert histogram.range("percentile", 100.0) == 100.0
    assert histogram.range("percentile", 99.0) == pytest.approx(1.0, abs=0.07)  # a bin is 128 / 2048
    assert float(histogram.counts.sum()) == 1000
    assert histogram.limit == 128.0


def test_entropy_cuts_a_long_tail() -> None:
    torch.manual_seed(0)
    histogram = Histogram()
    histogram.add(torch.randn(100_000))
    histogram.add(torch.full((3,), 60.0))
    assert 3.0 < histogram.range("entropy", 0) < 10.0


def test_a_layer_that_sees_nothing_has_a_range() -> None:
    histogram = Histogram()
    histogram.add(torch.zeros(10))
    assert [histogram.range(method, 99.0) for method in ("max", "percentile", "entropy")] == [1e-6] * 3


def test_simulation_ends_with_its_context() -> None:
    layer = torch.nn.Conv2d(1, 1, 1)
    torch.nn.init.constant_(layer.weight, 0.3)
    torch.nn.init.zeros_(layer.bias)
    x = torch.tensor([[[[0.1234, 5.0]]]])
    before = layer(x)
    with simulated(layer, 1.27):
        inside = layer(x).flatten().tolist()
    assert inside == pytest.approx(
        [0.12 * 0.3, 1.27 * 0.3], abs=1e-6
    )  # rounded to steps of 0.01, held at 1.27
    assert torch.equal(layer(x), before)


def test_the_worst_layer_comes_first(model: Model) -> None:
    """A range a hundred times too wide leaves one layer with almost no levels: the table must point at it."""
    detector = folded(model.detector)
    images = [pictures(2, 64, 96) / 255.0]
    ranges = measure(detector, images, "max")
    assert list(ranges) == [*LAYERS, *HEADS] == list(quantizable(detector))
    ranges["backbone.fine.conv"] *= 100
    rows = sensitivities(detector, ranges, images)
    assert rows[0].name == "backbone.fine.conv"
    assert rows[0].error > 5 * rows[1].error
    assert rows == sorted(rows, key=lambda row: -row.error)
    assert isinstance(rows[0], Sensitivity)


def test_calibration_options(model: Model) -> None:
    detector = folded(model.detector)
    with pytest.raises(ValueError, match="at least one picture, got none"):
        measure(detector, [])
    with pytest.raises(ValueError, match="one of entropy, percentile, max, got 'minmax'"):
        measure(detector, [], "minmax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="percentile must lie between 0 and 100, got 0"):
        measure(detector, [], "percentile", 0.0)


@pytest.fixture(scope="module")
def ranges(model: Model) -> dict[str, float]:
    return measure(folded(model.detector), [pictures(4, 64, 96) / 255.0], "max")


def test_graph(model: Model, dense: Path, ranges: dict[str, float], tmp_path: Path) -> None:
    """Pairs symmetric, weights stored as int8 per channel, the layer left out untouched, close to fp32."""
    graph = load(dense)
    path = tmp_path / "int8.onnx"
    # 1.01: at the measured 254 / 255 every second grey value would lie exactly between two steps
    chosen = {name: 1.01 * limit for name, limit in ranges.items() if name != "head.second"}
    assert insert_pairs(graph, chosen) == list(chosen)
    runtime = OnnxRuntime(dense)
    save(graph, path, runtime.about)
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in load(path).graph.initializer}
    for name in chosen:
        weight = stored[f"network.{name}.weight_quantized"]
        assert weight.dtype == np.int8
        assert np.abs(weight.reshape(len(weight), -1)).max(axis=1).tolist() == [127] * len(weight)
        assert f"network.{name}.weight" not in stored
    assert stored["network.head.second.weight"].dtype == np.float32
    zeros = [values for name, values in stored.items() if name.endswith("_zero")]
    assert len(zeros) == 10
    assert all((values == 0).all() and values.dtype == np.int8 for values in zeros)
    assert stored["network.backbone.stem.conv.input_zero"].shape == ()

    images = pictures(2, 64, 96)
    want, got = TorchRuntime(model).every(images), OnnxRuntime(path).every(images)
    assert 1e-5 < float((got[1] - want[1]).abs().max()) < 0.1
    # training for int8 computes, batch norms not yet folded, what the graph computes
    with torch.no_grad():
        fake = decode(FakeQuant(model.detector, chosen)(model.detector, images / 255.0), model.detector.specs)
    assert float((got[1] - fake[1]).abs().mean()) < 0.1 * float((got[1] - want[1]).abs().mean())


def test_one_pair_for_all_layers_that_read_a_tensor(dense: Path, ranges: dict[str, float]) -> None:
    """The coarse map goes to one head directly; the finest to the coarse layer and, joined, to the other."""
    graph = load(dense)
    insert_pairs(graph, ranges)
    quantised = [node.input[0] for node in graph.graph.node if node.op_type == "QuantizeLinear"]
    assert len(quantised) == len(set(quantised)) == 6


def test_another_range_is_another_pair(dense: Path) -> None:
    """Two heads on one map, each with a range of its own: neither gets the other's."""
    graph = load(dense)
    insert_pairs(graph, {"backbone.coarse.conv": 1.0, "backbone.fine.conv": 2.0, "head.first": 3.0})
    scales = {
        one.name: float(onnx.numpy_helper.to_array(one))
        for one in graph.graph.initializer
        if one.name.endswith(".input_scale")
    }
    assert scales == {
        "network.backbone.coarse.conv.input_scale": pytest.approx(1 / 127),
        "network.backbone.fine.conv.input_scale": pytest.approx(2 / 127),
        "network.head.first.input_scale": pytest.approx(3 / 127),
    }


def test_a_layer_that_is_not_there(dense: Path) -> None:
    with pytest.raises(ValueError, match=r"no layer head.third that could be quantised"):
        insert_pairs(load(dense), {"head.third": 1.0})
