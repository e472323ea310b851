"""Engines: real ones of TensorRT-RTX, which needs no GPU to build; and every refusal before one is run."""

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.deploy.making import RULE, TWO, pictures
from yolo.checkpoint import Model
from yolo.deploy import run_tensorrt, tensorrt
from yolo.deploy.calibrate import measure
from yolo.deploy.loading import load_detector
from yolo.deploy.metadata import Metadata, read_sidecar
from yolo.deploy.onnx import load, read_metadata, save
from yolo.deploy.precision import folded
from yolo.deploy.quantize import insert_pairs
from yolo.deploy.run_tensorrt import engine_limits, profile_for
from yolo.deploy.tensorrt import (
    EngineOptions,
    Profile,
    build_engine,
    cache_key,
    check_topk,
    default_profile,
)

onnx = pytest.importorskip("onnx", reason="the extra 'export' is not installed")
RTX = "tensorrt_rtx"


def test_engine_with_suppression_and_two_profiles(engine: Path, dynamic: Path) -> None:
    about = read_sidecar(engine)
    assert about.engine["kind"] == RTX
    assert about.engine["profiles"] == json.loads(json.dumps(TWO))
    assert about.engine["bytes"] == engine.stat().st_size
    assert replace(about, engine={}) == read_metadata(dynamic)
    layers = json.loads(engine.with_name("dynamic.engine.layers.json").read_text())
    assert {"convolution", "topk"} <= {layer["kind"] for layer in layers}


@pytest.mark.parametrize("precision", ["fp16", "int8", "int8 in fp16"])
def test_every_precision_builds(
    rtx: Any, dense: Path, half: Path, tmp_path: Path, ranges: dict[str, float], precision: str
) -> None:
    source, path = half if "fp16" in precision else dense, tmp_path / "x.onnx"
    graph = load(source)
    if "int8" in precision:
        insert_pairs(graph, ranges)
    save(graph, path, read_metadata(source))
    built = build_engine(path, path.with_suffix(".engine"), EngineOptions(RTX, targets=(89,)))
    assert built.engine["profiles"] == [[[1, 64, 96], [8, 64, 96], [32, 64, 96]]]


@pytest.fixture(scope="module")
def ranges(model: Model) -> dict[str, float]:
    return measure(folded(model.detector), [pictures(2, 64, 96) / 255.0], "max")


def test_what_cannot_be_built(rtx: Any, dynamic: Path, dense: Path, tmp_path: Path) -> None:
    def build(onnx_path: Path, **options: Any) -> None:
        build_engine(onnx_path, tmp_path / "x.engine", EngineOptions(RTX, **options))

    with pytest.raises(ValueError, match=r"has no target 90; it has .*89"):
        build(dynamic, targets=(90,))
    with pytest.raises(ValueError, match=r"dense\.onnx takes 64x96 pixels, the profile asks for 96x96"):
        build(dense, profiles=(Profile((1, 96, 96), (1, 96, 96), (1, 96, 96)),))
    with pytest.raises(ValueError, match="multiples of 16, the profile asks for 72x96"):
        build(dynamic, profiles=(Profile(*((1, 72, 96),) * 3),))
    with pytest.raises(
        ValueError, match="batch of a profile must rise from smallest to largest, got 4, 2, 8"
    ):
        EngineOptions(RTX, (Profile((4, 64, 64), (2, 64, 64), (8, 64, 64)),))
    with pytest.raises(ValueError, match=r"targets=\[89\] needs kind=tensorrt_rtx"):
        EngineOptions("tensorrt", targets=(89,))
    assert not (tmp_path / "x.engine").exists()


def test_parser_complaints_reach_the_user(rtx: Any, dense: Path, tmp_path: Path) -> None:
    model = load(dense)
    about = read_metadata(dense)
    node = next(node for node in model.graph.node if node.op_type == "Sigmoid")
    node.op_type = "NonZero"
    path = tmp_path / "bad.onnx"
    onnx.helper.set_model_props(model, {"yolo": about.to_json()})
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=r"TensorRT cannot (read|build) .*bad\.onnx: \S+"):
        build_engine(path, tmp_path / "bad.engine", EngineOptions(RTX))


def test_more_kept_than_the_smallest_profile_has() -> None:
    """TensorRT builds such a graph without a word: 15 predictions of 3 x 5 cells, the best 20 wanted."""
    make, kind = onnx.helper, onnx.TensorProto
    images = make.make_tensor_value_info("images", kind.FLOAT, ["n", 3, "h", "w"])
    out = make.make_tensor_value_info("values", kind.FLOAT, ["n", 20])
    nodes = [
        make.make_node("AveragePool", ["images"], ["cells"], kernel_shape=[32, 32], strides=[32, 32]),
        make.make_node("ReduceMean", ["cells"], ["one"], axes=[1], keepdims=0),
        make.make_node("Flatten", ["one"], ["flat"], axis=1),
        make.make_node("TopK", ["flat", "k"], ["values", "index"], axis=1),
    ]
    k = make.make_tensor("k", kind.INT64, [1], [20])
    graph = make.make_graph(nodes, "g", [images], [out], [k])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)])
    check_topk(model, (1, 3, 128, 160), "x.onnx")
    with pytest.raises(
        ValueError, match=r"the best 20 of the 15 predictions .* 1x3x96x160, has; lower candidates to 15"
    ):
        check_topk(model, (1, 3, 96, 160), "x.onnx")


def test_our_graphs_never_keep_more_than_they_have(dynamic: Path) -> None:
    check_topk(load(dynamic), (1, 3, 16, 16), "dynamic.onnx")


def test_default_profile(dynamic: Path) -> None:
    about = read_metadata(dynamic)
    assert default_profile(about) == Profile((1, 32, 48), (8, 64, 96), (32, 128, 192))
    fixed = replace(about, batch=2, size=(64, 96))
    assert default_profile(fixed) == Profile((2, 64, 96), (2, 64, 96), (2, 64, 96))


def test_the_profile_goes_by_shape(engine: Path) -> None:
    about = read_sidecar(engine)
    assert profile_for(about, (2, 3, 64, 96), "e") == 0
    assert profile_for(about, (4, 3, 128, 160), "e") == 1
    with pytest.raises(
        ValueError, match=r"e: no profile takes .* 3x64x96; it has 1x64x96 to 2x64x96; 4x128x128 to 8x128x192"
    ):
        profile_for(about, (3, 3, 64, 96), "e")
    assert str(engine_limits(about)).startswith("batch 1 to 8, height 64 to 128, width 96 to 192")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_engine_without_a_gpu(engine: Path) -> None:
    with pytest.raises(ValueError, match="an engine needs an NVIDIA GPU, PyTorch sees none"):
        load_detector(engine)


def test_cache_key_depends_on_graph_and_options(rtx: Any, dynamic: Path, dense: Path) -> None:
    base = EngineOptions(RTX)
    keys = {
        cache_key(dynamic, base),
        cache_key(dense, base),
        cache_key(dynamic, EngineOptions(RTX, workspace_mib=64)),
        cache_key(dynamic, EngineOptions(RTX, profiles=TWO)),
    }
    assert len(keys) == 4
    assert cache_key(dynamic, base) == cache_key(dynamic, EngineOptions(RTX, timing_cache=Path("elsewhere")))


REMOVED_IN_11 = {
    "EXPLICIT_BATCH",
    "FP16",
    "INT8",
    "BF16",
    "FP8",
    "int8_calibrator",
    "set_calibration_profile",
    "platform_has_fast_fp16",
    "platform_has_fast_int8",
    "dynamic_range",
    "set_output_type",
    "OBEY_PRECISION_CONSTRAINTS",
    "execute_async_v2",
    "get_binding_index",
    "binding_is_input",
    "device_memory_size",
}


@pytest.mark.parametrize("module", [tensorrt, run_tensorrt], ids=lambda m: m.__name__)
def test_nothing_that_one_of_the_apis_lacks(rtx: Any, module: Any) -> None:
    """Every ``trt.X`` exists in RTX, whose interface is TensorRT 11's; nothing that 11 removed is touched."""
    tree = ast.parse(Path(module.__file__).read_text())
    touched = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert touched.isdisjoint(REMOVED_IN_11)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "trt":
            assert hasattr(rtx, node.attr), node.attr


METHODS = {
    "Builder": [
        "create_network",
        "create_builder_config",
        "create_optimization_profile",
        "build_serialized_network",
    ],
    "IBuilderConfig": [
        *("set_memory_pool_limit", "add_optimization_profile", "create_timing_cache", "set_timing_cache"),
        *("get_timing_cache", "progress_monitor", "builder_optimization_level", "profiling_verbosity"),
    ],
    "OnnxParser": ["parse_from_file", "num_errors", "get_error"],
    "Runtime": ["deserialize_cuda_engine"],
    "ICudaEngine": ["num_io_tensors", "get_tensor_name", "get_tensor_dtype", "create_execution_context"],
    "IExecutionContext": [
        *("set_optimization_profile_async", "set_input_shape", "infer_shapes", "get_tensor_shape"),
        *("set_tensor_address", "execute_async_v3"),
    ],
}


def test_methods_exist_in_rtx(rtx: Any) -> None:
    assert [
        f"{kind}.{name}"
        for kind, names in METHODS.items()
        for name in names
        if not hasattr(getattr(rtx, kind), name)
    ] == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_engine_finds_what_pytorch_finds(model: Model, dynamic: Path, tmp_path: Path) -> None:
    """With the TensorRT that runs on this GPU, built here."""
    from yolo.deploy.run_tensorrt import TensorRTRuntime
    from yolo.deploy.run_torch import TorchRuntime

    pytest.importorskip(
        "tensorrt", reason="TensorRT is not installed (pip install 'yolo-lightning[tensorrt]')"
    )
    path = tmp_path / "here.engine"
    build_engine(dynamic, path, EngineOptions("tensorrt", profiles=TWO, timing_cache=tmp_path))
    runtime = TensorRTRuntime(path)
    reference = TorchRuntime(model, RULE)
    for shape in ((1, 64, 96), (2, 64, 96), (5, 128, 160)):
        images = pictures(*shape)
        for _ in range(2):  # the second time from the recorded graph
            got, want = runtime.download(runtime(images)), reference(images)
            assert got.count.tolist() == want.count.tolist()
            torch.testing.assert_close(got.boxes, want.boxes, rtol=0, atol=0.5)


def test_description_survives_json(engine: Path) -> None:
    about = read_sidecar(engine)
    assert Metadata.from_json(about.to_json(), "x") == about
    with pytest.raises(ValueError, match="x: not a description"):
        Metadata.from_json("{}", "x")
    with pytest.raises(ValueError, match="x: description format 99, this version reads format 1"):
        Metadata.from_json('{"format": 99}', "x")
