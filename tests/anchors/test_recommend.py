from dataclasses import replace

import numpy as np
import pytest

from yolo.anchors import (
    Assignment,
    Boxes,
    Study,
    describe,
    held_out_gain,
    kmeans,
    objections,
    reach,
    refine,
    specs_with,
)
from yolo.anchors.statistics import closest
from yolo.models import yolov2, yolov3, yolov4_tiny

V2, V3 = yolov2(num_classes=1, width=0.05).specs, yolov3(num_classes=1, width=0.05).specs
ASSIGNMENTS = [Assignment(), Assignment("iou", 0.213), Assignment("ratio", 4.0, every=False)]


def cells(boxes: int = 1500, seed: int = 0) -> Boxes:
    """Like blood cells: nearly all of one size, a rare class of small ones and one of large ones."""
    generator = np.random.default_rng(seed)
    parts = [(boxes, 70), (boxes // 12, 26), (boxes // 12, 140)]
    rows = [generator.normal(0, 0.12, (n, 2)) + generator.normal(0, 0.12, (n, 1)) for n, _ in parts]
    wh = np.concatenate([mean * np.exp(row) for (_, mean), row in zip(parts, rows, strict=True)])
    return Boxes.of(wh, np.repeat([0, 1, 2], [n for n, _ in parts]), ["red", "platelet", "white"])


def like(specs: tuple, boxes: int = 2000, seed: int = 0) -> Boxes:
    """Boxes that the published anchors suit."""
    generator = np.random.default_rng(seed)
    anchors = np.array(specs[0].all_anchors)
    return Boxes.of(
        anchors[generator.integers(len(anchors), size=boxes)] * np.exp(generator.normal(0, 0.25, (boxes, 2)))
    )


@pytest.mark.parametrize("assignment", ASSIGNMENTS, ids=str)
def test_refining_gains_under_guard(assignment: Assignment) -> None:
    boxes, limits = cells(), reach(V3)
    anchors = refine(boxes, V3, assignment=assignment, limits=limits, rounds=2)
    before, after = (
        describe(boxes, V3, assignment, limits),
        describe(boxes, specs_with(V3, anchors), assignment, limits),
    )
    assert after.average_iou > before.average_iou + 0.05
    assert all(after.class_iou[name] > before.class_iou[name] - 1e-9 for name in before.class_iou)
    assert closest(anchors) <= 0.6 + 1e-9
    assert after.misplaced == before.misplaced == ()
    assert (np.diff(anchors.prod(axis=1)) >= 0).all()
    np.testing.assert_array_equal(anchors, refine(boxes, V3, assignment=assignment, limits=limits, rounds=2))


def test_anchors_that_no_box_needs_stay() -> None:
    anchors = refine(Boxes.of([[60, 62]] * 500), V2, rounds=0)
    published = np.array(V2[0].all_anchors)
    np.testing.assert_allclose(anchors[[0, 2, 3, 4]], published[[0, 2, 3, 4]], rtol=0.02)
    np.testing.assert_allclose(anchors[1], [60, 62], rtol=0.03)


def test_rare_class_keeps_an_anchor() -> None:
    """Plain k-means of few clusters gives the rare class up, and mAP counts it in full."""
    boxes = cells()
    guarded = describe(boxes, specs_with(V2, refine(boxes, V2, rounds=2)))
    assert guarded.class_iou["platelet"] > 0.7
    assert guarded.class_iou["white"] > 0.7


def test_anchor_without_a_head_is_left_alone() -> None:
    specs = yolov4_tiny(num_classes=1, width=0.1).specs
    anchors = refine(cells(), specs, rounds=1)
    assert anchors[0].tolist() == [10, 14]
    fit = describe(cells(), specs_with(specs, anchors))
    assert fit.lost <= describe(cells(), specs).lost


def test_defaults_that_are_as_good_are_kept() -> None:
    study = Study(like(V3), V3, ASSIGNMENTS[2])
    study.add_refined(rounds=1)
    study.add_kmeans(restarts=2)
    verdict = study.verdict()
    assert verdict.name == "published"
    assert any("as good" in reason for reason in verdict.reasons)


def test_one_size_for_all_is_not_recommended_by_average_iou() -> None:
    """pjreddie/darknet#1033: nine clusters inside one cloud reach a high average IoU and train badly."""
    boxes = cells()
    study = Study(boxes, V3)
    fit = study.add_kmeans(restarts=3)
    study.add_refined(rounds=1)
    assert fit is not None
    assert fit.average_iou > study.fits["published"].average_iou + 0.1
    reasons = objections(fit, study.fits["published"], boxes)
    assert any("nearly the same" in reason for reason in reasons)
    assert study.verdict().name == "refined"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"average_iou": 0.5}, "as good"),
        ({"recall": 0.5}, "recall"),
        ({"closest": 0.9}, "nearly the same"),
        ({"misplaced": (0,)}, "belongs to another head"),
        ({"lost": 0.2}, "no head would train on 20.0%"),
        ({"floating": 0.5}, "between two heads"),
        ({"positives": 8.0}, "8.0 predictions would answer"),
        ({"heads": (0.0, 0.5, 0.5)}, "the head of stride 32 would train on 0.0%"),
        ({"class_iou": {"all": 0.6, "rare": 0.1}}, "in the mean over the classes"),
        ({"class_iou": {"all": 0.9, "rare": 0.45}}, "class rare loses 0.050"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_objection(change: dict, words: str) -> None:
    boxes = Boxes.of(np.full((400, 2), 50.0), np.repeat([0, 1], 200), ["all", "rare"])
    base = describe(boxes, V3)
    default = replace(
        base, average_iou=0.5, recall=0.9, class_iou={"all": 0.5, "rare": 0.5}, heads=(0.3, 0.3, 0.4),
        positives=2.0, floating=0.1, lost=0.0, closest=0.4,
    )  # fmt: skip
    better = replace(default, average_iou=0.6, class_iou={"all": 0.6, "rare": 0.6})
    assert objections(better, default, boxes) == []
    found = objections(replace(better, **change), default, boxes)
    assert any(words in objection for objection in found), found


def test_what_does_not_hold_on_other_boxes_is_refused() -> None:
    boxes = Boxes.of(np.full((400, 2), 50.0))
    default = replace(describe(boxes, V3), average_iou=0.5, class_iou={"all": 0.5})
    better = replace(default, average_iou=0.6, class_iou={"all": 0.6})
    assert objections(better, default, boxes, held_out=0.08) == []
    assert "not fitted to" in objections(better, default, boxes, held_out=0.001)[0]
    assert "too few" in objections(better, default, Boxes.of(np.full((100, 2), 50.0)), held_out=0.08)[0]


def test_held_out_gain_sees_through_overfitting() -> None:
    generator = np.random.default_rng(0)
    few = Boxes.of(np.exp(generator.uniform(np.log(8), np.log(400), (40, 2))))
    anchors = np.array(V3[0].all_anchors)
    inside = describe(few, specs_with(V3, kmeans(few.all, 9))).average_iou - describe(few, V3).average_iou
    outside = held_out_gain(few, anchors, lambda boxes: kmeans(boxes.all, 9))
    assert outside is not None
    assert outside < inside - 0.05


def test_other_number_of_anchors_is_for_training_to_judge() -> None:
    study = Study(cells(), V2)
    study.add_kmeans(7, restarts=2)
    assert study.verdict().name == "published"
    assert "7 anchors in place of 5" in study.verdict().reasons[0]


def test_heads_must_be_able_to_share() -> None:
    with pytest.raises(ValueError, match="multiple of 3"):
        Study(cells(), V3).add_kmeans(7)


def test_given_sets_are_compared_and_wrong_ones_refused() -> None:
    study = Study(cells(), V2)
    study.add_given("mine", [[20, 20], [30, 30], [60, 60], [75, 75], [140, 140]])
    assert study.fits["mine"].average_iou > study.fits["published"].average_iou
    with pytest.raises(ValueError, match="width and a height"):
        study.add_given("broken", [[20], [30], [60], [75], [140]])
