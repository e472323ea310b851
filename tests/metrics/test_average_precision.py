from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yolo.metrics import average_precision


def ap(text: str, positives: int, points: object = "area") -> float | None:
    """Hits as a string: + found an object, - did not."""
    return average_precision(np.array([letter == "+" for letter in text], bool), positives, points)  # type: ignore[arg-type]


def test_area_by_hand() -> None:
    """+ - + of two objects: precision 1 up to recall 1/2, then 2/3."""
    assert ap("+-+", 2) == pytest.approx(0.5 + 0.5 * 2 / 3)


def test_eleven_points_by_hand() -> None:
    """Recalls 0 to .5 (six of them) have precision 1, .6 to 1 (five) have 2/3."""
    assert ap("+-+", 2, 11) == pytest.approx((6 + 5 * 2 / 3) / 11)


def test_101_points_by_hand() -> None:
    """Half the objects found without a false alarm: 51 of the 101 recalls (case E04)."""
    assert ap("+", 2, 101) == pytest.approx(0.50495, abs=1e-5)


def test_equal_fractions_are_equal() -> None:
    """Recall 3/10 reaches the point .3, which 3 * .1 in binary does not."""
    assert ap("+++", 10, 11) == pytest.approx(4 / 11)


def test_false_alarm_first_halves_precision() -> None:
    assert ap("-+", 1) == 0.5


@pytest.mark.parametrize("points", ["area", 11, 101])
def test_empty(points: object) -> None:
    assert ap("", 0, points) is None
    assert ap("--", 0, points) is None
    assert ap("", 3, points) == 0.0
    assert ap("---", 3, points) == 0.0


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 5), st.sampled_from(["area", 11, 101]))
def test_equals_the_definition(hits: list[bool], missed: int, points: object) -> None:
    """Against exact fractions: the best precision at any recall at least as high."""
    positives = sum(hits) + missed
    got = average_precision(np.array(hits, bool), positives, points)  # type: ignore[arg-type]
    if positives == 0:
        assert got is None
        return
    curve = [
        (Fraction(sum(hits[:k]), positives), Fraction(sum(hits[:k]), k)) for k in range(1, len(hits) + 1)
    ]

    def best(recall: Fraction) -> Fraction:
        return max((p for r, p in curve if r >= recall), default=Fraction(0))

    if points == "area":
        want = sum((best(Fraction(k, positives)) / positives for k in range(1, positives + 1)), Fraction(0))
    else:
        assert isinstance(points, int)
        want = sum((best(Fraction(k, points - 1)) for k in range(points)), Fraction(0)) / points
    assert got == pytest.approx(float(want), abs=1e-12)
