"""Rates by hand and the split of parameters."""

import itertools
import math

import pytest
import torch
from torch import nn

from yolo.models import yolov2_tiny, yolov3_tiny
from yolo.training.schedule import constant, cosine, parameter_groups, settling_from, steps


def rates(make, total: int, **options: float) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = make(optimizer, total, **options)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_cosine_warms_up_peaks_and_ends() -> None:
    found = rates(cosine, 101, warmup_steps=10, final=0.01)
    assert found[0] == pytest.approx(0.2)
    assert found[9] == pytest.approx(2.0)
    assert found[10] == pytest.approx(2.0)
    assert found[-1] == pytest.approx(0.02, abs=2e-3)
    assert all(later <= earlier for earlier, later in itertools.pairwise(found[10:]))


def test_steps_multiplies_at_the_fractions_of_the_run() -> None:
    found = rates(steps, 100, warmup_steps=4, at=(0.5, 0.9), scale=0.1, power=4.0)
    assert found[1] == pytest.approx(2.0 * (2 / 4) ** 4)
    assert [found[i] for i in (49, 50, 89, 90)] == pytest.approx([2.0, 0.2, 0.2, 0.02])


def test_a_short_run_is_not_all_warm_up() -> None:
    assert max(rates(cosine, 10, warmup_steps=1000)) == pytest.approx(2.0)
    assert rates(constant, 5) == [2.0] * 5


@pytest.mark.parametrize("make", [yolov2_tiny, yolov3_tiny])
def test_norms_and_biases_do_not_decay_and_every_parameter_is_in_one_group(make) -> None:
    model = make(num_classes=3, width=0.125)
    decayed, spared = parameter_groups(model, 5e-4)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)].rsplit(".", 1)[1] for p in decayed["params"]} == {"weight"}
    assert all(p.ndim == 4 for p in decayed["params"])
    assert {id(p) for p in [*decayed["params"], *spared["params"]]} == set(names)
    assert (decayed["weight_decay"], spared["weight_decay"]) == (5e-4, 0.0)


def test_frozen_parameters_reach_no_optimiser() -> None:
    model = yolov2_tiny(num_classes=3, width=0.125)
    model.backbone.requires_grad_(False)
    held = {id(p) for group in parameter_groups(model, 0.1) for p in group["params"]}
    assert held == {id(p) for p in model.head.parameters()}


@pytest.mark.parametrize(
    ("epochs", "settle", "first"), [(100, 10, 90), (20, 10, 16), (4, 10, 4), (100, 0, 100)]
)
def test_a_run_settles_in_its_last_epochs(epochs: int, settle: int, first: int) -> None:
    assert settling_from(epochs, settle) == first


def test_a_run_without_an_end_never_settles() -> None:
    assert settling_from(None, 10) == settling_from(-1, 10) == math.inf
