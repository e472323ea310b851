"""Suppression with fixed shapes gives what yolo.ops.detect gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.deploy.making import RULE, pictures, scene, toy
from yolo.deploy.graph import Deployed, Network, Suppression, deployable, predictions_at, spare_rows, suppress
from yolo.deploy.runtime import suppress_dense
from yolo.ops import detect
from yolo.ops.heads import HeadSpec


def compare(boxes: torch.Tensor, scores: torch.Tensor, rule: Suppression) -> None:
    spare = max(0, rule.candidates - boxes.shape[1] * (scores.shape[2] if rule.multi_label else 1))
    got = suppress(boxes, scores, rule, spare)
    want = suppress_dense(boxes, scores, rule)
    for name, a, b in zip(want._fields, want, got, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")


def test_by_hand() -> None:
    """Two overlapping boxes of one class leave one; the same box in another class stays; best first."""
    same = [0.0, 0.0, 10.0, 10.0]
    boxes, scores = scene([same, [1.0, 0.0, 11.0, 10.0], same], [[0.6, 0.0], [0.9, 0.0], [0.0, 0.7]])
    rule = Suppression(score_threshold=0.5, iou_threshold=0.5, max_detections=4, candidates=4)
    box, found, label, count = suppress(boxes, scores, rule, 1)
    assert count.tolist() == [2]
    assert found[0].tolist() == pytest.approx([0.9, 0.7, 0, 0])
    assert label[0].tolist() == [0, 1, 0, 0]
    assert box[0, 0].tolist() == [1.0, 0.0, 11.0, 10.0]
    assert box[0, 2:].abs().sum() == 0


def test_thresholds_are_strict() -> None:
    """A score equal to the threshold is no candidate; an IoU equal to the threshold suppresses nothing."""
    boxes, scores = scene(
        [[0.0, 0.0, 3.0, 1.0], [1.0, 0.0, 4.0, 1.0], [9.0, 9.0, 10.0, 10.0]], [[0.9], [0.8], [0.5]]
    )
    rule = Suppression(score_threshold=0.5, iou_threshold=0.5, max_detections=3, candidates=3)
    assert suppress(boxes, scores, rule)[3].tolist() == [2]  # IoU 2 / 4
    compare(boxes, scores, rule)


def test_a_chain_is_greedy() -> None:
    """Each box overlaps the next: first, third, fifth stay, although every one has a better neighbour."""
    boxes, scores = scene(
        [[4.0 * i, 0.0, 4.0 * i + 10.0, 10.0] for i in range(9)], [[0.9 - 0.05 * i] for i in range(9)]
    )
    rule = Suppression(score_threshold=0.1, iou_threshold=0.4, max_detections=9, candidates=9)
    box, _, _, count = suppress(boxes, scores, rule)
    assert box[0, : int(count), 0].tolist() == [0.0, 8.0, 16.0, 24.0, 32.0]
    compare(boxes, scores, rule)


def test_numbers_that_are_none() -> None:
    """NaN scores and boxes that are not finite are no candidates and hide nothing."""
    nan, inf = float("nan"), float("inf")
    good = [0.0, 0.0, 5.0, 5.0]
    boxes, scores = scene(
        [good, [nan, 0.0, 5.0, 5.0], [0.0, 0.0, inf, 5.0], [50.0, 50.0, 60.0, 60.0]],
        [[nan, 0.6], [0.9, 0.9], [0.9, 0.9], [0.7, nan]],
    )
    rule = Suppression(score_threshold=0.5, max_detections=4, candidates=4)
    _, found, label, count = suppress(boxes, scores, rule)
    assert count.tolist() == [2]
    assert list(zip(found[0, :2].tolist(), label[0, :2].tolist(), strict=True)) == [
        (pytest.approx(0.7), 0),
        (pytest.approx(0.6), 1),
    ]


def test_nothing_found_is_all_zero() -> None:
    boxes, scores = torch.rand(2, 5, 4), torch.zeros(2, 5, 3)
    for values in suppress(boxes, scores, Suppression(max_detections=5, candidates=8), 3):
        assert values.abs().sum() == 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    spread=st.floats(5, 200),
    classes=st.integers(1, 4),
    iou=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    multi=st.booleans(),
    agnostic=st.booleans(),
    kept=st.sampled_from([1, 7, 60]),
)
def test_equals_detect(
    seed: int, spread: float, classes: int, iou: float, multi: bool, agnostic: bool, kept: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand((2, 60, 2), generator=generator) * spread
    size = torch.rand((2, 60, 2), generator=generator) * 40 + 1
    scores = torch.rand((2, 60, classes), generator=generator)
    compare(
        torch.cat((corner, corner + size), dim=-1),
        scores,
        Suppression(0.2, iou, kept, multi, agnostic, candidates=60 * classes),
    )


def test_whole_module_equals_detect() -> None:
    """X08's other half: PyTorch's path and the module that is exported use the same rule."""
    detector = toy().detector
    images = pictures(2, 48, 80)
    for rule in (RULE, Suppression(0.3, multi_label=True, max_detections=300, candidates=900)):
        spare = spare_rows(detector.specs, rule, 48, 80)
        module = Deployed(Network(deployable(detector)), detector.specs, rule, spare=spare).eval()
        with torch.no_grad():
            got = module(images)[:4]
            want = detect(detector(images / 255.0), detector.specs, **rule.detect_options())
        assert want.count.min() > 3
        for a, b in zip(want, got, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("candidates", [299, 3841])
def test_number_of_candidates_has_limits(candidates: int) -> None:
    with pytest.raises(ValueError, match=f"between max_detections \\(300\\) and 3840 .* got {candidates}"):
        Suppression(candidates=candidates)


def test_counts_predictions() -> None:
    grid = HeadSpec("grid", 20, 64, boxes_per_cell=2, side=7)
    region = HeadSpec("region", 20, 32, ((1.0, 1.0),) * 5, (0, 1, 2, 3, 4))
    assert predictions_at([grid], 448, 448) == 98
    assert predictions_at([region], 64, 96) == 30
    assert spare_rows([region], Suppression(max_detections=10, candidates=100), 64, 96) == 70
