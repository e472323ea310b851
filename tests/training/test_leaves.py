"""Tensors that stand in for parameters while a step is recorded."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from yolo.models import yolov3_tiny
from yolo.training.leaves import Leaves, laid_out


def network() -> nn.Module:
    torch.manual_seed(0)
    return yolov3_tiny(num_classes=3, width=0.125).to(memory_format=torch.channels_last)


def through(leaves: Leaves, model: nn.Module, images: Tensor) -> Tensor:
    outputs = functional_call(model, leaves.tensors, (images,))
    return torch.stack([y.float().square().sum() for y in outputs]).sum()


@pytest.mark.parametrize("mixed", [False, True])
def test_values_and_gradients_are_those_of_the_parameters(mixed: bool) -> None:
    model = network()
    images = torch.rand(2, 3, 64, 64).to(memory_format=torch.channels_last)
    leaves = Leaves(model, torch.bfloat16 if mixed else torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.25)  # after the leaves were made
    leaves.refresh()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        plain = torch.stack([y.float().square().sum() for y in deepcopy(model)(images)]).sum()
        found = through(leaves, model, images)
    assert torch.equal(found, plain)
    leaves.collect(torch.autograd.grad(found, list(leaves.tensors.values())))
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        torch.stack([y.float().square().sum() for y in model(images)]).sum().backward()
    for p, gradient in zip(leaves.parameters, leaves.gradients(), strict=True):
        assert gradient.dtype == p.dtype
        assert gradient.stride() == p.stride()
        assert torch.equal(gradient, p.grad)


def test_norms_stay_as_precise_as_they_are() -> None:
    model = network()
    leaves = Leaves(model, torch.bfloat16)
    for name, p in model.named_parameters():
        leaf = leaves.tensors[name]
        # the first convolution's weights are spread over folds, whose gradients are added up in float32
        own = ".norm." in name or name == "backbone.convs.0.conv.weight"
        assert leaf.dtype == (torch.float32 if own else torch.bfloat16)
        assert (leaf.data_ptr() == p.data_ptr()) == own


def test_gradients_that_are_still_held_are_not_written_over() -> None:
    model = nn.Conv2d(2, 3, 1)
    leaves = Leaves(model, torch.float32)
    leaves.collect([torch.full_like(p, 2.0) for p in leaves.parameters])
    held = leaves.gradients()
    model.weight.grad = held[0]
    leaves.keep()
    leaves.collect([torch.full_like(p, 3.0) for p in leaves.parameters])
    assert model.weight.grad.eq(2.0).all()
    assert model.bias is not None
    assert model.bias.grad is None
    model.weight.grad = before = torch.ones_like(model.weight)
    leaves.keep()
    assert model.weight.grad is before  # of somebody else: stays


@pytest.mark.parametrize("shape", [(4, 3, 3, 3), (4, 3, 1, 1), (4,), (1, 3, 1, 1)])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("wanted", [torch.contiguous_format, torch.channels_last])
def test_laid_out(shape: tuple[int, ...], order: torch.memory_format, wanted: torch.memory_format) -> None:
    values = torch.rand(shape)
    to = torch.empty(shape)
    if len(shape) == 4:
        values, to = (
            torch.empty(shape, memory_format=order).copy_(values),
            torch.empty(shape, memory_format=wanted),
        )
    found = laid_out(values, to)
    assert found.stride() == to.stride()
    assert torch.equal(found, values)
    assert (found.data_ptr() == values.data_ptr()) == (order == wanted or shape[2:] != (3, 3))
