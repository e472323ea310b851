"""The blocks against numbers of the real Darknet, by-hand cases, and ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.helpers.paths import shared
from yolo.models.layers import (
    ConvBnAct,
    Local,
    MaxPool,
    Reorg,
    SpatialPyramid,
    Upsample,
    activation,
    darknet_layers,
)


def golden(case: str) -> dict[str, Tensor]:
    """The arrays of a case that ran through Darknet's C code."""
    arrays = np.load(shared("golden", "layers", f"{case}.npz"))
    return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def check_layer(layer: nn.Module, arrays: dict[str, Tensor], tolerance: float = 0.0) -> None:
    """Output and gradient of the input as in the golden case."""
    x = arrays["input"].clone().requires_grad_()
    out = layer(x)
    torch.testing.assert_close(out, arrays["output"], rtol=tolerance, atol=tolerance)
    out.backward(arrays["grad_output"])
    torch.testing.assert_close(x.grad, arrays["grad_input"], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("source", ["alexey", "pjreddie"])
def test_reorg_is_darknets(source: str) -> None:
    check_layer(Reorg(2, "darknet"), golden(f"layer_reorg_stride2_{source}"))


def test_space_to_depth_is_reorg3d() -> None:
    check_layer(Reorg(2, "space_to_depth"), golden("layer_reorg3d_stride2_alexey"))


def test_reorg_moves_every_element_where_darknet_does() -> None:
    arrays = golden("layer_reorg_index_map_c64h4w6")
    assert torch.equal(Reorg(2, "darknet")(arrays["input"]), arrays["out_reorg"])
    assert torch.equal(Reorg(2, "space_to_depth")(arrays["input"]), arrays["out_reorg3d"])


@pytest.mark.parametrize("order", ["darknet", "space_to_depth"])
def test_reorg_of_channels_last_is_the_same(order: str) -> None:
    x = torch.rand(2, 8, 4, 6)
    assert torch.equal(Reorg(2, order)(x.to(memory_format=torch.channels_last)), Reorg(2, order)(x))


def test_space_to_depth_by_hand() -> None:
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert Reorg(2, "space_to_depth")(x).flatten().tolist() == [1, 2, 3, 4]


def test_reorg_refuses_an_unknown_order() -> None:
    with pytest.raises(ValueError, match="darknet or space_to_depth, got 'tf'"):
        Reorg(2, "tf")


@pytest.mark.parametrize(
    ("size", "stride", "padding", "shape"),
    [
        (13, 1, 12, "h9w13"),
        (2, 1, 1, "h5w7"),
        (2, 2, 0, "h5w7"),
        (2, 2, 1, "h5w7"),
        (2, 2, 1, "h6w8"),
        (3, 1, 2, "h5w4"),
        (3, 2, 2, "h7w8"),
        (5, 1, 4, "h6w7"),
        (9, 1, 8, "h6w7"),
    ],
)
def test_max_pool_is_darknets(size: int, stride: int, padding: int, shape: str) -> None:
    arrays = golden(f"layer_maxpool_size{size}_stride{stride}_pad{padding}_{shape}")
    check_layer(MaxPool(size, stride, padding), arrays)


def test_max_pool_of_two_looks_right_and_down() -> None:
    x = torch.tensor([[[[1.0, 5.0], [2.0, -3.0]]]])
    assert MaxPool(2, 1)(x).tolist() == [[[[5, 5], [2, -3]]]]  # alone in its corner, -3 beats the outside


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_max_pool_is_a_loop_over_windows(size: int, stride: int) -> None:
    x = torch.randn(1, 1, 7, 9) - 5
    out = MaxPool(size, stride)(x)
    start = (size - 1) // 2
    assert out.shape == (1, 1, 6 // stride + 1, 8 // stride + 1)
    for row in range(out.shape[2]):
        for col in range(out.shape[3]):
            top, left = row * stride - start, col * stride - start
            window = x[0, 0, max(0, top) : top + size, max(0, left) : left + size]
            assert out[0, 0, row, col] == window.max()


def test_spatial_pyramid_puts_the_largest_window_first_and_the_input_last() -> None:
    x = torch.zeros(1, 1, 15, 15)
    x[..., 7, 7] = 1.0
    assert SpatialPyramid()(x).sum(dim=(0, 2, 3)).tolist() == [169, 81, 25, 1]


def test_upsample_is_darknets() -> None:
    check_layer(Upsample(), golden("layer_upsample_stride2_scale1.0"), tolerance=1e-6)


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1)])
def test_local_is_darknets(stride: int, padding: int) -> None:
    arrays = golden(f"layer_local_size3_stride{stride}_pad{padding}")
    channels, height, width = arrays["input"].shape[1:]
    layer = Local(channels, arrays["weights"].shape[1], (height, width), 3, stride, padding)
    layer.load_state_dict({"weight": arrays["weights"].flatten(2), "bias": arrays["biases"]})
    check_layer(nn.Sequential(layer, activation("leaky")), arrays, tolerance=1e-5)
    torch.testing.assert_close(layer.weight.grad, arrays["grad_weights"].flatten(2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.bias.grad, arrays["grad_biases"], rtol=1e-5, atol=1e-5)


def test_local_with_equal_weights_is_a_convolution() -> None:
    layer = Local(3, 4, (5, 6), kernel_size=3, padding=1)
    conv = nn.Conv2d(3, 4, 3, padding=1)
    with torch.no_grad():
        layer.weight.copy_(conv.weight.flatten(1).expand_as(layer.weight))
        layer.bias.copy_(conv.bias[:, None, None].expand_as(layer.bias))
    x = torch.randn(2, 3, 5, 6)
    torch.testing.assert_close(layer(x), conv(x), rtol=1e-5, atol=1e-5)


def test_local_refuses_another_size() -> None:
    with pytest.raises(ValueError, match=r"\(5, 6\).*got \(6, 5\)"):
        Local(3, 4, (5, 6))(torch.zeros(1, 3, 6, 5))


@pytest.mark.parametrize("name", ["leaky", "mish", "linear"])
def test_activations_are_darknets(name: str) -> None:
    arrays = golden("activations")
    x = arrays["x"].clone().requires_grad_()
    out = activation(name)(x * 1.0)  # times 1: the leaky one works in place, which a leaf does not allow
    torch.testing.assert_close(out, arrays[name], rtol=1e-5, atol=1e-6)
    out.sum().backward()
    torch.testing.assert_close(x.grad, arrays[f"grad_{name}"], rtol=1e-4, atol=1e-5)


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'swich'"):
        activation("swich")


def test_batch_norm_has_darknets_constants() -> None:
    norm = ConvBnAct(3, 8, 3).norm
    assert (norm.eps, norm.momentum) == (1e-5, 0.03)


def test_layers_are_paired_with_their_norm_in_order() -> None:
    first, second = ConvBnAct(3, 8, 3), ConvBnAct(8, 8, 1)
    last, local, linear = nn.Conv2d(8, 4, 1), Local(4, 2, (3, 3)), nn.Linear(18, 5)
    network = nn.Sequential(first, nn.ModuleDict({"inner": second}), last, nn.BatchNorm2d(4), local, linear)
    assert list(darknet_layers(network)) == [
        (first.conv, first.norm),
        (second.conv, second.norm),
        (last, None),  # it has a bias of its own, so the norm behind it is no part of it
        (local, None),
        (linear, None),
    ]


def test_blocks_export_to_plain_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    network = nn.Sequential(
        ConvBnAct(3, 8, 3, act="mish"),
        Reorg(2, "darknet"),
        MaxPool(2, 1),
        SpatialPyramid(),
        Upsample(),
        Reorg(2, "space_to_depth"),
        MaxPool(3, 1),
        ConvBnAct(512, 8),
        Local(8, 4, (4, 6)),
    ).eval()
    example = (torch.rand(2, 3, 8, 12),)
    program = torch.export.export(network, example, dynamic_shapes=({0: torch.export.Dim("batch")},))
    path = tmp_path / "blocks.onnx"
    torch.onnx.export(program, input_names=["images"], opset_version=18, dynamo=True, verbose=False).save(
        path
    )
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert not kinds & {"If", "Loop", "Scan", "NonZero", "Gather", "GatherND", "ScatterND"}
    images = torch.rand(3, 3, 8, 12)  # another batch size than it was traced with
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {"images": images.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(out), network(images), rtol=1e-4, atol=1e-4)


def test_autocast_has_no_say_in_copies_of_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    enlarge = F.interpolate

    def noted(*args: Any, **options: Any) -> Tensor:
        asked.append(torch.is_autocast_enabled("cpu"))
        return enlarge(*args, **options)

    monkeypatch.setattr(F, "interpolate", noted)
    with torch.autocast("cpu", torch.bfloat16):
        Upsample()(torch.rand(1, 2, 3, 3, dtype=torch.bfloat16))
        assert torch.is_autocast_enabled("cpu")
    assert asked == [False]
    assert Upsample()(torch.rand(1, 2, 3, 3, device="meta")).shape == (
        1,
        2,
        6,
        6,
    )  # a device without autocast


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision_copies_pixels_as_they_are(dtype: torch.dtype) -> None:
    x = torch.rand(1, 8, 3, 5, device="cuda", dtype=dtype, requires_grad=True)
    with torch.autocast("cuda", dtype):
        y = Upsample()(x)
        assert torch.is_autocast_enabled("cuda")
    assert y.dtype == dtype
    assert torch.equal(y, x.repeat_interleave(2, 2).repeat_interleave(2, 3))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.eq(4).all()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["half residual", "planar residual", "odd channels", "evaluation"])
def test_what_the_fused_operator_does_not_take(kind: str) -> None:
    """The plain modules stand in, wholly or for the residual, and say the same up to rounding."""
    channels = 10 if kind == "odd channels" else 16
    torch.manual_seed(0)
    layer = ConvBnAct(3, channels, 3).cuda().to(memory_format=torch.channels_last)
    layer.train(kind != "evaluation")
    x = torch.randn(2, 3, 9, 9, device="cuda").to(memory_format=torch.channels_last)
    residual = torch.randn(2, channels, 9, 9, device="cuda")
    if kind == "half residual":
        residual = residual.half().to(memory_format=torch.channels_last)
    found = layer(x, residual)
    layer.norm.reset_running_stats()
    wanted = residual + layer.act(layer.norm(layer.conv(x)))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
