import numpy as np
import pytest

from yolo.anchors import Assignment, Boxes, check_agreement, describe, reach, same_anchors, specs_with, tidy
from yolo.losses import build_loss
from yolo.models import yolov1_tiny, yolov2, yolov3, yolov3_tiny, yolov4, yolov4_tiny
from yolo.ops.heads import HeadSpec

SMALL, LARGE = (10.0, 10.0), (100.0, 100.0)
TWO = (
    HeadSpec("yolo", 1, 8, (SMALL, LARGE), (0,)),
    HeadSpec("yolo", 1, 32, (SMALL, LARGE), (1,)),
)


def test_by_hand() -> None:
    """Two boxes fit the small anchor (IoU 1 and 0.5), one the large one (IoU 0.64)."""
    fit = describe(Boxes.of([[10, 10], [5, 10], [80, 80]], [0, 0, 1], ["a", "b"]), TWO)
    assert fit.average_iou == pytest.approx((1 + 0.5 + 0.64) / 3)
    assert fit.class_iou == pytest.approx({"a": 0.75, "b": 0.64})
    assert fit.mean_class_iou == pytest.approx(0.695)
    assert (fit.recall, fit.recall50) == pytest.approx((2 / 3, 2 / 3))  # 0.5 is not above 0.5
    assert fit.best == pytest.approx((2 / 3, 1 / 3))
    assert fit.heads == pytest.approx((2 / 3, 1 / 3))
    assert (fit.lost, fit.positives) == (0, 1)
    assert fit.closest == pytest.approx(0.01)


def test_several_anchors_answer() -> None:
    """A 30x30 box: IoU 0.111 with the small and 0.09 with the large anchor; factors 3 and 3.33."""
    boxes = Boxes.of([[30, 30]])
    assert describe(boxes, TWO, Assignment("ratio", 4.0)).heads == (1, 1)
    assert describe(boxes, TWO, Assignment("ratio", 3.2)).heads == (1, 0)
    assert describe(boxes, TWO, Assignment("iou", 0.08)).positives == 2
    assert describe(boxes, TWO, Assignment("iou", 0.1)).positives == 1
    assert (
        describe(boxes, TWO, Assignment("ratio", 2.0)).recall == 0
    )  # the best one answers, but does not serve


def test_floating_boxes_stand_between_heads() -> None:
    side = np.sqrt(10 * 100)  # the same IoU, 0.1, with both
    assert describe(Boxes.of([[side, side], [10, 10]]), TWO).floating == 0.5


def test_anchor_without_a_head_loses_boxes() -> None:
    """yolov4-tiny.cfg: anchor 0 belongs to no head and anchor 3 to both."""
    specs = yolov4_tiny(num_classes=1, width=0.1).specs
    boxes = Boxes.of([[10, 14], [81, 82]])
    darknet = describe(boxes, specs, Assignment())
    assert darknet.lost == 0.5
    assert darknet.heads == (0.5, 0.5)
    modern = describe(boxes, specs, Assignment(every=False))
    assert modern.lost == 0


def test_assignment_is_that_of_the_loss() -> None:
    v2, v4, tiny = (model(num_classes=1, width=0.05) for model in (yolov2, yolov4, yolov4_tiny))
    assert Assignment.of(build_loss(v2, "darknet")) == Assignment()
    assert Assignment.of(build_loss(v4, "darknet")) == Assignment("iou", 0.213)
    assert Assignment.of(build_loss(v4, "darknet", iou_thresh=0.3)) == Assignment("iou", 0.3)
    assert Assignment.of(build_loss(tiny, "darknet")) == Assignment()
    assert Assignment.of(build_loss(v2, "modern")) == Assignment("ratio", 4.0, every=False)
    assert Assignment.of(build_loss(v2, "modern", match="best")) == Assignment(every=False)
    assert Assignment.of(build_loss(v2, "modern", match="iou")) == Assignment("iou", 0.213, every=False)


@pytest.mark.parametrize("variant", ["darknet", "modern"])
def test_heads_train_what_the_loss_trains(variant: str) -> None:
    """The statistics count the same anchors as the real assignment, box by box."""
    torch = pytest.importorskip("torch")
    from yolo.losses.assign import read_objects
    from yolo.types import Targets

    detector = yolov3(num_classes=1, width=0.05)
    loss = build_loss(detector, variant)
    assignment = Assignment.of(loss)
    wh = np.array([[12.0, 20.0], [60.0, 70.0], [200.0, 180.0], [30.0, 31.0]])
    boxes = torch.tensor([[200 - w / 2, 200 - h / 2, 200 + w / 2, 200 + h / 2] for w, h in wh])
    targets = Targets(boxes, torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))
    if variant == "modern":
        found = loss.candidates(read_objects(targets, (416, 416), 1), (416, 416))
        order = [i for spec in detector.specs for i in spec.mask]  # the loss goes head by head
        trained = {
            (int(t), order[int(a)])
            for t, a, on in zip(found.target, found.anchor, found.active, strict=True)
            if on
        }
    else:
        trained = set()
        logits = [
            torch.zeros(1, spec.channels, 416 // int(spec.stride), 416 // int(spec.stride))
            for spec in detector.specs
        ]
        for index in range(4):
            one = Targets(boxes[index : index + 1], targets.labels[:1], targets.image[:1])
            gradients = [x.clone().requires_grad_() for x in logits]
            loss(gradients, one, (416, 416))["box"].backward()
            for spec, x in zip(detector.specs, gradients, strict=True):
                if x.grad is None:
                    continue
                moved = x.grad.unflatten(1, (3, 6))[0, :, :4].abs().sum(dim=(1, 2, 3)) > 0
                trained |= {(index, spec.mask[a]) for a in range(3) if moved[a]}
    owned = np.ones(9, dtype=bool)
    answers = assignment.answers(wh, np.array(detector.specs[0].all_anchors), owned)
    assert trained == {(int(t), int(a)) for t, a in np.argwhere(answers)}


def test_reach_lies_between_the_heads() -> None:
    specs = yolov3_tiny(num_classes=1, width=0.05).specs  # stride 32, then 16
    (low32, high32), (low16, high16) = reach(specs)
    between = np.sqrt(np.sqrt(37 * 58) * np.sqrt(81 * 82))
    assert (low16, high32) == (0, np.inf)
    assert (high16, low32) == pytest.approx((between * 1.5, between / 1.5))
    fit = describe(
        Boxes.of([[9, 9]]),
        specs_with(specs, np.full((6, 2), 12.0) + np.arange(6)[:, None]),
        limits=reach(specs),
    )
    assert fit.misplaced == (3, 4, 5)  # 15 to 17 pixels at stride 32


def test_unsorted_anchors_keep_the_masks_of_the_model() -> None:
    specs = yolov3_tiny(num_classes=1, width=0.05).specs
    turned = specs_with(specs, np.array(specs[0].all_anchors[::-1]))
    assert turned[0].mask == (3, 4, 5)
    assert turned[0].anchors[0] == (37.0, 58.0)  # small anchors at stride 32: shown, not silently mended


def test_other_count_is_shared_evenly() -> None:
    specs = specs_with(
        yolov3_tiny(num_classes=1, width=0.05).specs, np.array([[i + 1.0, i + 1.0] for i in range(4)])
    )
    assert [spec.mask for spec in specs] == [(2, 3), (0, 1)]


def test_tidy_rounds_and_sorts() -> None:
    assert tidy(np.array([[20.006, 20.0], [3.14159, 2.0]])).tolist() == [[3.14, 2.0], [20.01, 20.0]]


def test_what_cannot_be_described_is_refused() -> None:
    with pytest.raises(ValueError, match="no boxes"):
        describe(Boxes.of(np.empty((0, 2))), TWO)
    with pytest.raises(ValueError, match="YOLOv1"):
        describe(Boxes.of([[1, 1]]), yolov1_tiny(num_classes=1, width=0.1).specs)


def test_checkpoint_config_and_head_must_agree() -> None:
    published = yolov2(num_classes=2, width=0.05)
    other = yolov2(num_classes=2, width=0.05, anchors=[[10, 10], [20, 20], [30, 30], [40, 40], [50, 50]])
    assert same_anchors(published.specs, yolov2(num_classes=7, width=0.05).specs)
    check_agreement(published, published.specs, "last.ckpt")
    with pytest.raises(
        ValueError, match=r"last\.ckpt was trained with the anchors .*18\.3.* the config has .*10x10"
    ):
        check_agreement(other, published.specs, "last.ckpt")
    published.predictors[0].weight = type(published.predictors[0].weight)(published.predictors[0].weight[:-1])
    with pytest.raises(ValueError, match="puts out 34 values, its 5 anchors and 2 classes need 35"):
        check_agreement(published, published.specs, "last.ckpt")
