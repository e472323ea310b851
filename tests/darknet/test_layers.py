"""Layers against Darknet's own C code, forward and backward (golden/layers)."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.darknet.golden import layer_case
from yolo.darknet import layers
from yolo.darknet.cfg import parse_cfg
from yolo.darknet.plan import plan
from yolo.models.layers import NORM_EPS, Local, MaxPool, Reorg

CONVOLUTIONS = [
    *("group2_leaky_bn_infer_alexey", "group2_leaky_bn_infer_pjreddie", "leaky_bn_infer_alexey"),
    *("leaky_bn_infer_pjreddie", "leaky_bn_train_alexey", "leaky_bn_train_k1_alexey"),
    *("linear_bias_alexey", "linear_bias_pjreddie", "mish_bn_train_alexey", "size7_stride2_pad3_alexey"),
    *("size7_stride2_pad3_pjreddie", "swish_bn_train_alexey"),
]
POOLS = [
    *("size13_stride1_pad12_h9w13", "size2_stride1_pad1_h5w7", "size2_stride2_pad0_h5w7"),
    *("size2_stride2_pad1_h5w7", "size2_stride2_pad1_h6w8", "size3_stride1_pad2_h5w4"),
    *("size3_stride2_pad2_h7w8", "size5_stride1_pad4_h6w7", "size9_stride1_pad8_h6w7"),
]
SHORTCUTS = [
    *("alpha_beta_pjreddie", "from_fewer_channels_alexey", "from_fewer_channels_pjreddie"),
    *("from_half_as_large_pjreddie", "from_more_channels_alexey", "from_more_channels_pjreddie"),
    *("from_twice_as_large_pjreddie", "same_alexey", "same_pjreddie"),
]
Arrays = dict[str, NDArray[np.float32]]


def tensor(array: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.array(array, np.float32))


def close(found: Tensor, wanted: NDArray[np.float32], tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(found.detach().numpy().reshape(wanted.shape), wanted, tolerance, tolerance)


def put(parameter: Tensor | None, array: NDArray[np.float32]) -> None:
    assert parameter is not None
    with torch.no_grad():
        parameter.copy_(tensor(array).reshape(parameter.shape))


def compare(
    module: Callable[..., Tensor], arrays: Arrays, *names: str, grads: dict[str, str] | None = None
) -> None:
    """Output and, where the case has them, the gradients of the inputs."""
    inputs = [tensor(arrays[name]).requires_grad_() for name in names]
    output = module(*(x * 1.0 for x in inputs))  # not a leaf: some activations work in place
    close(output, arrays["output"])
    if "grad_output" not in arrays:
        return
    output.backward(tensor(arrays["grad_output"]).reshape(output.shape))
    for x, name in zip(inputs, names, strict=True):
        assert x.grad is not None
        close(x.grad, arrays[f"grad_{name.removesuffix('_output')}"])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutional(name: str) -> None:
    about, arrays = layer_case(f"layer_conv_{name}")
    filters, channels, size, _ = arrays["weights"].shape
    module = layers.Convolutional(
        channels * about["groups"], filters, size, (about["stride"],) * 2, about["pad_pixels"],
        about["activation"], groups=about["groups"], normalize=bool(about["batch_normalize"]),
    )  # fmt: skip
    put(module.conv.weight, arrays["weights"])
    if isinstance(module.norm, nn.BatchNorm2d):
        fill(module.norm, arrays)
    else:
        put(module.conv.bias, arrays["biases"])
    module.train(bool(about["train"]))
    if about["train"] and about["batch_normalize"]:
        forward_in_training(module, module.norm, arrays)
    else:
        compare(module, arrays, "input")
        if "grad_weights" in arrays:
            close(module.conv.weight.grad, arrays["grad_weights"])


def fill(norm: nn.BatchNorm1d | nn.BatchNorm2d, arrays: Arrays) -> None:
    put(norm.weight, arrays["scales"])
    put(norm.bias, arrays["biases"])
    put(norm.running_mean, arrays["rolling_mean"])
    put(norm.running_var, arrays["rolling_variance"])


def forward_in_training(module: nn.Module, norm: nn.Module, arrays: Arrays) -> None:
    """Darknet's CPU code divides by N - 1 where cuDNN and PyTorch divide by N: undo that before comparing."""
    x = tensor(arrays["input"])
    count = arrays["output"].size // norm.num_features
    output = module(x)
    normal = norm.eps
    norm.eps = normal * (count - 1) / count
    with torch.no_grad():
        norm.weight.mul_(((count - 1) / count) ** 0.5)
    close(module(x), arrays["output"], 2e-4)
    with torch.no_grad():
        norm.weight.div_(((count - 1) / count) ** 0.5)
    norm.eps = normal
    assert output.shape == module(x).shape


@pytest.mark.parametrize("name", ["bn0_train1_alexey", "bn1_train0_alexey", "bn1_train1_alexey"])
def test_connected(name: str) -> None:
    about, arrays = layer_case(f"layer_connected_{name}")
    outputs, inputs = arrays["weights"].shape
    module = layers.Connected(inputs, outputs, about["activation"], bool(about["batch_normalize"]))
    put(module.linear.weight, arrays["weights"])
    module.train(bool(about["train"]))
    if isinstance(module.norm, nn.BatchNorm1d):
        fill(module.norm, arrays)
        if about["train"]:
            forward_in_training(module, module.norm, arrays)
            return
    else:
        put(module.linear.bias, arrays["biases"])
    compare(module, arrays, "input")


@pytest.mark.parametrize("name", ["size3_stride1_pad0", "size3_stride1_pad1", "size3_stride2_pad1"])
def test_local(name: str) -> None:
    about, arrays = layer_case(f"layer_local_{name}")
    _, channels, height, width = arrays["input"].shape
    filters = arrays["weights"].shape[1]
    local = Local(channels, filters, (height, width), about["size"], about["stride"], about["pad"])
    module = layers.Locally(local, about["activation"])
    put(local.weight, arrays["weights"])
    put(local.bias, arrays["biases"])
    compare(module, arrays, "input")
    close(local.weight.grad, arrays["grad_weights"])
    close(local.bias.grad, arrays["grad_biases"])


@pytest.mark.parametrize("name", POOLS)
def test_maxpool(name: str) -> None:
    about, arrays = layer_case(f"layer_maxpool_{name}")
    compare(MaxPool(about["size"], about["stride"], about["padding_total"]), arrays, "input")
    uneven = layers.PoolUneven(about["size"], (about["stride"],) * 2, about["padding_total"])
    compare(uneven, arrays, "input")


def test_avgpool() -> None:
    compare(layers.AveragePool(), layer_case("layer_avgpool")[1], "input")


@pytest.mark.parametrize("name", ["reorg_stride2_alexey", "reorg_stride2_pjreddie", "reorg3d_stride2_alexey"])
def test_reorg(name: str) -> None:
    about, arrays = layer_case(f"layer_{name}")
    compare(Reorg(2, "space_to_depth" if about["layer"] == "reorg3d" else "darknet"), arrays, "input")


@pytest.mark.parametrize("repository", ["alexey", "pjreddie"])
def test_reorg_reverse(repository: str) -> None:
    compare(layers.ReorgReverse(2), layer_case(f"layer_reorg_stride2_reverse_{repository}")[1], "input")


def test_reorg_extra_appends_zeros() -> None:
    x = torch.arange(4.0).reshape(1, 1, 2, 2)
    assert layers.Extra(2)(x).flatten().tolist() == [0, 1, 2, 3, 0, 0]


@pytest.mark.parametrize("name", ["concat", "group0of2", "group1of2", "two_inputs_group1of2"])
def test_route(name: str) -> None:
    about, arrays = layer_case(f"layer_route_{name}")
    names = [key for key in ("input1", "input2") if key in arrays]
    compare(layers.Route(about["groups"], about["group_id"]), arrays, *names)


@pytest.mark.parametrize("name", SHORTCUTS)
def test_shortcut(name: str) -> None:
    about, arrays = layer_case(f"layer_shortcut_{name}")
    module = layers.Shortcut(about["activation"], about.get("alpha", 1.0), about.get("beta", 1.0))
    if "alpha" in about and about["alpha"] != 1:
        # Darknet's backward scales all channels by alpha, its forward only those with a partner
        common = arrays["from_output"].shape[1]
        arrays["grad_input"][:, common:] /= about["alpha"]
    compare(module, arrays, "input", "from_output")


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_upsample(scale: float) -> None:
    compare(layers.Enlarge(2, scale), layer_case(f"layer_upsample_stride2_scale{scale}")[1], "input")


@pytest.mark.parametrize(("groups", "temperature"), [(1, 1.0), (1, 2.0), (3, 1.0)])
def test_softmax(groups: int, temperature: float) -> None:
    _, arrays = layer_case(f"layer_softmax_groups{groups}_temp{temperature}")
    compare(layers.Softmax(groups, temperature), arrays, "input")


def test_activations_and_their_gradients() -> None:
    _, arrays = layer_case("activations")
    tested = [name for name in layers.ACTIVATIONS if name in arrays]
    assert len(tested) == 11
    for name in tested:
        x = tensor(arrays["x"]).requires_grad_()
        y = layers.ACTIVATIONS[name]()(x * 1.0)
        y.sum().backward()
        close(y, arrays[name], 1e-5)
        smooth = np.abs(arrays["x"]) > 1e-6  # at a corner either slope is right
        close(x.grad[torch.from_numpy(smooth)], arrays[f"grad_{name}"][smooth], 1e-4)


def test_batchnorm_adds_its_epsilon_below_the_root() -> None:
    _, arrays = layer_case("layer_batchnorm_train0_alexey")
    norm = nn.BatchNorm2d(len(arrays["scales"]), NORM_EPS).eval()
    fill(norm, arrays)
    compare(norm, arrays, "input")


def test_scale_channels_by_channel_and_by_pixel() -> None:
    x = torch.arange(1.0, 9.0).reshape(1, 2, 2, 2)
    per_channel = torch.tensor([2.0, -1.0]).reshape(1, 2, 1, 1)
    assert layers.ScaleChannels()(per_channel, x).flatten().tolist() == [2, 4, 6, 8, -5, -6, -7, -8]
    per_pixel = torch.tensor([1.0, 0.0, 2.0, 3.0]).reshape(1, 1, 2, 2)
    assert layers.ScaleChannels()(per_pixel, x).flatten().tolist() == [1, 0, 6, 12, 5, 0, 14, 24]


def test_crop_takes_the_middle_and_stretches_the_range() -> None:
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert layers.Crop(2, 2, adjust=False)(x).flatten().tolist() == [5, 6, 9, 10]
    assert layers.Crop(2, 2)(x / 15)[0, 0, 0, 0].item() == pytest.approx(2 * 5 / 15 - 1)


@pytest.mark.parametrize(("size", "dilation"), [(3, 2), (1, 2)])
def test_dilation_keeps_the_size_and_is_ignored_by_single_pixels(size: int, dilation: int) -> None:
    text = (
        f"[net]\nwidth=9\nheight=9\nchannels=1\n"
        f"[convolutional]\nfilters=1\nsize={size}\npad=1\ndilation={dilation}\nactivation=linear\n"
    )
    (layer,) = plan(parse_cfg(text)).layers
    module = layer.make()
    assert layer.shape == (1, 9, 9)
    assert module(torch.zeros(1, 1, 9, 9)).shape == (1, 1, 9, 9)
    assert module.conv.dilation == ((2, 2) if size == 3 else (1, 1))
