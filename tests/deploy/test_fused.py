"""Fused convolutions: put in the right places everywhere, and on a GPU the numbers of the layers that they replace."""

from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from yolo import models
from yolo.checkpoint import Model
from yolo.darknet import build_text
from yolo.data import Preprocess
from yolo.deploy import fused
from yolo.deploy.fused import FusedConvolution, Kernels, Run, Shape, fuse_convolutions, one_by_one
from yolo.deploy.precision import folded
from yolo.deploy.run_torch import TorchRuntime, _Fed, _Prepared, _prepared
from yolo.models.layers import ConvBnAct

NETWORKS = ["yolov1", "yolov2", "yolov3", "yolov3_spp", "yolov3_tiny", "yolov4", "yolov4_tiny"]


class PlainKernels(Kernels):
    """What a kernel says, by PyTorch's own convolution."""

    def __call__(self, shape: Shape) -> Run:
        return partial(one_by_one, shape)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_convolution_has_its_place(name: str) -> None:
    torch.manual_seed(0)
    network = folded(models.build(name, {"width": 0.25, "num_classes": 5}).eval())
    other = deepcopy(network)
    fuse_convolutions(other, PlainKernels(1))
    assert not [module for module in other.modules() if isinstance(module, nn.Conv2d | ConvBnAct)]
    size = network.fixed_size or (64, 96)
    images = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8)
    with torch.inference_mode():
        wanted = _Prepared(network, torch.float32, True)(images)
        feeding = _prepared(other, torch.float32, True)
        found = feeding(images)
    assert isinstance(feeding, _Fed)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_channels_that_are_no_multiple_of_eight_are_filled_and_cut_off() -> None:
    conv = nn.Conv2d(5, 12, 3, 1, 1)
    layer = FusedConvolution(conv, nn.LeakyReLU(0.1), PlainKernels(1))
    x, residual = torch.randn(2, 5, 7, 9), torch.randn(2, 12, 7, 9)
    assert layer.weight.shape == (16, 8, 3, 3)
    torch.testing.assert_close(layer(x, residual), F.leaky_relu(conv(x), 0.1) + residual)


def test_what_cannot_be_fused_stays() -> None:
    network = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 3, dilation=2), nn.Conv2d(8, 8, 1))
    fuse_convolutions(network, PlainKernels(1))
    assert [type(layer) for layer in network] == [nn.Conv2d, nn.Conv2d, FusedConvolution]


WIDE = """
[net]
width=64
height=64
channels=3
[convolutional]
batch_normalize=1
filters=12
size=3
pad=1
{first}
activation=leaky
[convolutional]
filters=8
size=1
activation=linear
[region]
anchors=1,1
classes=3
num=1
"""


@pytest.mark.parametrize("first", ["dilation=2", "groups=3"])
def test_a_first_convolution_that_stays_gets_its_three_channels(first: str) -> None:
    network = folded(build_text(WIDE.format(first=first)).eval())
    other = deepcopy(network)
    fuse_convolutions(other, PlainKernels(1))
    assert any(isinstance(module, FusedConvolution) for module in other.modules())
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    with torch.inference_mode():
        for one, wanted in zip(
            _prepared(other, torch.float32, True)(images), network(images / 255.0), strict=True
        ):
            torch.testing.assert_close(one, wanted)


def test_where_cudnn_has_no_kernel_the_layer_works_part_by_part(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class RefusedError(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise RefusedError("no engine\nand why")

    old = SimpleNamespace(
        cudnnGraphNotSupportedError=RefusedError, create_handle=lambda: 1, pygraph=refuse,
        data_type=SimpleNamespace(HALF=1, BFLOAT16=2, FLOAT=3),
    )  # fmt: skip
    monkeypatch.setattr(fused, "require", lambda _: old)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    conv = nn.Conv2d(8, 16, 3, 2, 1).bfloat16()
    x = torch.randn(1, 8, 9, 9, dtype=torch.bfloat16)
    layer = FusedConvolution(conv, nn.LeakyReLU(0.1), Kernels(1))
    torch.testing.assert_close(layer(x), F.leaky_relu(conv(x), 0.1))
    layer(x)
    assert caplog.text.count("cuDNN does not fuse") == 1
    assert "(no engine): slower" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("inside", "outside", "size", "stride", "act", "residual"),
    [
        (3, 32, 3, 1, "leaky", False), (32, 64, 3, 2, "leaky", False), (64, 32, 1, 1, "leaky", False),
        (32, 64, 3, 1, "leaky", True), (64, 255, 1, 1, "linear", False), (64, 64, 3, 1, "mish", True),
    ],
)  # fmt: skip
def test_a_kernel_is_the_layer(
    inside: int, outside: int, size: int, stride: int, act: str, residual: bool, dtype: torch.dtype
) -> None:
    pytest.importorskip("cudnn")
    torch.manual_seed(0)
    kinds = {"leaky": nn.LeakyReLU(0.1), "mish": nn.Mish(), "linear": nn.Identity()}
    conv = nn.Conv2d(inside, outside, size, stride, size // 2)
    layer = (
        FusedConvolution(conv, kinds[act], Kernels(2)).cuda().to(dtype).to(memory_format=torch.channels_last)
    )
    for count in (1, 5):  # another shape has a kernel of its own
        x = torch.randn(count, inside, 26, 38, device="cuda", dtype=dtype)
        wanted = kinds[act](conv.cuda().to(dtype)(x).float())
        other = torch.randn_like(wanted).to(dtype).to(memory_format=torch.channels_last) if residual else None
        found = layer(x, other)
        torch.testing.assert_close(
            found.float(), wanted if other is None else wanted + other, rtol=2e-2, atol=2e-2
        )
    assert len(layer.kernels.made) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["yolov3_tiny", "yolov4_tiny"])
def test_a_recorded_network_of_fused_kernels_detects_the_same(name: str) -> None:
    pytest.importorskip("cudnn")
    torch.manual_seed(0)
    classes = tuple(f"c{i}" for i in range(5))
    model = Model(models.build(name, {"num_classes": 5, "width": 0.5}).eval(), classes, Preprocess((96, 128)))
    exact, quick = (
        TorchRuntime(model, device="cuda", precision="fp16", mode=mode) for mode in ("eager", "graph")
    )
    assert any(isinstance(module, FusedConvolution) for module in quick._network.modules())
    for count in (1, 3):
        images = torch.randint(0, 256, (count, 3, 96, 128), dtype=torch.uint8)
        for one, other in zip(quick.every(images), exact.every(images), strict=True):
            torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)
        found = quick.suppress(quick.network(quick.upload(images)))
        assert found.boxes.shape[0] == count


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_network_is_recorded_on_the_gpu_that_was_asked_for(precision: str) -> None:
    torch.manual_seed(0)
    network = models.build("yolov3_tiny", {"num_classes": 5, "width": 0.5}).eval()
    model = Model(network, tuple(f"c{i}" for i in range(5)), Preprocess((96, 128)))
    first, second = (
        TorchRuntime(model, device=f"cuda:{i}", precision=precision, mode="graph") for i in (0, 1)
    )
    for _ in range(3):  # what a recording without work would give for the first pictures again
        images = torch.randint(0, 256, (1, 3, 96, 128), dtype=torch.uint8)
        one, other = (runtime.download(runtime(images)) for runtime in (first, second))
        assert torch.equal(one.count, other.count)
        torch.testing.assert_close(one.boxes, other.boxes, rtol=3e-2, atol=3e-2)
