import numpy as np
import pytest

from tests.metrics.sets import found, record, truth
from yolo.metrics.matching import Ranking, Rule, pairwise_iou, rank
from yolo.metrics.pictures import picture
from yolo.metrics.pool import pool
from yolo.types import Found, Truth

BOX = [0, 0, 10, 10]
HALF = [0, 0, 10, 5]  # IoU with BOX exactly .5
FAR = [50, 50, 60, 60]


def ranked(pairs: list[tuple[Found, Truth]], rule: Rule = "voc", classes: int = 1) -> list[Ranking]:
    pictures = [picture(f, record(str(i), t), classes, 0.0) for i, (f, t) in enumerate(pairs)]
    return rank(pool(pictures, classes), rule)


def test_iou_by_hand() -> None:
    iou = pairwise_iou(np.array([BOX, FAR], float), np.array([HALF, [5, 0, 15, 10], [3, 3, 3, 3]], float))
    np.testing.assert_allclose(iou, [[0.5, 1 / 3, 0], [0, 0, 0]])


def test_a_zero_size_box_overlaps_nothing() -> None:
    assert pairwise_iou(np.array([[3.0, 3, 3, 3]]), np.array([[3.0, 3, 3, 3]])).tolist() == [[0.0]]


@pytest.mark.parametrize("rule", ["voc", "darknet"])
def test_second_hit_is_a_false_alarm(rule: Rule) -> None:
    one = ranked([(found([BOX, BOX], [0.8, 0.9]), truth([BOX]))], rule)[0]
    assert one.hits.tolist() == [True, False]
    assert (one.positives, one.true_positives, one.false_positives) == (1, 1, 1)


def test_threshold_is_reached_in_voc_and_passed_in_darknet() -> None:
    pair = (found([HALF], [0.9]), truth([BOX]))
    assert ranked([pair], "voc")[0].true_positives == 1
    assert ranked([pair], "darknet")[0].true_positives == 0


def test_a_detection_claims_only_its_best_object() -> None:
    """The second detection overlaps the taken object most: it does not fall back to the free one."""
    objects = truth([[0, 0, 10, 10], [0, 0, 10, 14]])
    hits = found([[0, 0, 10, 10], [0, 0, 10, 10.5]], [0.9, 0.8])
    assert ranked([(hits, objects)])[0].hits.tolist() == [True, False]


def test_hits_on_a_difficult_object_are_neutral_all_of_them() -> None:
    objects = truth([BOX, FAR], difficult=[False, True])
    one = ranked([(found([FAR, BOX, FAR], [0.95, 0.9, 0.4]), objects)])[0]
    assert one.hits.tolist() == [True]
    assert (one.positives, one.neutral) == (1, 2)


def test_darknet_prefers_a_plain_object_to_a_difficult_one() -> None:
    """VOC looks at the best overlap, which is the difficult one; Darknet matches plain objects first."""
    objects = truth([[0, 0, 10, 9], BOX], difficult=[False, True])
    pair = (found([BOX], [0.9]), objects)
    assert ranked([pair], "voc")[0].neutral == 1
    assert ranked([pair], "darknet")[0].hits.tolist() == [True]


def test_classes_do_not_mix() -> None:
    one, other = ranked([(found([BOX], [0.9], [1]), truth([BOX], [0]))], classes=2)
    assert (one.positives, len(one.hits)) == (1, 0)
    assert (other.positives, other.hits.tolist()) == (0, [False])


def test_ranking_runs_over_all_pictures() -> None:
    pairs = [(found([FAR], [0.9]), truth()), (found([BOX], [0.8]), truth([BOX]))]
    assert ranked(pairs)[0].hits.tolist() == [False, True]


def test_equal_scores_keep_the_order_of_pictures() -> None:
    pairs = [(found([FAR], [0.5]), truth()), (found([BOX], [0.5]), truth([BOX]))]
    assert ranked(pairs)[0].hits.tolist() == [False, True]
    assert ranked(pairs[::-1])[0].hits.tolist() == [True, False]
