"""Batch norm with activation: against PyTorch's modules, in float64, by steps, in two processes."""

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from tests.ops.scenes import DEVICES, DTYPES, PLAIN, ROUNDING, SLOPE, backward_names, require_kernel
from yolo.models.layers import ConvBnAct, Residual
from yolo.ops import batch_norm_act
from yolo.ops.norm_reference import ACTIVATIONS


def make(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, gradient and residual of ``shape``, channels last, channels far apart; weight and bias."""
    generator = torch.Generator().manual_seed(seed)
    x, grad, residual = (torch.randn(shape, generator=generator) for _ in range(3))
    channels = shape[1]
    x = x * torch.linspace(0.1, 3, channels)[:, None, None] + torch.linspace(-4, 4, channels)[:, None, None]
    weight, bias = torch.rand(channels, generator=generator) + 0.5, torch.randn(channels, generator=generator)
    last = torch.channels_last
    x, grad, residual = (t.to(device, dtype, memory_format=last) for t in (x, grad, residual))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return x, grad, residual, weight.to(device, wide), bias.to(device, wide)


def run(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, grad: Tensor, act: str, plain: bool
) -> dict[str, Tensor]:
    """Output, gradients and moved running statistics, by the operator or by PyTorch in float64."""
    leaves = {"x": x, "weight": weight, "bias": bias}
    if residual is not None:
        leaves["residual"] = residual
    wide = {k: (v.double() if plain else v).detach().clone().requires_grad_() for k, v in leaves.items()}
    mean, var = torch.zeros_like(wide["bias"]).detach(), torch.ones_like(wide["bias"]).detach()
    if plain:
        z = F.batch_norm(wide["x"], mean, var, wide["weight"], wide["bias"], True, 0.1, 1e-5)
        y = PLAIN[act](z) + wide.get("residual", torch.zeros(1, device=x.device))
    else:
        y = batch_norm_act(
            wide["x"],
            wide["weight"],
            wide["bias"],
            mean,
            var,
            act=act,  # type: ignore[arg-type]
            slope=SLOPE,
            residual=wide.get("residual"),
            momentum=0.1,
            eps=1e-5,
        )
        assert y.dtype == x.dtype
        assert y.is_contiguous(memory_format=torch.channels_last)
    y.backward(grad.to(y.dtype))
    return {"y": y.detach(), "mean": mean, "var": var} | {f"d{k}": v.grad for k, v in wide.items()}


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor], dtype: torch.dtype) -> None:
    for name, want in wanted.items():
        scale = want.abs().max().item()
        error = (found[name].double() - want).abs().max().item() / scale
        rounded = name in ("y", "dx", "dresidual")
        # sums over thousands of values that nearly cancel are as good as float32 lets them be
        limit = ROUNDING[dtype] if rounded else max(ROUNDING[dtype] / 100, 1e-5)
        assert error <= limit, f"{name} is off by {error:.1e} of {scale:.2g}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("added", [False, True], ids=["bare", "residual"])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_agrees_with_pytorch_in_float64(act: str, added: bool, dtype: torch.dtype, device: str) -> None:
    if device == "cuda":
        require_kernel("batch_norm_act", device)
    x, grad, residual, weight, bias = make((3, 24, 9, 14), dtype, device)
    more = residual if added else None
    wanted = run(x, weight, bias, more, grad, act, plain=True)
    assert_near(run(x, weight, bias, more, grad, act, plain=False), wanted, dtype)


SHAPES = [
    (2, 8, 1, 1),
    (1, 8, 3, 1),
    (2, 16, 5, 5),
    (1, 72, 7, 3),
    (5, 136, 1, 9),
    (2, 320, 33, 31),
    (1, 1024, 20, 20),
    (2, 2048, 4, 4),
    (4, 64, 160, 160),
    (16, 32, 300, 300),
    (0, 8, 4, 4),
]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Rows and channels that fill no block, one block, many; two values a channel."""
    require_kernel("batch_norm_act", "cuda")
    x, grad, residual, weight, bias = make(shape, dtype, "cuda")
    if not x.numel():
        with pytest.raises(RuntimeError, match="more than one value of each, got 0 of 8"):
            run(x, weight, bias, residual, grad, "mish", plain=False)
        return
    wanted = run(x, weight, bias, residual, grad, "mish", plain=True)
    found = run(x, weight, bias, residual, grad, "mish", plain=False)
    if shape[0] * shape[2] * shape[3] < 10:  # dx is a difference that all but cancels
        found.pop("dx"), wanted.pop("dx")
    assert_near(found, wanted, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_large_means_cost_no_digits(offset: float) -> None:
    """Squares of 10,000 would leave no digit of a variance of 1; deviations do."""
    require_kernel("batch_norm_act", "cuda")
    x = torch.randn(8, 64, 40, 40, device="cuda", dtype=torch.float64) + offset
    x = x.float().to(memory_format=torch.channels_last)
    x[0, :, 0, 0] += 50.0  # where the first block starts
    statistics = torch.ops.yolo.batch_norm_act(x, *torch.ones(2, 64, device="cuda"), None, 0, 0.0, 0.0)[1]
    wide = x.double()
    torch.testing.assert_close(statistics[0].double(), wide.mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(statistics[2].double(), wide.var((0, 2, 3)), rtol=1e-4, atol=0.0)


@pytest.mark.gpu
def test_repeats_bit_for_bit() -> None:
    require_kernel("batch_norm_act", "cuda")
    x, grad, residual, weight, bias = make((8, 64, 80, 80), torch.float16, "cuda")
    first, second = (run(x, weight, bias, residual, grad, "leaky", plain=False) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("device", DEVICES)
def test_extreme_values(device: str) -> None:
    """Activations of large numbers stay finite; what is not a number stays that."""
    if device == "cuda":
        require_kernel("norm_act", device)
    x = torch.tensor([-3e4, -100.0, -20.0, 0.0, 20.0, 100.0, 3e4, 1.0], device=device)
    x = x.reshape(1, 1, 1, 8).repeat(1, 8, 1, 1).to(memory_format=torch.channels_last)
    one, zero = torch.ones(8, device=device), torch.zeros(8, device=device)
    identity = torch.stack((zero, one, one))
    for index, act in enumerate(ACTIVATIONS):
        z = x.detach().clone().requires_grad_()
        wanted = PLAIN[act](z)
        wanted.sum().backward()
        found = torch.ops.yolo.norm_act(x, one, zero, identity, None, index, SLOPE)
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-6)
        none = torch.zeros(2, 8, device=device)
        grad = torch.ones_like(x)
        dx = torch.ops.yolo.norm_act_grad(grad, x, one, zero, identity, none, index, SLOPE)
        torch.testing.assert_close(dx, z.grad, rtol=1e-5, atol=1e-6)
        bad = torch.full_like(x, float("nan"))
        assert torch.ops.yolo.norm_act(bad, one, zero, identity, None, index, SLOPE).isnan().all()


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_gradient_of_reference(act: str) -> None:
    """The formulas of the backward pass against finite differences, in float64."""
    x, _, residual, weight, bias = make((2, 3, 2, 3), torch.float64, "cpu")
    inputs = [t.requires_grad_() for t in (x, weight, bias, residual)]
    assert torch.autograd.gradcheck(
        lambda x, w, b, r: batch_norm_act(x, w, b, act=act, slope=SLOPE, residual=r),  # type: ignore[arg-type]
        inputs,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_registration(device: str) -> None:
    if device == "cuda":
        require_kernel("batch_norm_act", device)
    x, grad, residual, weight, bias = make((2, 8, 3, 5), torch.float32, device)
    ops = torch.ops.yolo
    statistics = ops.batch_norm_act(x, weight, bias, None, 2, 0.0, 1e-5)[1]
    common = (grad, x, weight, bias, statistics)
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    torch.library.opcheck(ops.batch_norm_act.default, (*leaves, residual, 1, 0.1, 1e-5))
    torch.library.opcheck(ops.batch_norm_act_backward.default, (*common, 2, 0.0))
    torch.library.opcheck(ops.batch_norm_sums.default, (x,))
    torch.library.opcheck(ops.norm_act.default, (x, weight, bias, statistics, residual, 3, 0.0))
    torch.library.opcheck(ops.norm_act_sums.default, (*common, 0, 0.0))
    torch.library.opcheck(ops.norm_act_grad.default, (*common, statistics[:2].contiguous(), 2, 0.0))


@pytest.mark.gpu
def test_wrong_tensors_are_refused() -> None:
    """The bare operator checks what would make it read outside its memory."""
    require_kernel("batch_norm_act", "cuda")
    x, _, residual, weight, bias = make((2, 16, 4, 4), torch.float16, "cuda")
    for bad, message in (
        ((x.contiguous(), weight, bias, None, 1), "x must be channels last"),
        ((x[:, :12], weight[:12], bias[:12], None, 1), "x must be channels last"),
        ((x, weight[:8], bias, None, 1), "weight must be 16 float32 numbers"),
        ((x, weight, bias.double(), None, 1), "bias must be 16 float32 numbers"),
        ((x, weight, bias, residual.float(), 1), "residual must have the shape, type and device"),
        ((x, weight, bias, residual[:1], 1), "residual must have the shape, type and device"),
        ((x, weight, bias, None, 4), "act must be 0 to 3, got 4"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.yolo.batch_norm_act(*bad, 0.1, 1e-5)


def test_unknown_activation() -> None:
    with pytest.raises(ValueError, match="an activation is one of linear, leaky, mish, silu, got 'relu'"):
        batch_norm_act(torch.zeros(1, 8, 2, 2), torch.ones(8), torch.ones(8), act="relu")  # type: ignore[arg-type]


def _share(rank: int, folder: str, device: str) -> None:
    """One of two processes: three pictures here, two there."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    x, grad, residual, weight, bias = make((5, 8, 6, 7), torch.float32, device)
    part = slice(0, 3) if rank == 0 else slice(3, 5)
    leaves = [t.detach().clone().requires_grad_() for t in (x[part], weight, bias, residual[part])]
    mean, var = torch.zeros(8, device=device), torch.ones(8, device=device)
    y = batch_norm_act(
        *leaves[:3], mean, var, act="mish", residual=leaves[3], momentum=0.1, group=dist.group.WORLD
    )
    y.backward(grad[part])
    found = [y.detach(), mean, var, *(t.grad for t in leaves)]
    torch.save([t.cpu() for t in found], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("device", DEVICES)
def test_two_processes_are_one_batch(device: str, tmp_path: Path) -> None:
    if device == "cuda":
        require_kernel("batch_norm_act", device)
    mp.spawn(_share, args=(str(tmp_path), device), nprocs=2)
    x, grad, residual, weight, bias = make((5, 8, 6, 7), torch.float32, device)
    wanted = run(x, weight, bias, residual, grad, "mish", plain=True)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    whole = {
        "y": torch.cat((first[0], second[0])),
        "dx": torch.cat((first[3], second[3])),
        "dweight": first[4] + second[4],
        "dbias": first[5] + second[5],
        "dresidual": torch.cat((first[6], second[6])),
    }
    for mine in (first, second):
        assert_near(
            whole | {"mean": mine[1], "var": mine[2]}, {k: v.cpu() for k, v in wanted.items()}, x.dtype
        )


def test_module_state_is_unchanged() -> None:
    """Checkpoints know nothing of the operator."""
    keys = set(ConvBnAct(3, 8).state_dict())
    assert keys == {"conv.weight"} | {
        f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def block(device: str, act: str = "leaky") -> nn.Module:
    torch.manual_seed(0)
    return Residual(16, 8, act=act).to(device, memory_format=torch.channels_last)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("act", ["leaky", "mish", "linear"])
def test_block_trains_alike_fused_and_plain(act: str, mode: str) -> None:
    """A residual block under autocast: the same outputs, gradients and statistics, up to half precision."""
    require_kernel("batch_norm_act", "cuda")
    fused = block("cuda", act)
    plain = copy.deepcopy(fused)
    x = torch.randn(4, 16, 20, 20, device="cuda").to(memory_format=torch.channels_last)
    results = []
    for module, planar in ((fused, False), (plain, True)):
        # the plain modules see planes, which the kernels do not take
        module = module.to(memory_format=torch.contiguous_format) if planar else module
        call = torch.compile(module, backend="aot_eager") if mode == "compiled" and not planar else module
        leaf = (x.contiguous() if planar else x).half().detach().requires_grad_()
        with torch.autocast("cuda", torch.float16):
            y = call(leaf)
        if mode == "eager":
            assert any("_Eager" in name for name in backward_names(y)) != planar
        y.float().square().mean().backward()
        grads = [p.grad for p in module.parameters()]
        results.append([y.detach(), leaf.grad, *grads, *(b.float() for b in module.buffers())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=2e-2, atol=2e-2 * b.abs().max().item())


@pytest.mark.parametrize("act", ["leaky", "mish", "linear"])
def test_one_graph_without_breaks(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled through the registered operator, on its reference: what the eager function gives, bit for bit."""
    monkeypatch.setattr("yolo.models.fused.fits", lambda *_: True)
    eager = block("cpu", act)
    traced = copy.deepcopy(eager)
    x = torch.randn(2, 16, 5, 5).to(memory_format=torch.channels_last)
    for module, call in (
        (eager, eager),
        (traced, torch.compile(traced, backend="aot_eager", fullgraph=True)),
    ):
        call(x).square().mean().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())
    for a, b in zip(eager.parameters(), traced.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(eager.buffers(), traced.buffers(), strict=True):
        assert torch.equal(a, b)
    torch.compiler.reset()
