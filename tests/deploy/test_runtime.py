"""One interface: what goes in is checked, what comes out does not depend on what runs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.deploy.making import RULE, pictures, toy, write
from yolo import models
from yolo.checkpoint import Model, save_model
from yolo.data import Preprocess
from yolo.deploy import Suppression, Wanted, load_detector, open_model
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.deploy.runtime import agreed, narrowed, suppress_dense
from yolo.inference import Inference, with_preprocess
from yolo.ops import detect
from yolo.types import Detections


def test_torch_equals_detect(model: Model) -> None:
    images = pictures(3, 64, 96)
    got = TorchRuntime(model, RULE)(images)
    with torch.no_grad():
        want = detect(model.detector(images / 255.0), model.detector.specs, **RULE.detect_options())
    assert want.count.min() > 0
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-3)


def test_stages_are_the_call(model: Model, dynamic: Path, dense: Path) -> None:
    images = pictures(2, 64, 96)
    for runtime in (TorchRuntime(model, RULE), OnnxRuntime(dynamic), OnnxRuntime(dense, RULE)):
        steps = runtime.download(runtime.suppress(runtime.network(runtime.upload(images))))
        for a, b in zip(steps, runtime(images), strict=True):
            assert torch.equal(a, b)


def test_suppression_outside_the_graph_gives_the_same(dynamic: Path, dense: Path) -> None:
    images = pictures(2, 64, 96)
    inside, outside = OnnxRuntime(dynamic)(images), OnnxRuntime(dense, RULE)(images)
    assert torch.equal(inside.count, outside.count)
    assert torch.equal(inside.labels, outside.labels)
    torch.testing.assert_close(inside.boxes, outside.boxes, rtol=0, atol=1e-3)


def test_dense_suppression_equals_detect_for_several_classes(model: Model) -> None:
    rule = Suppression(0.2, multi_label=True, max_detections=200)
    runtime, images = TorchRuntime(model), pictures(2, 48, 48)
    with torch.no_grad():
        want = detect(model.detector(images / 255.0), model.detector.specs, **rule.detect_options())
    got = suppress_dense(*runtime.every(images), rule)
    assert want.count.min() > 20
    assert torch.equal(want.count, got.count)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 64, 96), r"must be \[N, 3, H, W\] uint8, got \[1, 3, 64, 96\] torch.float32"),
        (torch.zeros(3, 64, 96, dtype=torch.uint8), r"got \[3, 64, 96\] torch.uint8"),
        (torch.zeros(1, 1, 64, 96, dtype=torch.uint8), r"got \[1, 1, 64, 96\] torch.uint8"),
        (torch.zeros(1, 3, 64, 100, dtype=torch.uint8), "multiples of 16; got batch 1, height 64, width 100"),
    ],
)
def test_wrong_input_is_refused(model: Model, dynamic: Path, images: torch.Tensor, message: str) -> None:
    for runtime in (TorchRuntime(model), OnnxRuntime(dynamic)):
        with pytest.raises(ValueError, match=message):
            runtime(images)


def test_darknets_pixels_are_rounded_for_a_file_that_is_fed_bytes(model: Model, dynamic: Path) -> None:
    """PyTorch takes them as they are."""
    images = pictures(2, 64, 96)
    between = images / 255.0 + 0.3 / 255
    eager, file = (
        runtime.prepared(Preprocess((64, 96), interpolation="darknet"))
        for runtime in (TorchRuntime(model, RULE), OnnxRuntime(dynamic))
    )
    for a, b in zip(file(images), file(between), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        want = detect(model.detector(between), model.detector.specs, **RULE.detect_options())
    assert not torch.equal(want.scores, eager(images).scores)
    for a, b in zip(want, eager(between), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-3)


def test_a_rule_can_be_narrowed_but_not_changed(dynamic: Path) -> None:
    images = pictures(2, 64, 96)
    wide = OnnxRuntime(dynamic)(images)
    tight = replace(RULE, score_threshold=float(wide.scores[0, 3]), max_detections=20)
    got = OnnxRuntime(dynamic, tight)(images)
    assert got.boxes.shape == (2, 20, 4)
    assert got.count[0] == 3
    assert torch.equal(got.boxes[0, :3], wide.boxes[0, :3])
    assert got.boxes[0, 3:].abs().sum() == 0
    with pytest.raises(ValueError, match=r"dynamic.onnx was exported with iou_threshold=0.45 \(wanted 0.6\)"):
        OnnxRuntime(dynamic, replace(RULE, iou_threshold=0.6))
    with pytest.raises(ValueError, match=r"exported with score_threshold=0.3 .*; wanted 0.1 and 50"):
        OnnxRuntime(dynamic, replace(RULE, score_threshold=0.1))
    assert agreed(None, RULE, "x") == RULE
    assert agreed(RULE, None, "x") == RULE


def test_narrowing_an_empty_result() -> None:
    none = Detections(
        torch.zeros(1, 4, 4),
        torch.zeros(1, 4),
        torch.zeros(1, 4, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
    )
    got = narrowed(none, Suppression(0.0, max_detections=2, candidates=2))
    assert got.count.tolist() == [0]
    assert got.scores.shape == (1, 2)


def test_load_detector_goes_by_name(dynamic: Path, tmp_path: Path) -> None:
    detector = models.yolov3_tiny(num_classes=2, width=0.0625)
    save_model(Model(detector, ["a", "b"], Preprocess((64, 64))), tmp_path / "best.ckpt")
    runtime = load_detector(tmp_path / "best.ckpt", device="cpu")
    assert runtime.name == "PyTorch eager fp32 cpu"
    assert runtime.classes == ["a", "b"]
    assert runtime(pictures(1, 64, 64)).boxes.shape == (1, 300, 4)
    assert load_detector(dynamic, device="cpu").name == "ONNX Runtime fp32 cpu"
    with pytest.raises(
        ValueError, match="precision and mode of an exported file are fixed, got fp16 and eager"
    ):
        load_detector(dynamic, device="cpu", precision="fp16")


def test_devices_that_are_not_there(model: Model, dynamic: Path) -> None:
    with pytest.raises(ValueError, match="mode=graph needs a CUDA device, got cpu"):
        TorchRuntime(model, mode="graph")
    with pytest.raises(ValueError, match="mode must be one of eager, compiled, graph, got 'fast'"):
        TorchRuntime(model, mode="fast")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="autotune=true tries kernels of fused convolutions: it needs mode=graph"
    ):
        TorchRuntime(model, mode="compiled", autotune=True)
    with pytest.raises(ValueError, match="ONNX Runtime runs on cpu or cuda here, got meta"):
        OnnxRuntime(dynamic, device="meta")


def test_a_provider_that_would_fall_back_is_refused(dynamic: Path) -> None:
    """ONNX Runtime silently takes the CPU when CUDA cannot be loaded."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers() and torch.cuda.is_available():
        assert OnnxRuntime(dynamic, device="cuda").session.get_providers()[0] == "CUDAExecutionProvider"
        return
    with pytest.raises(ValueError, match="CUDAExecutionProvider"):
        OnnxRuntime(dynamic, device="cuda")


@pytest.mark.slow
def test_compiled_equals_eager(model: Model) -> None:
    images = pictures(2, 64, 96)
    got, want = TorchRuntime(model, RULE, mode="compiled")(images), TorchRuntime(model, RULE)(images)
    assert torch.equal(got.count, want.count)
    torch.testing.assert_close(got.boxes, want.boxes, rtol=0, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_recorded_graph_sees_new_pictures(precision: str) -> None:
    """One recording per shape, replayed on other pictures; earlier results are not written over."""
    model = toy()
    graph = TorchRuntime(model, RULE, device="cuda", precision=precision, mode="graph")  # type: ignore[arg-type]
    eager = TorchRuntime(model, RULE, device="cuda", precision=precision)  # type: ignore[arg-type]
    first, second = pictures(2, 64, 96, seed=1), pictures(2, 64, 96, seed=2)
    kept = graph(first)
    before = [values.clone() for values in kept]
    graph(second)
    assert all(torch.equal(a, b) for a, b in zip(before, kept, strict=True))
    for images in (first, second, pictures(1, 48, 80)):
        got, want = graph.download(graph(images)), eager.download(eager(images))
        if precision == "fp32":
            assert torch.equal(got.count, want.count)
            torch.testing.assert_close(got.boxes, want.boxes, rtol=0, atol=1e-2)
            continue
        for image in range(len(images)):  # scores that differ in their last bits can stand in another order
            ours, theirs = (found.boxes[image, : found.count[image]] for found in (got, want))
            nearest = (ours[:, None] - theirs).abs().amax(dim=-1).amin(dim=1)
            assert abs(len(ours) - len(theirs)) <= 2
            assert (nearest > 2.0).sum() <= 2  # pixels; a box at the threshold can be missing


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_onnx_runtime_on_the_gpu(model: Model, dynamic: Path, dense: Path) -> None:
    """Inputs and outputs stay on the device; the provider is the one that was asked for."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA (pip install onnxruntime-gpu)")
    images, reference = pictures(3, 64, 96), TorchRuntime(model, RULE)
    for path in (dynamic, dense):
        runtime = OnnxRuntime(path, RULE, device="cuda")
        assert runtime.session.get_providers()[0] == "CUDAExecutionProvider"
        found = runtime(images)
        assert found.boxes.device.type == "cuda"
        got, want = runtime.download(found), reference(images)
        assert got.count.tolist() == want.count.tolist()
        torch.testing.assert_close(got.boxes, want.boxes, rtol=0, atol=0.05)


def test_inference_takes_exported_files(model: Model, dynamic: Path, dense: Path) -> None:
    """weights=model.onnx in val.py and predict.py: their own thresholds, pixels of the picture."""
    placement = model.preprocess.placement(128, 192)
    images = pictures(3, 64, 96)
    options = {"score_threshold": 0.2, "iou_threshold": 0.6, "multi_label": True, "max_detections": 60}
    want = Inference(model, device="cpu", **options)(images, [placement] * 3)  # type: ignore[arg-type]
    for path in (dynamic, dense):
        got = Inference(open_model(path, device="cpu"), **options)(images, [placement] * 3)  # type: ignore[arg-type]
        for a, b in zip(want, got, strict=True):
            assert len(a.labels) == 60
            assert a.labels.tolist() == b.labels.tolist()
            assert a.boxes == pytest.approx(b.boxes, abs=2e-3)
    with pytest.raises(ValueError, match="precision=fp16 was asked for, an exported file keeps its own"):
        Inference(open_model(dynamic, device="cpu"), precision="fp16")


def test_any_number_of_pictures_through_a_fixed_batch(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    write(model, path, Wanted(batch=2, size=(64, 96)))
    images = pictures(5, 64, 96)
    got, want = OnnxRuntime(path, RULE).any_batch(images), TorchRuntime(model, RULE)(images)
    assert got.count.tolist() == want.count.tolist()
    assert torch.equal(got.labels, want.labels)


def test_pictures_can_be_prepared_otherwise(dynamic: Path, dense: Path) -> None:
    runtime = OnnxRuntime(dynamic)
    assert with_preprocess(runtime, "stretch", (32, 48)).preprocess == Preprocess((32, 48), "stretch")
    assert runtime.preprocess == Preprocess((64, 96))
    with pytest.raises(ValueError, match="height 64, width 96; got height 32, width 48"):
        OnnxRuntime(dense).prepared(Preprocess((32, 48)))
