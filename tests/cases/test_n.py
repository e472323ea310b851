"""Kind N of the bug reports in cases/CASES.md: suppression and decoding.

On the CPU here; tests/ops compares the kernels of every device with one another.
"""

import math

import numpy as np
import pytest
import torch

from tests.cases.inputs import expected
from tests.metrics.sets import truth
from yolo import models
from yolo.checkpoint import Model
from yolo.darknet import build_cfg
from yolo.data import Preprocess, place, undo
from yolo.inference import Inference
from yolo.metrics import DetectionMetric
from yolo.ops import decode, nms
from yolo.ops.boxes import pairwise_iou
from yolo.types import Detections, Found, Record


def run(
    boxes: list[list[float]],
    scores: list[float],
    threshold: float,
    label: int = 0,
    dtype: torch.dtype = torch.float32,
    **options: float,
) -> tuple[list[int], Detections]:
    """Which rows are kept, told by their scores, and the result itself."""
    found = nms(
        torch.tensor([boxes], dtype=dtype),
        torch.tensor([scores], dtype=dtype),
        torch.full((1, len(boxes)), label),
        iou_threshold=threshold,
        **options,  # type: ignore[arg-type]
    )
    given = torch.tensor(boxes, dtype=dtype).tolist()
    return [given.index(row) for row in found.boxes[0, : int(found.count)].tolist()], found


def test_n01_half_precision_far_from_the_origin() -> None:
    wanted = expected("N01")
    keep, _ = run(wanted["boxes"], wanted["scores"], wanted["thr"], wanted["group_id_of_both"], torch.float16)
    assert keep == wanted["keep"]
    small = wanted["small_variant"]
    keep, _ = run(small["boxes"], wanted["scores"], small["thr"], small["class"], torch.float16)
    assert keep == small["keep"]


def test_n02_areas_beyond_half_precision() -> None:
    wanted = expected("N02")
    assert run(wanted["boxes"], wanted["scores"], wanted["thr"], dtype=torch.float16)[0] == wanted["keep"]


@pytest.mark.parametrize("name", ["N03", "N11"])
def test_n03_n11_equal_scores_keep_the_lower_index(name: str) -> None:
    wanted = expected(name)
    keep, found = run(wanted["boxes"], [float(score) for score in wanted["scores"]], wanted["thr"])
    assert keep == wanted["keep"]
    assert int(found.count) == 1


def test_n04_an_iou_equal_to_the_threshold_suppresses_nothing() -> None:
    wanted = expected("N04")
    assert run(wanted["boxes"], wanted["scores"], wanted["thr"])[0] == wanted["keep"]
    assert run(wanted["thr_0"]["boxes"], wanted["scores"], 0.0)[0] == wanted["thr_0"]["keep"]


def test_n06_what_is_not_a_number_ends_and_does_not_come_out() -> None:
    wanted = expected("N06")
    boxes = [[float(value) for value in box] for box in wanted["boxes"]]
    keep, found = run(boxes, [float(score) for score in wanted["scores"]], wanted["thr"])
    assert keep in wanted["keep_allowed"]
    assert all(values.isfinite().all() for values in (found.boxes, found.scores))


def test_n07_an_inverted_box() -> None:
    wanted = expected("N07")
    keep, found = run(wanted["boxes"], wanted["scores"], wanted["thr"])
    assert keep in ([0], [0, 1])
    assert found.boxes.isfinite().all()
    assert pairwise_iou(*(torch.tensor(wanted["boxes"], dtype=torch.float32),) * 2).isfinite().all()


def test_n08_no_one_is_added_to_sides() -> None:
    wanted = expected("N08")
    assert run(wanted["boxes_normalised"], wanted["scores"], wanted["thr"])[0] == [0, 1]
    boxes = torch.tensor(wanted["boxes_normalised"])
    assert pairwise_iou(boxes[:1], boxes[1:]).item() == wanted["iou"]
    pixels = wanted["pixel_check"]
    pair = (torch.tensor([pixels[key]], dtype=torch.float32) for key in "ab")
    assert pairwise_iou(*pair).item() == pytest.approx(pixels["iou"], abs=1e-6)


def test_n10_input_in_any_order() -> None:
    wanted = expected("N10")
    keep, _ = run(wanted["boxes"], wanted["scores"], wanted["thr"], score_threshold=-1.0)
    assert keep == wanted["keep"]


def test_n12_many_boxes_are_held_in_bounded_memory() -> None:
    """The best ``max_detections`` are kept, best first; 400,000 boxes need no matrix of pairs."""
    for count in (50_000, expected("N12")["n"], 400_000):
        place_at = torch.arange(count)
        corner = torch.stack((place_at % 1000, place_at // 1000), dim=-1).float() * 2
        boxes = torch.cat((corner, corner + 1), dim=-1)[None]
        scores = ((place_at + 1) / count)[None]
        found = nms(boxes, scores, torch.zeros(1, count, dtype=torch.int64), max_detections=1000)
        assert int(found.count) == 1000
        assert torch.equal(found.boxes[0], boxes[0, -1000:].flip(0))


def test_n13_nothing_in_nothing_out() -> None:
    for images, boxes in ((1, 0), (0, 3), (3, 0)):
        found = nms(
            torch.zeros(images, boxes, 4), torch.zeros(images, boxes), torch.zeros(images, boxes).long()
        )
        assert found.boxes.shape == (images, 300, 4)
        assert found.labels.dtype == found.count.dtype == torch.int64
        assert found.count.tolist() == [0] * images
    assert run([[0.0, 0, 1, 1]], [0.5], 0.5)[0] == [0]
    assert run([[0.0, 0, 1, 1]], [0.5], 0.5, score_threshold=0.9)[0] == []
    scores = torch.tensor([[0.0, 0.0], [0.5, 0.6]])
    found = nms(torch.tensor([[[0.0, 0, 1, 1], [5.0, 5, 6, 6]]] * 2), scores, torch.zeros(2, 2).long())
    assert found.count.tolist() == [0, 2]


def test_n14_the_pad_that_was_used_is_undone() -> None:
    wanted = expected("N14")
    (width, height), side = wanted["orig_wh"], wanted["net"]
    preprocess = Preprocess((side, side))
    canvas, placement = preprocess(np.zeros((height, width, 3), np.uint8))
    assert canvas.shape == (side, side, 3)
    rows, cols = preprocess.inner_size(
        height, width
    )  # Darknet's integers: 532 where the report rounds to 533
    assert cols == wanted["resized_wh"][0]
    assert abs(rows - wanted["resized_wh"][1]) <= 1
    assert placement.pad_y == (side - rows) // 2
    box = np.array([wanted["box_orig"]], np.float32)
    np.testing.assert_allclose(undo(place(box, placement), placement), box, atol=1e-2)


def test_n15_wide_inputs_keep_x_and_y_apart() -> None:
    wanted = expected("N15")
    width, height = wanted["net_wh"]
    text = f"[net]\nwidth={width}\nheight={height}\n[convolutional]\nfilters=6\nsize=1\nstride=32\n"
    built = build_cfg(f"{text}activation=linear\n[yolo]\nclasses=1\nnum=1\nmask=0\nanchors=5,6\n")
    native = models.yolov2(num_classes=1, anchors=[[5.0, 6.0]], width=0.125)
    for detector in (built, native):
        assert detector.specs[0].stride == wanted["stride"]
        boxes, _ = decode([torch.zeros(1, 6, height // 32, width // 32)], detector.specs)
        rows = boxes.reshape(height // 32, width // 32, 4)
        box = rows[wanted["cell"]["gj"], wanted["cell"]["gi"]]
        assert ((box[:2] + box[2:]) / 2).tolist() == wanted["center_px"]


def test_n16_the_cap_is_after_suppression_and_evaluation_says_so() -> None:
    wanted = expected("N16")
    boxes = [
        [20.0 * (i % 20), 20.0 * (i // 20), 20.0 * (i % 20) + 8, 20.0 * (i // 20) + 8] for i in range(350)
    ]
    scores = [0.99 - 0.001 * i for i in range(350)]
    copies = (
        [*boxes, *boxes],
        [*scores, *(score - 0.0001 for score in scores)],
    )  # every one again, a little worse
    keep, _ = run(*copies, 0.5, max_detections=wanted["max_det"])
    assert keep == list(range(wanted["max_det"]))
    metric = DetectionMetric(["a"], max_detections=100)
    found = Found(np.array(boxes, np.float32), np.array(scores, np.float32), np.zeros(350, np.int64))
    metric.update([found], [Record("1", "1.png", truth(boxes, [0] * 350))])
    assert any("350 objects" in note for note in metric.compute()["notes"])
    model = Model(models.yolov2_tiny(1, width=0.125), ["a"], Preprocess((32, 32)))
    assert Inference(model, device="cpu").rule["max_detections"] == wanted["max_det"]
    assert math.isclose(Inference(model, device="cpu").rule["iou_threshold"], 0.45)
