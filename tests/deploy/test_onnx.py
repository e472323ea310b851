"""The exported graph: any batch, any size, the numbers of PyTorch."""

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from tests.deploy.making import RULE, pictures, toy, write
from yolo.checkpoint import Model
from yolo.data import Preprocess
from yolo.deploy.build import Wanted, describe
from yolo.deploy.graph import Deployed, Suppression
from yolo.deploy.metadata import Metadata
from yolo.deploy.onnx import export_onnx, load, read_metadata
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.models.layers import Upsample
from yolo.ops import detect
from yolo.ops.heads import HeadSpec
from yolo.types import Detections


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


def test_x01_rows_of_a_batch_equal_single_runs(dynamic: Path) -> None:
    runtime, images = OnnxRuntime(dynamic), pictures(5, 64, 96)
    for batch in (3, 5):
        together = runtime(images[:batch])
        for index in range(batch):
            alone = runtime(images[index : index + 1])
            for a, b in zip(together, alone, strict=True):
                torch.testing.assert_close(a[index], b[0], rtol=0, atol=1e-4)


def test_x01_only_axes_asked_for_are_free(dynamic: Path, dense: Path) -> None:
    def axes(path: Path) -> dict[str, list[int | str]]:
        graph = load(path).graph
        return {
            one.name: [axis.dim_param or axis.dim_value for axis in one.type.tensor_type.shape.dim]
            for one in (*graph.input, *graph.output)
        }

    assert axes(dynamic) == {
        "images": ["batch", 3, "height", "width"],
        "boxes": ["batch", 50, 4],
        "scores": ["batch", 50],
        "labels": ["batch", 50],
        "count": ["batch"],
    }
    assert axes(dense) == {
        "images": ["batch", 3, 64, 96],
        "boxes": ["batch", 240, 4],
        "scores": ["batch", 240, 3],
    }


def test_x04_height_and_width_keep_their_places(model: Model, dense: Path) -> None:
    """416x256's proportions in small: boxes in a wide picture go where PyTorch puts them."""
    images = pictures(2, 64, 96)
    want, got = TorchRuntime(model).every(images), OnnxRuntime(dense).every(images)
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=1e-3)
    torch.testing.assert_close(got[1], want[1], rtol=0, atol=1e-4)
    centre = (got[0][..., :2] + got[0][..., 2:]) / 2
    assert centre[..., 0].max() > 90  # as far right as the picture is wide
    assert centre[..., 1].max() < 70


def test_x06_nearest_upsampling(tmp_path: Path, dynamic: Path) -> None:
    """Every pixel twice; batch rows stay apart; odd maps (19 to 38) are exact."""
    path = tmp_path / "up.onnx"
    example = torch.zeros(2, 1, 4, 6)
    axes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    program = torch.onnx.export(
        Upsample().eval(),
        (example,),
        input_names=["x"],
        output_names=["y"],
        dynamic_shapes=(axes,),
        verbose=False,
    )
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 1, 2, 2)
    (y,) = session.run(None, {"x": torch.cat((x, x + 10)).numpy()})
    want = [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]
    assert y[0, 0].tolist() == want
    assert (y[1, 0] - 10).tolist() == want
    odd = torch.rand(1, 1, 19, 19)
    (y,) = session.run(None, {"x": odd.numpy()})
    assert torch.equal(torch.from_numpy(y), odd.repeat_interleave(2, 2).repeat_interleave(2, 3))
    for model in (onnx.load(path), load(dynamic)):
        (resize,) = [node for node in model.graph.node if node.op_type == "Resize"]
        how = {one.name: one.s.decode() for one in resize.attribute if one.s}
        assert how["mode"] == "nearest"
        assert (how["coordinate_transformation_mode"], how["nearest_mode"]) == ("asymmetric", "floor")


class Fixed(nn.Module):
    """Raw outputs that are in the module, so that scores can be chosen."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits, requires_grad=False)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        return [images.mean(dim=(1, 2, 3), keepdim=True) * 0 + self.logits]


@pytest.mark.parametrize("multi", [False, True])
def test_x08_one_rule_for_boxes_with_two_classes(tmp_path: Path, multi: bool) -> None:
    """Scores 0.6 and 0.55 in one box, threshold 0.5: one detection, or two if that is asked for."""
    spec = HeadSpec("yolo", 2, 32, ((20.0, 20.0),), (0,))
    raw = torch.tensor([0.0, 0.0, 0.0, 0.0, 40.0, *torch.tensor([0.6, 0.55]).logit().tolist()])
    logits = raw.reshape(1, 7, 1, 1)
    rule = Suppression(0.5, multi_label=multi, max_detections=2, candidates=2)
    about = Metadata(["a", "b"], Preprocess((32, 32)), (spec,), rule, "uint8", "fp32", None, (32, 32), 32)
    export_onnx(Deployed(Fixed(logits), (spec,), rule, spare=1), tmp_path / "two.onnx", about)
    got = OnnxRuntime(tmp_path / "two.onnx")(pictures(3, 32, 32))
    want = detect([logits.expand(3, -1, -1, -1)], [spec], **rule.detect_options())
    assert want.count.tolist() == [2 if multi else 1] * 3
    assert_same(got, want)
    assert got.scores[0].tolist() == pytest.approx([0.6, 0.55] if multi else [0.6, 0.0])


def test_x09_other_sizes_are_served_or_refused(model: Model, dynamic: Path, dense: Path) -> None:
    """A free size is read from the picture; a fixed one refuses others with both numbers."""
    images = pictures(1, 96, 160)
    assert_same(OnnxRuntime(dynamic)(images), TorchRuntime(model, RULE)(images))
    with pytest.raises(ValueError, match="height 64, width 96; got batch 1, height 96, width 160"):
        OnnxRuntime(dense)(images)
    with pytest.raises(ValueError, match="multiples of 16; got batch 1, height 40, width 64"):
        OnnxRuntime(dynamic)(pictures(1, 40, 64))


def test_i07_the_file_says_how_pictures_are_resized(dynamic: Path, tmp_path: Path) -> None:
    """1270x780 at 416: letterbox 416x255, 80 above, 81 below; stretch 416x416; the file says which."""
    for resize, inner, above in (("letterbox", (255, 416), 80), ("stretch", (416, 416), 0)):
        about = describe(Model(toy().detector, ["a", "b", "c"], Preprocess((416, 416), resize)), Wanted())
        again = Metadata.from_json(about.to_json(), "here").preprocess
        assert again.resize == resize
        assert again.inner_size(780, 1270) == inner
        assert again.placement(780, 1270).pad_y == above
    assert OnnxRuntime(dynamic).preprocess == Preprocess((64, 96))


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


def test_half_precision(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "half.onnx"
    write(model, path, Wanted("fp16", size=(64, 96)))
    graph = load(path).graph
    weights = [one for one in graph.initializer if one.name.endswith(".weight")]
    assert {one.data_type for one in weights} == {onnx.TensorProto.FLOAT16}
    assert {one.type.tensor_type.elem_type for one in graph.output} == {onnx.TensorProto.FLOAT}
    images = pictures(2, 64, 96)
    want, got = TorchRuntime(model).every(images), OnnxRuntime(path).every(images)
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
