"""Detection in one operator: by hand, against decode and nms, and kernels against the reference."""

import pytest
import torch
from torch import Tensor

from tests.ops.scenes import (
    DEVICES,
    DTYPES,
    KINDS,
    assert_same,
    make_logits,
    packed,
    require_kernel,
    specs_of,
    yolo_specs,
)
from yolo.ops import HeadSpec, decode, detect, nms
from yolo.ops.detect import detect_reference

ONE = HeadSpec("yolo", 3, 8.0, ((10.0, 6.0), (30.0, 20.0)), (0, 1))


def one_cell(objectness: float, classes: list[float]) -> list[Tensor]:
    """A 3 x 4 plane where only anchor 1 of row 2, column 1 is above -40."""
    x = torch.full((1, 16, 3, 4), -40.0)
    x[0, 8:12, 2, 1] = 0.0
    x[0, 12:16, 2, 1] = torch.tensor([objectness, *classes])
    return [x]


def test_one_box_by_hand() -> None:
    found = detect(one_cell(30.0, [0.0, 2.0, -1.0]), [ONE], max_detections=5)
    assert found.count.tolist() == [1]
    assert found.boxes[0, 0].tolist() == [12 - 15, 20 - 10, 12 + 15, 20 + 10]
    assert found.labels[0].tolist() == [1, 0, 0, 0, 0]
    assert found.scores[0, 0].item() == pytest.approx(torch.tensor(2.0).sigmoid().item())


def test_several_classes_of_one_box() -> None:
    found = detect(one_cell(30.0, [0.0, 2.0, -4.0]), [ONE], multi_label=True, score_threshold=0.3)
    assert found.labels[0, :2].tolist() == [1, 0]
    assert found.count.tolist() == [2]


def test_threshold_is_strict() -> None:
    """sigmoid(0) times sigmoid(40) is exactly a half."""
    for threshold, count in ((0.5, 0), (0.4999, 1)):
        found = detect(one_cell(40.0, [0.0, -40.0, -40.0]), [ONE], score_threshold=threshold)
        assert found.count.tolist() == [count]


def test_equal_classes_go_to_the_lower_one() -> None:
    """20 and 30 are different logits of the same float32 probability, 1."""
    found = detect(one_cell(40.0, [-3.0, 20.0, 30.0]), [ONE])
    assert found.labels[0, 0].item() == 1


def test_nan_is_no_candidate() -> None:
    """One NaN class must not hide the others, a NaN objectness or box hides the prediction."""
    nan = float("nan")
    assert detect(one_cell(30.0, [nan, 2.0, -1.0]), [ONE]).labels[0, 0].item() == 1
    assert detect(one_cell(nan, [3.0, 2.0, -1.0]), [ONE]).count.tolist() == [0]
    logits = one_cell(30.0, [3.0, 2.0, -1.0])
    logits[0][0, 10, 2, 1] = nan
    assert detect(logits, [ONE]).count.tolist() == [0]


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_is_decode_then_nms(kind: str, multi_label: bool) -> None:
    """The fused operator against the two others."""
    specs = specs_of(kind)
    logits = make_logits(specs)
    boxes, scores = decode(logits, specs)
    classes = scores.shape[-1]
    if multi_label:
        labels = torch.arange(classes).repeat(len(boxes), boxes.shape[1])
        wanted = nms(boxes.repeat_interleave(classes, 1), scores.flatten(1), labels, score_threshold=0.2)
    else:
        best, labels = scores.max(dim=-1)
        wanted = nms(boxes, best, labels, score_threshold=0.2)
    assert_same(detect(logits, specs, score_threshold=0.2, multi_label=multi_label), wanted)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_kernel_agrees_with_reference(
    device: str, kind: str, dtype: torch.dtype, channels_last: bool
) -> None:
    require_kernel("detect", device)
    specs = specs_of(kind)
    logits = [x.to(device, dtype) for x in make_logits(specs)]
    if channels_last:
        logits = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in logits]
    for bar in (0.3, 0.001, -1.0):
        for multi_label, agnostic in ((False, False), (True, False), (True, True)):
            options = (bar, 0.45, 100, multi_label, agnostic)
            found = torch.ops.yolo.detect(logits, *packed(specs), *options)
            assert_same(found, detect_reference(logits, *packed(specs), *options))


@pytest.mark.parametrize("scene", ["ordinary", "nothing", "everything", "ties"])
@pytest.mark.parametrize("device", DEVICES)
def test_scenes_of_a_full_size_network(device: str, scene: str) -> None:
    """YOLOv3 at 416 with 80 classes: 851,760 class scores a picture."""
    require_kernel("detect", device)
    specs = yolo_specs(80)
    logits = make_logits(specs, images=2, height=416, width=416)
    for x in logits:
        objectness = x.unflatten(1, (3, 85))[:, :, 4]
        if scene == "ordinary":
            objectness.sub_(5).add_(8 * (torch.rand_like(objectness) < 0.02))
        elif scene == "nothing":
            objectness.sub_(50)
        elif scene == "ties":
            x.round_()
    logits = [x.to(device, torch.float16) for x in logits]
    for options in ((0.25, 0.45, 300, False, False), (0.001, 0.45, 300, True, False)):
        found = torch.ops.yolo.detect(logits, *packed(specs), *options)
        assert_same(found, detect_reference(logits, *packed(specs), *options))


@pytest.mark.parametrize("classes", [8, 80])
@pytest.mark.parametrize("device", DEVICES)
def test_more_rounds_than_one(device: str, classes: int) -> None:
    """Every box covers the same place, so all 10,647 candidates of each class have to be looked at to keep one.

    Both are more than the list of a picture holds: every round reads the outputs again.
    """
    require_kernel("detect", device)
    strides = (32.0, 16.0, 8.0)
    specs = tuple(HeadSpec("yolo", classes, stride, ((9e4, 9e4),) * 3, (0, 1, 2)) for stride in strides)
    logits = [x.to(device) for x in make_logits(specs, images=1, height=416, width=416)]
    for x in logits:  # the sizes alike, so that any two boxes of a class overlap
        x.unflatten(1, (3, 5 + classes))[:, :, 2:4] *= 0.1
    options = (0.001, 0.45, 300, True, False)
    found = torch.ops.yolo.detect(logits, *packed(specs), *options)
    wanted = detect_reference(logits, *packed(specs), *options)
    assert_same(found, wanted, box_tolerance=0.1)


@pytest.mark.parametrize("device", DEVICES)
def test_no_images(device: str) -> None:
    require_kernel("detect", device)
    specs = yolo_specs()
    found = detect([x.to(device) for x in make_logits(specs, images=0)], specs, max_detections=7)
    assert found.boxes.shape == (0, 7, 4)


@pytest.mark.gpu
def test_replays_in_a_graph() -> None:
    """No host synchronisation, no allocation that depends on data: captured once, replayed on new logits."""
    require_kernel("detect", "cuda")
    specs = yolo_specs(80)
    logits = [x.cuda() for x in make_logits(specs, height=416, width=416)]
    for multi_label in (False, True):
        options = {"score_threshold": 0.05, "multi_label": multi_label}
        detect(logits, specs, **options)  # type: ignore[arg-type]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = detect(logits, specs, **options)  # type: ignore[arg-type]
        for seed in (1, 2, 3):
            for x, new in zip(logits, make_logits(specs, height=416, width=416, seed=seed), strict=True):
                x.copy_(new - 3 * seed)
            graph.replay()
            wanted = detect_reference(logits, *packed(specs), 0.05, 0.45, 300, multi_label, False)
            assert_same(found, wanted)


@pytest.mark.gpu
def test_is_deterministic() -> None:
    """Atomics decide where a candidate is stored, never what comes out."""
    require_kernel("detect", "cuda")
    specs = yolo_specs(80)
    logits = [x.cuda().round() for x in make_logits(specs, images=8, height=416, width=416)]
    first = detect(logits, specs, score_threshold=0.1)
    for _ in range(20):
        assert all(map(torch.equal, first, detect(logits, specs, score_threshold=0.1)))
