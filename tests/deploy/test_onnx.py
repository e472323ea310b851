"""The exported graph: any batch, any size, the numbers of PyTorch."""

from pathlib import Path

import pytest
import torch

from tests.deploy.making import RULE, pictures, toy, write
from yolo.checkpoint import Model
from yolo.data import Preprocess
from yolo.deploy.build import Wanted, describe
from yolo.deploy.onnx import load, read_metadata
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.types import Detections

onnx = pytest.importorskip("onnx", reason="the extra 'export' is not installed")


def assert_same(got: Detections, want: Detections) -> None:
    assert want.count.min() > 0
    assert got.count.tolist() == want.count.tolist()
    assert torch.equal(got.labels, want.labels)
    torch.testing.assert_close(got.boxes, want.boxes, rtol=0, atol=1e-3)
    torch.testing.assert_close(got.scores, want.scores, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 64, 96), (3, 112, 80), (5, 32, 48)])
def test_detections_equal_detect(model: Model, dynamic: Path, batch: int, height: int, width: int) -> None:
    images = pictures(batch, height, width)
    assert_same(OnnxRuntime(dynamic)(images), TorchRuntime(model, RULE)(images))


def test_description(model: Model, dynamic: Path) -> None:
    about = read_metadata(dynamic)
    assert about.classes == model.classes
    assert about.specs == model.detector.specs
    assert about.rule == RULE
    assert (about.batch, about.size, about.stride, about.input_type) == (None, None, 16, "uint8")
    graph = load(dynamic).graph
    assert "uint8, RGB, 0 to 255" in graph.input[0].doc_string
    assert "pixels" in graph.output[0].doc_string


def test_nothing_of_this_machine_is_in_the_file(dynamic: Path) -> None:
    content = dynamic.read_bytes()
    assert str(Path(__file__).parents[2]).encode() not in content
    assert b"site-packages" not in content


def test_plain_operators_only(dynamic: Path) -> None:
    model = load(dynamic)
    assert {(one.domain, one.version) for one in model.opset_import} == {("", 20)}
    kinds = {node.op_type for node in model.graph.node}
    assert kinds.isdisjoint(
        {"NonMaxSuppression", "NonZero", "Compress", "RoiAlign", "BatchNormalization", "If", "Loop"}
    )


def test_float_input_and_opset_18(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    write(model, path, Wanted(batch=1, size=(64, 96), input_type="float32"), opset=18)
    assert load(path).opset_import[0].version == 18
    runtime, images = OnnxRuntime(path), pictures(1, 64, 96)
    want, got = TorchRuntime(model).every(images), runtime.every(images)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-3)
    with pytest.raises(ValueError, match=r"fed torch.float32, got torch.uint8"):
        runtime.network(images)
    with pytest.raises(ValueError, match="batch 1, height 64, width 96; got batch 2"):
        runtime(pictures(2, 64, 96))


def test_half_precision(model: Model, half: Path) -> None:
    graph = load(half).graph
    weights = [one for one in graph.initializer if one.name.endswith(".weight")]
    assert {one.data_type for one in weights} == {onnx.TensorProto.FLOAT16}
    assert {one.type.tensor_type.elem_type for one in graph.output} == {onnx.TensorProto.FLOAT}
    images = pictures(2, 64, 96)
    want, got = TorchRuntime(model).every(images), OnnxRuntime(half).every(images)
    torch.testing.assert_close(got[1], want[1], rtol=0, atol=2e-2)
    assert float((got[0] - want[0]).abs().max()) < 2.0
    assert float((got[0] - want[0]).abs().max()) > 0.0


def test_what_cannot_be_exported(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"multiple of 16 .*, got 60x96"):
        describe(model, Wanted(size=(60, 96)))
    with pytest.raises(ValueError, match=r"opset must be one of \(18, 19, 20\), got 17"):
        write(model, tmp_path / "x.onnx", Wanted(), opset=17)
    with pytest.raises(ValueError, match="precision must be one of fp32, fp16, int8, got 'int4'"):
        Wanted("int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch must be dynamic or at least 1, got 0"):
        Wanted(batch=0)
    fixed = Model(toy().detector, ["a", "b", "c"], Preprocess((64, 96)))
    fixed.detector.fixed_size = (64, 96)
    with pytest.raises(ValueError, match=r"only 64x96 pixels, got size=dynamic; say size=\[64,96\]"):
        describe(fixed, Wanted())


def test_files_that_are_something_else(tmp_path: Path) -> None:
    text = tmp_path / "text.onnx"
    text.write_text("not a model at all\n" * 10)
    other = tmp_path / "other.onnx"
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), other)
    for start in (OnnxRuntime, read_metadata):
        with pytest.raises(ValueError, match=r"text\.onnx: "):
            start(text)
        with pytest.raises(ValueError, match=r"other\.onnx: an ONNX model without the description"):
            start(other)
        with pytest.raises(FileNotFoundError, match="no such file"):
            start(tmp_path / "none.onnx")
