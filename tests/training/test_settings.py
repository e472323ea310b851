"""What ``auto`` becomes."""

import math

import pytest
from omegaconf import OmegaConf

from tests.test_configs import CONFIGS
from yolo.training.settings import SEARCH_PAYS, resolved

GIVEN = OmegaConf.load(CONFIGS / "trainer/default.yaml")


def test_precision_suits_the_device() -> None:
    assert resolved(GIVEN, True, True, 0)["precision"] == "16-mixed"
    assert resolved(GIVEN, False, True, 0)["precision"] == "32-true"
    assert resolved({**GIVEN, "precision": "bf16-mixed"}, True, True, 0)["precision"] == "bf16-mixed"


@pytest.mark.parametrize(
    ("on_gpu", "one_size", "pictures", "searches"),
    [
        (True, True, SEARCH_PAYS, True),
        (True, True, math.inf, True),
        (True, True, SEARCH_PAYS - 1, False),
        (True, False, math.inf, False),
        (False, True, math.inf, False),
    ],
)
def test_kernels_are_searched_where_it_pays(
    on_gpu: bool, one_size: bool, pictures: float, searches: bool
) -> None:
    assert resolved(GIVEN, on_gpu, one_size, pictures)["benchmark"] is searches


def test_what_is_said_is_kept() -> None:
    assert resolved({**GIVEN, "benchmark": True}, False, False, 0)["benchmark"] is True
    assert resolved(GIVEN, True, True, 0) | {"precision": 0, "benchmark": 0} == {
        **GIVEN,
        "precision": 0,
        "benchmark": 0,
    }
