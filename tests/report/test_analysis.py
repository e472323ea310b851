"""Curves, thresholds, mix-ups and worst pictures of a set that can be checked by hand."""

import numpy as np
import pytest

from tests.metrics.sets import found, record, score, truth
from yolo.metrics.pictures import Picture, picture
from yolo.report.analysis import best_threshold, calibration, class_curves, confusion, judge

CLASSES = ["kite", "boat"]
A, B, C = [0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]


def one(name: str, of: object, what: object) -> Picture:
    return picture(what, record(name, of), len(CLASSES), 0.0)  # type: ignore[arg-type]


def pictures() -> list[Picture]:
    """Two kites and a boat in one picture, a kite in the other."""
    return [
        # kite A found, kite B taken for a boat, boat C missed, one false alarm
        one("a", truth([A, B, C], [0, 0, 1]), found([A, B, [60, 0, 70, 10]], [0.9, 0.8, 0.3], [0, 1, 0])),
        one("b", truth([A], [0]), found([A], [0.6], [0])),
    ]


def test_curves_agree_with_the_metric() -> None:
    kite, boat = class_curves(pictures(), CLASSES)
    assert kite.scores.tolist() == pytest.approx([0.9, 0.6, 0.3])
    assert kite.hits.tolist() == [True, True, False]
    np.testing.assert_allclose(kite.precision, [1, 1, 2 / 3])
    np.testing.assert_allclose(kite.recall, [1 / 3, 2 / 3, 2 / 3])
    assert boat.ap50 == 0.0
    of = pictures()
    report = score(
        CLASSES, [found(x.boxes, x.scores, x.labels) for x in of], [record(x.image_id, x.truth) for x in of]
    )
    assert kite.ap50 == report["per_class"]["kite"]["voc_ap50"]


def test_f1_counts_what_scores_more_than_the_threshold() -> None:
    kite = class_curves(pictures(), CLASSES)[0]
    # above 0.5: 2 of 3 found without a false alarm; above 0.2: one false alarm; above 0.9 (float32): nothing
    np.testing.assert_allclose(kite.f1(np.array([0.2, 0.5, 0.95])), [4 / 6, 4 / 5, 0.0])
    threshold, best = best_threshold([kite])
    assert (threshold, best) == (pytest.approx(0.31, abs=0.011), pytest.approx(0.8))


def test_a_class_without_objects_has_no_curve() -> None:
    only = [one("a", truth([A], [0]), found([A, B], [0.9, 0.8], [0, 1]))]
    assert [curve.name for curve in class_curves(only, CLASSES)] == ["kite"]
    assert class_curves([one("a", truth(), found([A], [0.9]))], CLASSES) == []
    assert best_threshold([]) == (0.25, 0.0)


def test_confusion() -> None:
    assert confusion(pictures(), 2, 0.2).tolist() == [[2, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert confusion(pictures(), 2, 0.7).tolist() == [[1, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_difficult_objects_are_neither_missed_nor_false_alarms() -> None:
    hard = truth([A, B], [0, 0], difficult=[True, True])
    rows = [one("a", hard, found([A, A], [0.9, 0.8]))]
    assert confusion(rows, 2, 0.0).sum() == 0
    judged = judge(rows, 0.0)[0]
    assert (judged.hits, judged.false_alarms, judged.misses, judged.f1) == (0, 0, 0, 1.0)


def test_the_worst_come_first() -> None:
    rows = judge([*pictures(), one("c", truth([A]), found()), one("d", truth(), found())], 0.2)
    assert [row.picture.image_id for row in rows] == ["c", "a", "b", "d"]
    assert (rows[1].hits, rows[1].false_alarms, rows[1].misses) == (1, 2, 2)
    assert rows[1].f1 == pytest.approx(2 / 6)


def test_calibration() -> None:
    """Of ten detections that score .85 five find something: precision .5, off by .35."""
    boxes = [[20 * i, 0, 20 * i + 10, 10] for i in range(10)]
    curves = class_curves([one("a", truth(boxes[:5]), found(boxes, [0.85] * 10))], CLASSES)
    table = calibration(curves)
    assert table.count.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 10, 0]
    assert (table.score[8], table.precision[8]) == (pytest.approx(0.85), pytest.approx(0.5))
    assert table.error == pytest.approx(0.35)
    assert np.isnan(table.score[0])
