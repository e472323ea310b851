"""Kind X of the bug reports in cases/CASES.md, exports, and I07 as exported files have it."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.inputs import case, expected
from tests.deploy.making import (
    RULE,
    TWO,
    dense_file,
    dynamic_file,
    engine_file,
    half_file,
    needs_export,
    pictures,
    rtx_module,
    toy,
)
from yolo.checkpoint import Model
from yolo.data import Preprocess, load_image
from yolo.deploy import EngineOptions, Metadata, Profile, Suppression, Wanted, load_detector, open_model
from yolo.deploy.build import deployed, describe
from yolo.deploy.graph import Deployed
from yolo.deploy.metadata import read_sidecar, sidecar
from yolo.deploy.onnx import export_onnx, load
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_tensorrt import check_engine, profile_for, read_types
from yolo.deploy.run_torch import TorchRuntime
from yolo.deploy.tensorrt import build_engine
from yolo.inference import Inference
from yolo.models.layers import Upsample
from yolo.ops import detect
from yolo.ops.decode import decode_reference
from yolo.ops.heads import HeadSpec
from yolo.types import Detections

needs_export()
onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def model() -> Model:
    return toy()


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dynamic_file(tmp_path_factory)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dense_file(tmp_path_factory)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return half_file(tmp_path_factory)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engine_file(tmp_path_factory)


def assert_same(got: Detections, want: Detections) -> None:
    assert want.count.min() > 0
    assert got.count.tolist() == want.count.tolist()
    assert torch.equal(got.labels, want.labels)
    torch.testing.assert_close(got.boxes, want.boxes, rtol=0, atol=1e-3)
    torch.testing.assert_close(got.scores, want.scores, rtol=0, atol=1e-4)


def axes(path: Path) -> dict[str, list[int | str]]:
    graph = load(path).graph
    return {
        one.name: [axis.dim_param or axis.dim_value for axis in one.type.tensor_type.shape.dim]
        for one in (*graph.input, *graph.output)
    }


def test_x01_every_batch_runs_and_only_axes_asked_for_are_free(dynamic: Path, dense: Path) -> None:
    """Rows of a batch equal single runs; no Reshape has a batch of 1 baked in."""
    one, *more = expected("X01")["run_batches"]
    runtime, images = OnnxRuntime(dynamic), pictures(max(more), 64, 96)
    for batch in more:
        together = runtime(images[:batch])
        for index in range(0, batch, one):
            alone = runtime(images[index : index + one])
            for a, b in zip(together, alone, strict=True):
                torch.testing.assert_close(a[index], b[0], rtol=0, atol=1e-4)
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
    graph = load(dynamic).graph
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    shapes = [node.input[1] for node in graph.node if node.op_type == "Reshape"]
    assert [
        constants[name].tolist() for name in shapes if name in constants and constants[name][0] == 1
    ] == []


def test_x02_types_are_read_from_the_engine_and_floats_refused(
    engine: Path, half: Path, tmp_path: Path
) -> None:
    """An fp16 file still takes bytes and gives floats; what is fed otherwise is refused, never misread."""
    rtx_module()
    build_engine(half, tmp_path / "half.engine", EngineOptions("tensorrt_rtx", targets=(89,)))
    about = read_sidecar(tmp_path / "half.engine")
    assert (about.precision, about.input_type) == ("fp16", "uint8")
    runtime = OnnxRuntime(half)
    assert bool(runtime(pictures(1, 64, 96)).boxes.isfinite().all())
    floats = pictures(1, 64, 96) / 255.0
    with pytest.raises(ValueError, match=r"must be \[N, 3, H, W\] uint8, got .* torch.float32"):
        runtime(floats)
    with pytest.raises(ValueError, match=r"is fed torch.uint8, got torch.float32"):
        runtime.network(floats)

    def bound(images: str) -> Any:
        """An engine as TensorRT describes it, which only a GPU can load."""
        kinds = {"images": images, "boxes": "FLOAT", "scores": "FLOAT", "labels": "INT64", "count": "INT64"}
        return SimpleNamespace(
            num_io_tensors=len(kinds),
            get_tensor_name=list(kinds).__getitem__,
            get_tensor_dtype=lambda name: SimpleNamespace(name=kinds[name]),
        )

    about = read_sidecar(engine)
    types = read_types(bound("UINT8"), about, engine)
    assert (types["images"], types["boxes"], types["labels"]) == (torch.uint8, torch.float32, torch.int64)
    with pytest.raises(ValueError, match=r"is fed images of torch.float16, its description says torch.uint8"):
        read_types(bound("HALF"), about, engine)
    with pytest.raises(
        ValueError, match="has images, boxes, scores, labels, count; its description promises"
    ):
        read_types(bound("UINT8"), replace(about, rule=None), engine)


def test_x03_what_float16_cannot_hold_stays_in_float32(caplog: pytest.LogCaptureFixture) -> None:
    """One weight of 70000: the layer is named and stays wide, all is finite; so does the gain of a dead channel."""
    want = expected("X03")
    model = toy()
    model.detector.head.first.weight.data[0, 0, 0, 0] = want["weight_value"]
    norm = model.detector.backbone.down.norm
    norm.running_var[0], norm.weight.data[0] = 1e-12, 1e6
    with caplog.at_level(logging.WARNING):
        module, kept = deployed(model.detector, Wanted("fp16", size=(64, 96)), half=True)
    assert set(kept) == {"head.first", "backbone.down.conv"}
    for word in ("70000", str(want["limit"]), "head.first", "backbone.down.conv"):
        assert word in caplog.text
    layer = module.network.head.first.layer
    assert layer.weight.dtype == torch.float32
    assert float(layer.weight[0, 0, 0, 0]) == want["weight_value"]
    assert all(values.isfinite().all() for values in module(pictures(2, 64, 96)))


def test_x04_height_and_width_keep_their_places(model: Model, dynamic: Path, engine: Path) -> None:
    """A 416x256 network: PyTorch, ONNX Runtime, the compiled decode and its reference agree; TensorRT is promised
    height before width (its own numbers need a GPU: tests/deploy/test_tensorrt.py)."""
    width, height = expected("X04")["net_wh"]
    images = pictures(2, height, width)
    runtime, reference = OnnxRuntime(dynamic), TorchRuntime(model, RULE)
    assert_same(runtime(images), reference(images))
    boxes, scores = reference.every(images)
    with torch.no_grad():
        by_reference = decode_reference(model.detector(images / 255.0), model.detector.specs)
    for got in (runtime.every(images), by_reference):
        torch.testing.assert_close(got[0], boxes, rtol=0, atol=2e-3)
        torch.testing.assert_close(got[1], scores, rtol=0, atol=1e-4)
    centre = (boxes[..., :2] + boxes[..., 2:]) / 2
    assert width - 16 < centre[..., 0].max() < width + 16
    assert height - 16 < centre[..., 1].max() < height + 16
    about = read_sidecar(engine)
    assert profile_for(about, (4, 3, 128, 192), "e") == 1
    with pytest.raises(ValueError, match="4x192x128"):
        profile_for(about, (4, 3, 192, 128), "e")


def copy(engine: Path, folder: Path, **changes: Any) -> Path:
    """The engine under another name, with another description."""
    path = folder / "copy.engine"
    path.write_bytes(engine.read_bytes())
    about = read_sidecar(engine)
    sidecar(path).write_text(replace(about, engine={**about.engine, **changes}).to_json())
    return path


def test_x05_four_kinds_of_wrong_file(engine: Path, dynamic: Path, tmp_path: Path) -> None:
    """Another version, another GPU, cut short, an ONNX file: one line with file, found and needed.

    That a tool then exits with 1 and nothing but this line: tests/deploy/test_tools.py.
    """

    def refusal(path: Path, version: str, capability: tuple[int, int] | None = (8, 9)) -> str:
        with pytest.raises(ValueError, match="copy") as caught:
            check_engine(path, read_sidecar(path), version, capability)
        message = str(caught.value)
        assert "\n" not in message
        assert message.startswith(str(path))
        return message

    here = read_sidecar(engine).engine["version"]
    assert f"built by tensorrt_rtx 1.6.0, installed is {here}" in refusal(
        copy(engine, tmp_path, version="1.6.0"), here
    )
    same = copy(engine, tmp_path)
    check_engine(same, read_sidecar(same), here, (8, 9))
    assert "built for compute capability 8.9 or 12.0, this GPU has 9.0" in refusal(same, here, (9, 0))
    assert "needs an NVIDIA GPU" in refusal(same, here, None)
    other = copy(engine, tmp_path, kind="tensorrt", gpu="NVIDIA A100", capability=[8, 0], targets=[])
    assert "built for NVIDIA A100 (compute capability 8.0), this GPU has 9.0" in refusal(other, here, (9, 0))
    cut = copy(engine, tmp_path)
    cut.write_bytes(engine.read_bytes()[:1000])
    assert f"1000 bytes, its description says {engine.stat().st_size}" in refusal(cut, here)

    renamed = tmp_path / "renamed.engine"
    renamed.write_bytes(dynamic.read_bytes())
    with pytest.raises(ValueError, match=r"renamed\.engine: found an ONNX file, an engine is needed"):
        load_detector(renamed)
    bare = tmp_path / "bare.engine"
    bare.write_bytes(engine.read_bytes())
    with pytest.raises(ValueError, match=r"its description bare\.engine\.json is not beside it"):
        load_detector(bare)
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_detector(tmp_path / "none.engine")


def test_x06_nearest_upsampling(tmp_path: Path, dynamic: Path) -> None:
    """Every pixel twice; batch rows stay apart; odd maps (19 to 38) are exact."""
    onnxruntime = pytest.importorskip("onnxruntime")
    want = expected("X06")
    path = tmp_path / "up.onnx"
    free = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    program = torch.onnx.export(
        Upsample().eval(),
        (torch.zeros(2, 1, 4, 6),),
        input_names=["x"],
        output_names=["y"],
        dynamic_shapes=(free,),
        verbose=False,
    )
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = torch.tensor(want["input"], dtype=torch.float32)[None, None]
    (y,) = session.run(None, {"x": torch.cat((x, x + 10)).numpy()})
    assert y[0, 0].tolist() == want["output"]
    assert (y[1, 0] - 10).tolist() == want["output"]
    odd = torch.rand(1, 1, 19, 19)
    (y,) = session.run(None, {"x": odd.numpy()})
    assert torch.equal(torch.from_numpy(y), odd.repeat_interleave(2, 2).repeat_interleave(2, 3))
    for graph in (onnx.load(path).graph, load(dynamic).graph):
        (resize,) = [node for node in graph.node if node.op_type == "Resize"]
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


@pytest.mark.parametrize("rule_name", ["best_class_only", "multi_label"])
def test_x08_one_rule_for_boxes_with_two_classes(tmp_path: Path, rule_name: str) -> None:
    """Two classes of one box over the threshold: one detection, or two if that is asked for, in every path."""
    case_ = expected("X08")
    classes, scores = zip(*case_[rule_name], strict=True)
    spec = HeadSpec("yolo", 2, 32, ((20.0, 20.0),), (0,))
    raw = torch.tensor([0.0, 0.0, 0.0, 0.0, 40.0, *torch.tensor(case_["one_box_scores"]).logit().tolist()])
    logits = raw.reshape(1, 7, 1, 1)
    multi = rule_name == "multi_label"
    rule = Suppression(case_["conf"], multi_label=multi, max_detections=2, candidates=2)
    path = tmp_path / "two.onnx"
    about = Metadata(["a", "b"], Preprocess((32, 32)), (spec,), rule, "uint8", "fp32", None, (32, 32), 32)
    export_onnx(Deployed(Fixed(logits), (spec,), rule, spare=1), path, about)
    got = OnnxRuntime(path)(pictures(3, 32, 32))
    assert_same(got, detect([logits.expand(3, -1, -1, -1)], [spec], **rule.detect_options()))
    assert got.labels[0, : len(classes)].tolist() == list(classes)
    assert got.scores[0, : len(classes)].tolist() == pytest.approx(scores)
    assert got.count.tolist() == [len(classes)] * 3
    # val and predict ask for their own rule: the file's is left aside where it is another
    options = {"score_threshold": case_["conf"], "max_detections": 2, "clip": False}
    inference = Inference(open_model(path, device="cpu"), multi_label=multi, **options)
    (found,) = inference(pictures(1, 32, 32), [Preprocess((32, 32)).placement(32, 32)])
    assert found.labels.tolist() == list(classes)


def test_x09_other_sizes_are_served_or_refused(
    model: Model, dynamic: Path, dense: Path, engine: Path
) -> None:
    """A free size is read from the picture; a fixed one refuses others with both numbers, an engine too."""
    sizes = expected("X09")
    side = sizes["run_size"]
    images = pictures(1, side, side)
    assert_same(OnnxRuntime(dynamic)(images), TorchRuntime(model, RULE)(images))
    with pytest.raises(ValueError, match=f"height 64, width 96; got batch 1, height {side}, width {side}"):
        OnnxRuntime(dense)(images)
    with pytest.raises(ValueError, match="multiples of 16; got batch 1, height 40, width 64"):
        OnnxRuntime(dynamic)(pictures(1, 40, 64))
    about = read_sidecar(engine)
    baked = (1, sizes["baked_size"], sizes["baked_size"])
    built = replace(about, engine={**about.engine, "profiles": [list(map(list, Profile(*(baked,) * 3)))]})
    with pytest.raises(ValueError, match=r"no profile takes .* 1x416x416; it has 1x608x608 to 1x608x608"):
        profile_for(built, images.shape, "e")
    assert len(about.engine["profiles"]) == len(TWO)


@pytest.mark.parametrize("resize", ["letterbox", "stretch"])
def test_i07_an_exported_file_resizes_as_training_did(resize: str, dynamic: Path) -> None:
    """1270x780 at 416, as the file's own description says; checkpoints and training are in test_i.py."""
    want = expected("I07")
    about = describe(Model(toy().detector, ["a", "b", "c"], Preprocess((want["net"],) * 2, resize)), Wanted())
    again = Metadata.from_json(about.to_json(), "here").preprocess
    image = load_image(case("I07") / "a.png")
    canvas, place = again(image)
    assert canvas.shape == (want["net"], want["net"], 3)
    rows, cols = again.inner_size(*image.shape[:2])
    assert [cols, rows] == want[resize]["inner_wh"]
    letterbox = resize == "letterbox"
    assert place.pad_y == (want["letterbox"]["pad_top"] if letterbox else 0)
    assert want["net"] - rows - place.pad_y == (want["letterbox"]["pad_bottom"] if letterbox else 0)
    assert OnnxRuntime(dynamic).preprocess == Preprocess((64, 96))
