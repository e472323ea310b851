"""The largest of 2 x 2 pixels and where its gradient goes: against PyTorch, by hand, with ties and NaN."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops.scenes import DEVICES, DTYPES, require_kernel
from yolo.models.layers import MaxPool
from yolo.ops import max_pool_2x2, pool


def make(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """x with many equal values and some that are none; the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, shape, generator=generator).float()
    x[torch.rand(shape, generator=generator) < 0.02] = float("nan")
    # never a whole window: the gradient of PyTorch's CUDA kernel then goes to the corner of the picture
    x[..., ::2][torch.rand(x[..., ::2].shape, generator=generator) < 0.02] = float("-inf")
    grad = torch.randn(*shape[:2], shape[2] // 2, shape[3] // 2, generator=generator)
    return (
        x.to(device, dtype, memory_format=torch.channels_last),
        grad.to(device, dtype, memory_format=torch.channels_last),
    )


def check(x: Tensor, grad: Tensor) -> None:
    leaf, plain = (x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
    y, wanted = max_pool_2x2(leaf), F.max_pool2d(plain, 2)
    y.backward(grad)
    wanted.backward(grad)
    assert leaf.grad is not None
    assert plain.grad is not None
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, wanted, rtol=0.0, atol=0.0, equal_nan=True)
    torch.testing.assert_close(leaf.grad, plain.grad, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_pytorch(dtype: torch.dtype, device: str) -> None:
    if device == "cuda":
        require_kernel("max_pool_2x2", device)
    check(*make((3, 24, 10, 14), dtype, device))


SHAPES = [
    (1, 8, 2, 2),
    (2, 16, 2, 1030),
    (2, 16, 1030, 2),
    (5, 136, 6, 4),
    (1, 2056, 2, 6),
    (64, 16, 208, 208),
    (0, 8, 4, 4),
    (2, 8, 0, 4),
]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    require_kernel("max_pool_2x2", "cuda")
    x, grad = make(shape, dtype, "cuda")
    if x.numel():
        check(x, grad)
        return
    leaf = x.requires_grad_()
    max_pool_2x2(leaf).backward(grad)
    assert leaf.grad is not None
    assert leaf.grad.shape == x.shape


@pytest.mark.parametrize("device", DEVICES)
def test_the_first_of_equals_by_hand(device: str) -> None:
    if device == "cuda":
        require_kernel("max_pool_2x2", device)
    low = float("-inf")
    x = torch.tensor([[1.0, 1.0, 0.0, 2.0, low, low], [1.0, 0.0, 3.0, 3.0, low, low]], device=device)
    grad = torch.tensor([[5.0, 7.0, 9.0]], device=device)
    wanted = torch.tensor([[5.0, 0.0, 0.0, 0.0, 9.0, 0.0], [0.0, 0.0, 7.0, 0.0, 0.0, 0.0]], device=device)
    four = [values.expand(2, 4, *values.shape).to(memory_format=torch.channels_last) for values in (x, grad)]
    leaf = four[0].requires_grad_()
    max_pool_2x2(leaf).backward(four[1])
    assert torch.equal(leaf.grad, wanted.expand_as(leaf))


def test_gradient_of_float64() -> None:
    x = torch.randn(2, 3, 4, 6, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(max_pool_2x2, x)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device: str) -> None:
    if device == "cuda":
        require_kernel("max_pool_2x2", device)
    x, grad = make((2, 8, 4, 6), torch.float32, device)
    x, grad = x.nan_to_num(), grad
    torch.library.opcheck(torch.ops.yolo.max_pool_2x2.default, (x,))
    torch.library.opcheck(torch.ops.yolo.max_pool_2x2_backward.default, (grad, x))


@pytest.mark.gpu
def test_a_layer_in_training_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_kernel("max_pool_2x2", "cuda")
    calls = []
    monkeypatch.setattr("yolo.models.layers.max_pool_2x2", lambda x: calls.append(x) or max_pool_2x2(x))
    layer = MaxPool(2, 2)
    x = torch.randn(2, 16, 6, 6, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    layer(x)  # nobody wants a gradient
    layer(x.contiguous().requires_grad_())
    layer(x[:, :, :5].to(memory_format=torch.channels_last).requires_grad_())
    layer(x[:, :9].to(memory_format=torch.channels_last).requires_grad_())
    assert not calls
    leaf = x.detach().requires_grad_()
    assert torch.equal(layer(leaf), F.max_pool2d(x, 2))
    assert len(calls) == 1


@pytest.mark.gpu
def test_wrong_tensors_are_refused() -> None:
    require_kernel("max_pool_2x2", "cuda")
    x = torch.zeros(2, 16, 4, 4, device="cuda").to(memory_format=torch.channels_last)
    small = F.max_pool2d(x, 2)
    forward, backward = torch.ops.yolo.max_pool_2x2, torch.ops.yolo.max_pool_2x2_backward
    last = torch.channels_last
    for call, message in (
        (lambda: forward(x[0]), "x must be \\[N, C, H, W\\], got 3 axes"),
        (lambda: forward(x.contiguous()), "x must be channels last"),
        (lambda: forward(x[:, :15].contiguous(memory_format=last)), "a multiple of 4 channels, got 15"),
        (lambda: forward(x[:, :, 1:].contiguous(memory_format=last)), "an even height and width, got 3 x 4"),
        (lambda: forward(x.double()), "must be float16, bfloat16 or float32|a multiple of"),
        (lambda: backward(x, x), "half the height and width of x"),
        (lambda: backward(small.half(), x), "its type"),
        (lambda: backward(small.contiguous(), x), "grad must be channels last"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()


def test_where_the_kernels_do_not_fit_pytorch_does_it() -> None:
    assert not pool.fits(torch.zeros(1, 8, 4, 4, requires_grad=True))
