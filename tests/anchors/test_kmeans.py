import os
import resource
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yolo.anchors import Sizes, kmeans, nearest, shape_iou
from yolo.anchors.kmeans import _centres, _fill

side = st.floats(0.5, 1000, allow_nan=False)


def synthetic(boxes: int, seed: int = 0) -> np.ndarray:
    """Sizes spread as widely as COCO's, in pixels."""
    generator = np.random.default_rng(seed)
    area, aspect = np.exp(generator.normal(np.log(50), 1.1, boxes)), np.exp(generator.normal(0, 0.5, boxes))
    return np.clip(np.stack([area * aspect, area / aspect], axis=1), 1, 416)


def average(sizes: Sizes, anchors: np.ndarray) -> float:
    return float((nearest(sizes.wh, anchors)[0] * sizes.count).sum() / sizes.boxes)


def test_shape_iou_by_hand() -> None:
    """A 10x20 box on a 20x10 one: 100 of 300; on a 40x5 one: 50 of 350."""
    iou = shape_iou(np.array([[10.0, 20.0]]), np.array([[20.0, 10.0], [40.0, 5.0], [10.0, 20.0]]))
    assert iou[0].tolist() == pytest.approx([100 / 300, 50 / 350, 1.0])


def test_first_anchor_wins_a_tie() -> None:
    assert nearest(np.array([[10.0, 10.0]]), np.array([[20.0, 10.0], [10.0, 20.0]]))[1].tolist() == [0]


@given(st.lists(st.tuples(side, side), min_size=1, max_size=20), st.tuples(side, side))
def test_shape_iou_is_symmetric_and_bounded(
    boxes: list[tuple[float, float]], anchor: tuple[float, float]
) -> None:
    wh, one = np.array(boxes), np.array([anchor])
    iou = shape_iou(wh, one)
    np.testing.assert_allclose(iou, shape_iou(one, wh).T)
    assert ((iou > 0) & (iou <= 1 + 1e-12)).all()


def test_sizes_counts_and_drops() -> None:
    rows = [[5, 7], [5, 7], [3, 9], [0, 4], [-2, 4], [np.nan, 1], [np.inf, 1]]
    sizes = Sizes.of(rows)
    assert sizes.wh.tolist() == [[3, 9], [5, 7]]
    assert sizes.count.tolist() == [1, 2]
    assert (sizes.boxes, sizes.dropped) == (3, 4)


def test_folding_keeps_boxes_and_means() -> None:
    sizes = Sizes.of(synthetic(30_000))
    folded = sizes.folded(limit=1000)
    assert len(folded.wh) < len(sizes.wh) / 2
    assert folded.boxes == sizes.boxes
    np.testing.assert_allclose(
        (folded.wh * folded.count[:, None]).sum(axis=0), (sizes.wh * sizes.count[:, None]).sum(axis=0)
    )
    anchors = kmeans(sizes, 5, restarts=2)
    assert average(folded, anchors) == pytest.approx(average(sizes, anchors), abs=2e-4)


def test_scaled_repeats_every_box() -> None:
    scaled = Sizes.of([[10, 20], [10, 20], [8, 8]]).scaled([0.5, 1, 2])
    assert scaled.boxes == 9
    assert sorted(map(tuple, scaled.wh.tolist())) == [(4, 4), (5, 10), (8, 8), (10, 20), (16, 16), (20, 40)]


def test_folds_hold_every_box_out_once() -> None:
    sizes = Sizes.of(synthetic(103))
    held = [test.boxes for train, test in sizes.folds(5, seed=1) if train.boxes + test.boxes == 103]
    assert sum(held) == 103


def test_two_clear_clusters() -> None:
    generator = np.random.default_rng(0)
    rows = np.concatenate(
        [generator.normal((20, 40), 0.5, (50, 2)), generator.normal((100, 30), 0.5, (50, 2))]
    )
    anchors = kmeans(Sizes.of(rows), 2)
    np.testing.assert_allclose(anchors, [[20, 40], [100, 30]], atol=0.3)


def test_as_many_clusters_as_sizes_fit_exactly() -> None:
    rows = np.array([[5.0, 6.0], [50.0, 9.0], [9.0, 50.0], [80.0, 80.0]])
    np.testing.assert_allclose(kmeans(Sizes.of(rows), 4), rows[[0, 2, 1, 3]])


def test_median_is_not_moved_by_an_outlier() -> None:
    sizes = Sizes.of([[10, 10]] * 5 + [[12, 12]] * 4 + [[40, 40]])
    cluster = np.zeros(3, dtype=np.int64)
    assert _centres(sizes, cluster, 1, "median").tolist() == [[10, 10]]
    assert _centres(sizes, cluster, 1, "mean") == pytest.approx(np.full((1, 2), 13.8))
    assert kmeans(sizes, 1, centre="median").tolist() == [[10, 10]]


def test_empty_cluster_gets_the_worst_served_size() -> None:
    cluster = _fill(np.array([0, 0, 0, 2]), np.array([0.9, 0.2, 0.5, 0.1]), 3)
    assert cluster.tolist() == [0, 1, 0, 2]  # row 3 is worse served, but alone in its cluster
    sizes = Sizes.of([[1, 1], [2, 2], [3, 3], [9, 9]])
    assert np.isfinite(_centres(sizes, cluster, 3, "mean")).all()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(side, side), min_size=4, max_size=40, unique=True),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_any_boxes_give_finite_sorted_anchors(boxes: list[tuple[float, float]], k: int, seed: int) -> None:
    sizes = Sizes.of(boxes)
    anchors = kmeans(sizes, k, seed=seed, restarts=2)
    assert anchors.shape == (k, 2)
    assert (np.isfinite(anchors) & (anchors > 0)).all()
    assert (np.diff(anchors.prod(axis=1)) >= 0).all()
    np.testing.assert_array_equal(anchors, kmeans(Sizes.of(boxes[::-1]), k, seed=seed, restarts=2))


@pytest.mark.parametrize(
    ("rows", "k", "message"),
    [
        ([], 5, "no boxes"),
        ([[1, 2], [3, 4]], 5, "asked for 5 anchors, but there are only 2 boxes"),
        ([[7, 7]] * 20, 5, "the 20 boxes have only 1 different size"),
        ([[7, 7]], 0, "at least one cluster"),
    ],
)
def test_impossible_requests_are_refused(rows: list[list[float]], k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kmeans(Sizes.of(rows), k)


SCRIPT = """
import sys; sys.path.insert(0, {root!r})
from tests.anchors.test_kmeans import synthetic
from yolo.anchors import Sizes, kmeans
print(kmeans(Sizes.of(synthetic(50_000)), 5, restarts=2).tobytes().hex())
"""


def test_thread_count_does_not_matter(request: pytest.FixtureRequest) -> None:
    script = SCRIPT.format(root=str(request.config.rootpath))
    results = []
    for threads in ("1", "4"):
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, **counts},
            capture_output=True,
            check=True,
            text=True,
        )
        results.append(run.stdout)
    assert results[0] == results[1]
    assert len(results[0]) == 2 * 5 * 2 * 8 + 1


def test_coco_sized_set_is_quick_and_small() -> None:
    """860,000 boxes, COCO's number, at most 10 s and 1 GB; here with room for a busy machine."""
    rows = synthetic(860_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    sizes = Sizes.of(rows)
    anchors = kmeans(sizes, 5)
    assert time.process_time() - start < 10
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    ) / 1024 < 300  # MiB beyond imports and rows
    assert average(sizes, anchors) > 0.48
