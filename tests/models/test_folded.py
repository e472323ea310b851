"""The first convolution by folds is the plain convolution."""

import copy

import pytest
import torch
from torch import Tensor, nn

import yolo.models.folded
from yolo.models.folded import FOLD, FoldedConv2d, folded
from yolo.models.layers import ConvBnAct


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (3, 2), (5, 1), (7, 2), (3, 8)])
@pytest.mark.parametrize("width", [FOLD, 5 * FOLD])
def test_output_and_gradients(channels: int, kernel: int, stride: int, width: int) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 6, kernel, stride, kernel // 2, bias=False).double()
    x = torch.randn(2, channels, 13, width, dtype=torch.double).to(memory_format=torch.channels_last)
    plain, by_folds = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted = conv(plain)
    grad = torch.randn_like(wanted)
    (wanted * grad).sum().backward()
    d_weight, conv.weight.grad = conv.weight.grad, None
    found = folded(by_folds, conv)
    (found * grad).sum().backward()
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(conv.weight.grad, d_weight)
    torch.testing.assert_close(by_folds.grad, plain.grad)


def test_only_a_layer_of_few_channels_has_it() -> None:
    stem, later = ConvBnAct(3, 16, 3), ConvBnAct(16, 32, 3)
    assert isinstance(stem.conv, FoldedConv2d)
    assert type(later.conv) is nn.Conv2d
    assert stem.state_dict().keys() == later.state_dict().keys()


def test_without_a_gpu_it_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("yolo.models.folded.folded")
    conv = FoldedConv2d(3, 8, 3, padding=1, bias=False)
    x = torch.rand(1, 3, 16, 16).to(memory_format=torch.channels_last)
    assert torch.equal(conv(x), nn.functional.conv2d(x, conv.weight, padding=1))


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what was folded."""
    found: list[tuple[int, ...]] = []

    def noted(x: Tensor, conv: nn.Conv2d) -> Tensor:
        found.append(tuple(x.shape))
        return folded(x, conv)

    monkeypatch.setattr(yolo.models.folded, "folded", noted)
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("out_channels", "kernel", "stride"), [(32, 3, 1), (16, 3, 1), (32, 3, 2), (64, 7, 2)]
)
def test_in_mixed_precision_it_is_as_near_as_the_plain_one(
    dtype: torch.dtype, out_channels: int, kernel: int, stride: int, folds: list[tuple[int, ...]]
) -> None:
    torch.manual_seed(0)
    conv = FoldedConv2d(3, out_channels, kernel, stride, kernel // 2, bias=False).cuda()
    x = torch.rand(4, 3, 96, 160, device="cuda").to(memory_format=torch.channels_last)
    exact = copy.deepcopy(conv).double()
    wanted = exact(x.double())
    grad = torch.randn_like(wanted)
    (wanted * grad).sum().backward()
    assert not folds
    with torch.autocast("cuda", dtype):
        y = conv(x)
    (y.double() * grad).sum().backward()
    assert folds == [tuple(x.shape)]
    assert y.dtype == dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), wanted, rtol=2 * unit, atol=2 * unit)
    scale = float(exact.weight.grad.abs().max())  # type: ignore[union-attr]
    torch.testing.assert_close(conv.weight.grad.double(), exact.weight.grad, rtol=0.0, atol=2 * unit * scale)  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.parametrize("reason", ["evaluation", "planar", "width", "float32"])
def test_otherwise_it_is_the_plain_one(reason: str, folds: list[tuple[int, ...]]) -> None:
    conv = FoldedConv2d(3, 32, 3, padding=1, bias=False).cuda().train(reason != "evaluation")
    x = torch.rand(2, 3, 32, 36 if reason == "width" else 32, device="cuda")
    if reason != "planar":
        x = x.to(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.float16, enabled=reason != "float32"):
        conv(x)
    assert not folds
