"""Suppression: public bug reports by hand, and kernels against the reference."""

import pytest
import torch
from torch import Tensor

from tests.ops.scenes import DEVICES, assert_same, require_kernel
from yolo.ops import nms
from yolo.ops.nms import nms_reference
from yolo.types import Detections

NAN = float("nan")


def run(
    boxes: list[list[float]],
    scores: list[float],
    threshold: float,
    labels: list[int] | None = None,
    **options: float,
) -> Detections:
    return nms(
        torch.tensor([boxes], dtype=torch.float32),
        torch.tensor([scores]),
        torch.tensor([labels or [0] * len(boxes)]),
        iou_threshold=threshold,
        **options,  # type: ignore[arg-type]
    )


def kept_rows(boxes: list[list[float]], found: Detections) -> list[int]:
    """Which input rows were kept; the first of equal ones."""
    return [boxes.index(row) for row in found.boxes[0, : int(found.count)].tolist()]


@pytest.mark.parametrize(
    ("boxes", "scores", "threshold", "keep"),
    [
        pytest.param(
            [[0, 0, 10, 10], [0, 0, 10, 5]], [0.9, 0.8], 0.5, [0, 1], id="N04 IoU equal to the threshold"
        ),
        pytest.param(
            [[0, 0, 10, 10], [10, 0, 20, 10]], [0.9, 0.8], 0.0, [0, 1], id="N04 touching at threshold 0"
        ),
        pytest.param([[0, 0, 1, 1], [2, 1, 1, 2]], [1.0, 0.5], 0.7, [0, 1], id="N07 inverted box"),
        pytest.param(
            [[0.1, 0.1, 0.2, 0.2], [0.25, 0.25, 0.35, 0.35]], [0.9, 0.8], 0.45, [0, 1], id="N08 no +1"
        ),
        pytest.param([[0, 0, 10, 10], [1, 1, 11, 11]], [0.9, 0.8], 0.69, [0, 1], id="N08 IoU 0.6807 below"),
        pytest.param([[0, 0, 10, 10], [1, 1, 11, 11]], [0.9, 0.8], 0.68, [0], id="N08 IoU 0.6807 above"),
    ],
)
def test_reported_cases(
    boxes: list[list[float]], scores: list[float], threshold: float, keep: list[int]
) -> None:
    exact = torch.tensor(boxes, dtype=torch.float32).tolist()
    assert kept_rows(exact, run(boxes, scores, threshold)) == keep


def test_equal_scores_keep_the_lower_index() -> None:
    """Cases N03 and N11: three near or exact copies with one score."""
    boxes = [
        [0.3764, 0.0905, 0.6533, 0.4487],
        [0.3744, 0.0899, 0.6535, 0.4513],
        [0.3753, 0.0916, 0.6532, 0.4512],
    ]
    exact = torch.tensor(boxes).tolist()
    assert kept_rows(exact, run(boxes, [1.0] * 3, 0.2)) == [0]
    assert int(run([[10.0, 10, 20, 20]] * 3, [0.7] * 3, 0.5).count) == 1
    apart = [[30.0, 0, 40, 10], [0.0, 0, 10, 10], [15.0, 0, 25, 10]]
    assert kept_rows(apart, run(apart, [0.5] * 3, 0.5)) == [0, 1, 2]


def test_unsorted_input() -> None:
    """Case N10: the better box stands last; the other one's score of 0 is above a threshold of -1."""
    boxes = [[7.0, 0, 12, 63], [7.0, 0, 12, 65]]
    assert kept_rows(boxes, run(boxes, [0.0, 1.0], 0.3, score_threshold=-1.0)) == [1]


def test_half_precision_boxes() -> None:
    """Cases N01 and N02: far from the origin, of a high class, an area beyond half precision."""
    for pair, label in (
        ([[3000.0, 3000, 3040, 3040], [3002, 3001, 3042, 3041]], 18),
        ([[600.0, 600, 612, 612], [603, 600, 615, 612]], 40),
        ([[0.0, 0, 300, 300], [5, 5, 305, 305]], 0),
    ):
        boxes = torch.tensor([pair], dtype=torch.float16)
        labels = torch.full((1, 2), label)
        assert (
            int(nms(boxes, torch.tensor([[0.9, 0.8]], dtype=torch.float16), labels, iou_threshold=0.5).count)
            == 1
        )


def test_nothing_that_is_not_a_number_comes_out() -> None:
    """Case N06: a NaN box, a box without width, a good box and a NaN score."""
    boxes = [[NAN] * 4, [0.0, 100, 0, 150], [10.0, 10, 20, 20], [10.0, 10, 20, 20]]
    found = run(boxes, [0.99, 0.95, 0.9, NAN], 0.5)
    assert kept_rows(boxes, found) == [1, 2]
    assert all(x.isfinite().all() for x in (found.boxes, found.scores))
    infinite = run([[0.0, 0, float("inf"), 10], [0.0, 0, 10, 10]], [0.9, 0.8], 0.5)
    assert infinite.boxes[0, 0].tolist() == [0, 0, 10, 10]


def test_empty_inputs() -> None:
    """Case N13: no boxes, one box, no images, and only one image with boxes."""
    for images, boxes in ((1, 0), (0, 3), (3, 0)):
        found = nms(
            torch.zeros(images, boxes, 4), torch.zeros(images, boxes), torch.zeros(images, boxes).long()
        )
        assert found.boxes.shape == (images, 300, 4)
        assert found.labels.dtype == found.count.dtype == torch.int64
        assert found.count.tolist() == [0] * images
    assert int(run([[0.0, 0, 1, 1]], [0.5], 0.5).count) == 1
    scores = torch.tensor([[0.0, 0.0], [0.5, 0.6]])
    found = nms(torch.tensor([[[0.0, 0, 1, 1], [5.0, 5, 6, 6]]] * 2), scores, torch.zeros(2, 2).long())
    assert found.count.tolist() == [0, 2]


def test_the_limit_takes_the_best_survivors() -> None:
    """Case N16: 350 disjoint boxes, 300 kept, in order."""
    at = torch.arange(350)
    corner = torch.stack((at % 20 * 10, at // 20 * 10), dim=1).float()
    boxes, scores = torch.cat((corner, corner + 8), dim=1), 0.99 - 0.001 * at
    found = nms(boxes[None], scores[None], torch.zeros(1, 350).long(), max_detections=300)
    assert found.count.tolist() == [300]
    assert torch.equal(found.boxes[0], boxes[:300])


def test_classes_do_not_meet_unless_asked() -> None:
    boxes = [[0.0, 0, 10, 10], [0.0, 0, 10, 10]]
    assert run(boxes, [0.9, 0.8], 0.5, [3, 7]).labels[0, :2].tolist() == [3, 7]
    assert int(run(boxes, [0.9, 0.8], 0.5, [3, 7], class_agnostic=True).count) == 1


def crowd(kind: str, total: int, images: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(total)
    boxes = torch.rand(images, total, 4, generator=generator) * 600
    side = 4.0 if kind == "sparse" else 120.0
    boxes[..., 2:] = boxes[..., :2] + torch.rand(images, total, 2, generator=generator) * side
    scores = torch.rand(images, total, generator=generator)
    labels = torch.randint(1 if kind == "one_class" else 80, (images, total), generator=generator)
    if kind == "tied":
        scores = (scores * 4).round() / 4
        boxes = (boxes / 40).round() * 40
    elif kind == "odd_labels":
        labels = labels * 2**40 - 7
    elif kind == "broken":
        scores[:, ::3] = NAN
        boxes[:, ::7, 2] = NAN
        boxes[:, 1::7] = boxes[:, 1::7].flip(-1)
        boxes[:, 2::7, 3] = float("inf")
        scores[:, 1::5] = -scores[:, 1::5]
    elif kind == "chain":  # each box falls to its predecessor alone: the longest dependence there can be
        left = torch.arange(total).float() * 3
        boxes = torch.stack((left, left * 0, left + 10, left * 0 + 10), dim=1).expand(images, total, 4)
        scores = 1 - torch.arange(total).float().expand(images, total) / (total + 1)
        labels = torch.zeros(images, total).long()
    return boxes.contiguous(), scores.contiguous(), labels


@pytest.mark.parametrize("total", [1, 65, 1500, 5000])
@pytest.mark.parametrize("kind", ["sparse", "crowded", "one_class", "tied", "odd_labels", "broken", "chain"])
@pytest.mark.parametrize("device", DEVICES)
def test_kernel_agrees_with_reference(device: str, kind: str, total: int) -> None:
    require_kernel("nms", device)
    boxes, scores, labels = (x.to(device) for x in crowd(kind, total))
    for limit, agnostic, bar in ((300, False, 0.0), (50, True, 0.3), (2500, False, -2.0)):
        options = (0.45, bar, limit, agnostic)
        found = torch.ops.yolo.nms(boxes, scores, labels, *options)
        wanted = nms_reference(boxes, scores, labels, *options)
        assert_same(found, wanted, box_tolerance=0.0)


@pytest.mark.parametrize("kind", ["grid", "tied_grid", "crowded"])
@pytest.mark.parametrize("device", DEVICES)
def test_four_hundred_thousand_boxes(device: str, kind: str) -> None:
    """Case N12: memory is bounded by the rows kept, whatever comes in."""
    require_kernel("nms", device)
    total = 400_000
    if kind == "crowded":
        boxes, scores, labels = crowd("crowded", total, images=1)
        labels = labels % 2
    else:
        at = torch.arange(total)
        corner = torch.stack((at % 640, at // 640), dim=1).float()
        boxes = torch.cat((corner, corner + 1), dim=1)[None]
        scores = (torch.ones(1, total) if kind == "tied_grid" else (at / total)[None]).contiguous()
        labels = torch.zeros(1, total).long()
    boxes, scores, labels = boxes.to(device), scores.to(device), labels.to(device)
    options = (0.45, 0.0, 4000 if device == "cuda" else 1000, False)
    found = torch.ops.yolo.nms(boxes, scores, labels, *options)
    assert_same(found, nms_reference(boxes, scores, labels, *options), box_tolerance=0.0)


def test_reference_against_a_plain_loop() -> None:
    """The chunked reference is the textbook loop."""
    boxes, scores, labels = crowd("crowded", 250, images=1)
    labels = labels % 3
    order = scores[0].argsort(descending=True, stable=True).tolist()
    kept: list[int] = []
    for i in order:
        a = boxes[0, i]
        for k in kept:
            b = boxes[0, k]
            side = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0)
            union = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - side.prod()
            if labels[0, i] == labels[0, k] and side.prod() > 0.45 * union:
                break
        else:
            kept.append(i)
    found = nms_reference(boxes, scores, labels, 0.45, 0.0, 250, False)
    assert int(found[3]) == len(kept)
    assert torch.equal(found[0][0, : len(kept)], boxes[0, kept])
