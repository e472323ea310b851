"""Fake quantisation: values and gradients by hand, and a detector that learns its ranges."""

import pytest
import torch
from torch import nn

from yolo.models import FakeQuant, yolov2_tiny
from yolo.models.quantize import quantizable, rounded, rounded_input, rounded_weight, weight_scale


def test_weight_scales_are_per_channel() -> None:
    weight = torch.tensor([[[[1.0]], [[-2.54]]], [[[0.0]], [[127.0]]]])
    assert weight_scale(weight).tolist() == pytest.approx([0.02, 1.0])
    assert rounded_weight(weight).flatten().tolist() == pytest.approx([1.0, -2.54, 0.0, 127.0])


def test_rounding_lets_the_gradient_through() -> None:
    x = torch.tensor([-0.6, 0.5, 1.5, 2.4], requires_grad=True)  # halves go to the even number, as in ONNX
    y = rounded(x)
    assert y.tolist() == [-1.0, 0.0, 2.0, 2.0]
    (y * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_inputs_by_hand() -> None:
    """Steps of 0.1: inside, the range moves by what rounding did; outside, by all levels, and x not at all."""
    x = torch.tensor([0.32, 20.0, -20.0], requires_grad=True)
    limit = torch.tensor(12.7, requires_grad=True)
    y = rounded_input(x, limit)
    assert y.tolist() == pytest.approx([0.3, 12.7, -12.8])
    for index, (for_x, for_limit) in enumerate([(1.0, (3.0 - 3.2) / 127), (0.0, 1.0), (0.0, -128 / 127)]):
        got = torch.autograd.grad(y[index], (x, limit), retain_graph=True)
        assert got[0][index].item() == pytest.approx(for_x)
        assert got[1].item() == pytest.approx(for_limit, abs=1e-5)


def test_a_step_per_channel_commutes_with_the_batch_norm() -> None:
    """So that weights may be rounded before the norm in training and after folding in the export."""
    weight, gain = torch.randn(4, 3, 3, 3), torch.tensor([0.3, -2.0, 1e-3, 50.0]).reshape(-1, 1, 1, 1)
    torch.testing.assert_close(rounded_weight(weight * gain), rounded_weight(weight) * gain)


def test_everything_learns_and_nothing_stays_behind() -> None:
    torch.manual_seed(0)
    detector = yolov2_tiny(num_classes=3, width=0.0625)
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    ranges = dict.fromkeys(quantizable(detector), 2.0) | {next(iter(quantizable(detector))): 1.0}
    quantizer = FakeQuant(detector.eval(), ranges)
    assert quantizer.ranges() == pytest.approx(ranges)
    assert quantizer.log_limits.shape == (2,)  # equal ranges are of one tensor and stay one
    images = torch.rand(2, 3, 64, 64)
    (plain,), (rough,) = detector(images), quantizer(detector, images)
    assert 1e-4 < float((plain - rough).detach().norm() / plain.detach().norm()) < 0.5
    rough.square().sum().backward()
    for name, parameter in [*detector.named_parameters(), *quantizer.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert all(torch.equal(before[name], value) for name, value in detector.state_dict().items())
    assert not any(layer._forward_pre_hooks for layer in detector.modules())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_half_precision_trains_too(device: str) -> None:
    """Under autocast the rounding is done in float32, and every gradient is finite."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    torch.manual_seed(0)
    detector = yolov2_tiny(num_classes=3, width=0.0625).to(device)
    quantizer = FakeQuant(detector, dict.fromkeys(quantizable(detector), 2.0)).to(device)
    with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
        (output,) = quantizer(detector, torch.rand(2, 3, 64, 64, device=device))
    assert output.dtype in (torch.float16, torch.bfloat16)
    output.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in detector.parameters())
    assert float(quantizer.log_limits.grad.abs().sum()) > 0


def test_layers_that_are_left_out() -> None:
    detector = yolov2_tiny(num_classes=3, width=0.0625).eval()
    images = torch.rand(1, 3, 64, 64)
    (plain,), (same,) = detector(images), FakeQuant(detector, {})(detector, images)
    assert torch.equal(plain, same)
    with pytest.raises(ValueError, match=r"ranges are given for head.x; the layers are called "):
        FakeQuant(detector, {"head.x": 1.0})


def test_training_for_int8_mends_what_rounding_broke() -> None:
    """One channel a hundred times louder than the rest (arXiv:1906.04721, fig. 2) leaves those one or two levels.

    Fitting the rounded network to the outputs of the unrounded one brings most of the error away again.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.1), nn.Conv2d(8, 4, 3))
    with torch.no_grad():
        net[0].weight[0] *= 100
        net[0].bias[0] *= 100
        net[2].weight[:, 0] /= 100
    images = torch.rand(8, 3, 12, 12)
    want = net(images).detach()
    ranges = {"0": 1.0, "2": float(net[:2](images).detach().abs().max())}
    quantizer = FakeQuant(net, ranges)

    def error() -> torch.Tensor:
        return (quantizer(net, images) - want).square().mean()

    start = error().item()
    optimizer = torch.optim.Adam([*net.parameters(), *quantizer.parameters()], lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        error().backward()
        optimizer.step()
    assert error().item() < 0.5 * start
    assert quantizer.ranges()["2"] < 0.9 * ranges["2"]  # the loud channel is cut for the others' sake
