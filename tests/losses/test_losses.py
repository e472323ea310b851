"""What holds for every loss: finite, learnable, indifferent to order, and never waiting for the device."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from yolo.losses import DetectionLoss, GridLoss, ModernLoss, RegionLoss, YoloV3Loss, YoloV4Loss
from yolo.ops.boxes import pairwise_iou
from yolo.ops.decode import decode
from yolo.ops.heads import HeadSpec
from yolo.types import Targets

SIZE = (128, 160)
ANCHORS = ((10.0, 14.0), (24.0, 20.0), (30.0, 60.0), (70.0, 40.0), (90.0, 100.0), (150.0, 110.0))


def yolo(classes: int, **more: Any) -> list[HeadSpec]:
    heads = ((32, (3, 4, 5)), (16, (0, 1, 2)))
    return [HeadSpec("yolo", classes, stride, ANCHORS, mask, **more) for stride, mask in heads]


def region(classes: int, softmax: bool = True) -> list[HeadSpec]:
    return [HeadSpec("region", classes, 32, ANCHORS, tuple(range(6)), softmax=softmax)]


def grid(classes: int, softmax: bool = False) -> list[HeadSpec]:
    return [HeadSpec("grid", classes, 32, boxes_per_cell=2, side=5, softmax=softmax)]


LOSSES: dict[str, Callable[[int], DetectionLoss]] = {
    "v1": lambda c: GridLoss(grid(c)),
    "v1_softmax": lambda c: GridLoss(grid(c, softmax=True), rescore=False, random=True),
    "v2": lambda c: RegionLoss(region(c)),
    "v2_logistic": lambda c: RegionLoss(region(c, softmax=False), bias_match=False),
    "v3": lambda c: YoloV3Loss(yolo(c)),
    "v3_truth_thresh": lambda c: YoloV3Loss(yolo(c), truth_thresh=0.7),
    "v4": lambda c: YoloV4Loss(yolo(c, xy_scale=1.1)),
    "v4_giou_focal": lambda c: YoloV4Loss(yolo(c), iou_loss="giou", focal_loss=True, max_delta=None),
    "v4_csp": lambda c: YoloV4Loss(
        yolo(c, xy_scale=2.0, squared=True), objectness_smooth=True, iou_loss="diou"
    ),
    "modern_v2": lambda c: ModernLoss(region(c), label_smoothing=0.1),
    "modern_v3": lambda c: ModernLoss(yolo(c)),
    "modern_v4": lambda c: ModernLoss(yolo(c, xy_scale=1.2), reach=0.4, focal_gamma=1.5, ignore_thresh=0.7),
    "modern_csp": lambda c: ModernLoss(yolo(c, xy_scale=2.0, squared=True), match="iou", iou_loss="giou"),
}


def size_of(loss: DetectionLoss) -> tuple[int, int]:
    return (160, 160) if loss.specs[0].kind == "grid" else SIZE


def outputs(loss: DetectionLoss, n: int = 2, seed: int = 0) -> list[Tensor]:
    """Random raw outputs; probabilities where the convolution is logistic."""
    generator, (height, width), result = torch.Generator().manual_seed(seed), size_of(loss), []
    for spec in loss.specs:
        cells = () if spec.kind == "grid" else (int(height // spec.stride), int(width // spec.stride))
        x = torch.randn(n, spec.channels, *cells, generator=generator)
        result.append(x.sigmoid() if spec.squared else x)
    return result


def objects(*rows: Sequence[float]) -> Targets:
    """Image, class, x1, y1, x2, y2."""
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    return Targets(table[:, 2:], table[:, 1].long(), table[:, 0].long())


def slopes(
    loss: DetectionLoss, logits: list[Tensor], targets: Targets
) -> tuple[dict[str, Tensor], list[Tensor]]:
    leaves = [x.clone().requires_grad_() for x in logits]
    terms = loss(leaves, targets, size_of(loss))
    return terms, list(torch.autograd.grad(torch.stack(list(terms.values())).sum(), leaves))


NONE: Targets = objects()
USUAL = objects((0, 0, 20, 20, 52, 85), (0, 2, 90, 30, 150, 100), (1, 1, 5, 60, 70, 120))
AWKWARD = {
    "none": NONE,
    "one image without": objects((1, 0, 10, 10, 50, 50)),
    "two in one cell": objects((0, 0, 40, 40, 56, 56), (0, 0, 40, 40, 56, 56), (0, 0, 42, 42, 56, 60)),
    "on borders": objects((0, 0, 48, 16, 80, 48), (0, 0, 0, 0, 64, 64), (0, 0, 32, 32, 32.01, 96)),
    "at 0 and 1": objects((0, 0, -20, -20, 20, 20), (1, 0, 120, 108, 200, 148), (1, 0, 150, 150, 170, 170)),
    "sub-pixel": objects((0, 0, 30, 30, 30.01, 30.02), (1, 0, 70.3, 70.3, 70.9, 70.31)),
    "empty, turned over, unknown class": objects(
        (0, 0, 30, 30, 30, 40), (0, 0, 50, 50, 40, 40), (0, 99, 5, 5, 50, 50), (0, -1, 5, 5, 50, 50)
    ),
    "larger than the picture": objects((0, 0, -500, -400, 900, 800)),
    "not a number": objects((0, 0, float("nan"), 30, 40, 40), (1, 0, 10, 10, float("inf"), 40)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_finite_whatever_comes(name: str, dtype: torch.dtype) -> None:
    """Also with one class only, and with outputs of half precision that are far out."""
    for classes in (1, 3):
        loss = LOSSES[name](classes)
        for scale in (1.0, 30.0):
            logits = [x * scale for x in outputs(loss)]
            logits = [(x.clamp(0, 1) if loss.specs[0].squared else x).to(dtype) for x in logits]
            for case, targets in AWKWARD.items():
                terms, gradients = slopes(loss, logits, targets)
                for term in terms.values():
                    assert term.dtype == torch.float32
                    assert torch.isfinite(term), (case, classes, scale, terms)
                for x, gradient in zip(logits, gradients, strict=True):
                    assert gradient.dtype == x.dtype
                    assert torch.isfinite(gradient).all(), (case, classes, scale)


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_changes_nothing(name: str) -> None:
    loss = LOSSES[name](3).eval()
    logits = [x.bfloat16() for x in outputs(loss)]
    torch.manual_seed(1)
    plain = loss(logits, USUAL, size_of(loss))
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(1)
        cast = loss(logits, USUAL, size_of(loss))
    assert plain == cast


@pytest.mark.parametrize("name", LOSSES)
def test_without_objects_nothing_but_objectness(name: str) -> None:
    loss = LOSSES[name](3).eval()
    for module in loss.modules():
        if isinstance(module, RegionLoss):
            module.seen += 20_000
    terms, gradients = slopes(loss, outputs(loss), NONE)
    assert terms["box"] == terms["class"] == 0
    assert 0 < terms["objectness"] < 5
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("name", LOSSES)
def test_objects_of_different_cells_in_any_order(name: str) -> None:
    loss = LOSSES[name](3).eval()
    logits, order = outputs(loss), torch.tensor([2, 0, 1])
    turned = Targets(*(part[order] for part in USUAL))
    if name == "v1_softmax":
        pytest.skip("random=1 draws the responsible box object by object")
    terms, gradients = slopes(loss, logits, USUAL)
    other, others = slopes(loss, logits, turned)
    for key, term in terms.items():
        torch.testing.assert_close(other[key], term)
    for ours, theirs in zip(gradients, others, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_an_image_learns_its_own_objects_only(name: str) -> None:
    loss = LOSSES[name](3).eval()
    logits = outputs(loss)
    _, (before, *_) = slopes(loss, logits, objects((0, 0, 20, 20, 52, 85)))
    _, (after, *_) = slopes(loss, logits, objects((0, 0, 20, 20, 52, 85), (1, 1, 5, 60, 70, 120)))
    if name == "v1_softmax":
        pytest.skip("random=1 draws the responsible box")
    divisor = 2 if "modern" not in name else None
    if divisor is not None:
        torch.testing.assert_close(before[0], after[0] * divisor, rtol=1e-4, atol=1e-6)
    else:  # divided by the predictions that answer: the same direction
        cosine = torch.cosine_similarity(before[0].flatten(), after[0].flatten(), dim=0)
        assert cosine.item() == pytest.approx(1, abs=1e-4)


NOT_ALONE = {
    "v4_csp": "objectness_smooth only keeps up what overlaps already",
    "v1_softmax": "random=1 lets both boxes answer for an object in turn",
    "v3_truth_thresh": "above truth_thresh other cells answer, too",
}


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in NOT_ALONE])
def test_descent_ends_at_the_objects(name: str) -> None:
    """Plain descent on the outputs: the loss falls, and the objects and nothing else are decoded."""
    loss = LOSSES[name](3)
    logits = [
        (0.1 * x if not loss.specs[0].squared else 0.4 + 0.2 * x).requires_grad_() for x in outputs(loss)
    ]
    optimizer = torch.optim.Adam(logits, lr=0.02 if loss.specs[0].squared else 0.1)
    first = last = torch.zeros(())
    for step in range(250):
        optimizer.zero_grad()
        last = torch.stack(list(loss(logits, USUAL, size_of(loss)).values())).sum()
        first = last.detach() if step == 0 else first
        last.backward()
        optimizer.step()
        if loss.specs[0].squared:
            with torch.no_grad():
                [x.clamp_(0, 1) for x in logits]
    assert last < 0.5 * first
    boxes, scores = (x.detach() for x in decode(logits, loss.specs))
    for image in range(2):
        mine = USUAL.image == image
        best, label = scores[image].max(dim=1)
        sure = best > 0.3
        overlap = pairwise_iou(USUAL.boxes[mine], boxes[image, sure])
        assert (overlap.amax(dim=1) > 0.85).all(), (name, overlap)
        assert (overlap.amax(dim=0) > 0.7).all(), (name, overlap)
        assert torch.equal(label[sure], USUAL.labels[mine][overlap.argmax(dim=0)])


class Watch(TorchDispatchMode):
    """Fails on what makes the host wait for values on the device, or gives shapes that depend on them."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item", "is_nonzero", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().split("::")[1].split(".")[0]
        assert name not in self.WAITS, name
        if name in ("index", "index_put", "index_put_", "_unsafe_index"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "a mask as an index is a nonzero"
        if name == "repeat_interleave":
            assert kwargs.get("output_size") is not None
        return func(*args, **kwargs)


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_waits_for_the_device(name: str) -> None:
    loss = LOSSES[name](3)
    logits = [x.requires_grad_() for x in outputs(loss)]
    with Watch():
        torch.stack(list(loss(logits, USUAL, size_of(loss)).values())).sum().backward()


def test_the_watch_sees() -> None:
    x = torch.ones(3)
    for wait in (lambda: x.sum().item(), lambda: x[x > 0], lambda: bool(x.any())):
        with pytest.raises(AssertionError), Watch():
            wait()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", LOSSES)
def test_the_gpu_agrees_and_never_waits(name: str) -> None:
    loss = LOSSES[name](3).eval()
    if name == "v1_softmax":
        pytest.skip("random=1 draws other numbers on another device")
    logits = outputs(loss)
    terms, gradients = slopes(loss, logits, USUAL)
    loss, logits = loss.cuda(), [x.cuda() for x in logits]
    targets = Targets(*(part.cuda() for part in USUAL))
    slopes(loss, logits, targets)  # the first call loads kernels, which waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        found, theirs = slopes(loss, logits, targets)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for key, term in terms.items():
        torch.testing.assert_close(found[key].cpu(), term, rtol=1e-4, atol=1e-5)
    for ours, other in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(other.cpu(), ours, rtol=1e-3, atol=1e-5)


def test_wrong_outputs_are_named() -> None:
    loss = YoloV3Loss(yolo(3))
    with pytest.raises(ValueError, match="built for 2 heads, got 1"):
        loss(outputs(loss)[:1], NONE, SIZE)
    with pytest.raises(ValueError, match=r"24 values, got an output \(2, 27, 4, 5\)"):
        loss([torch.zeros(2, 27, 4, 5), torch.zeros(2, 24, 8, 10)], NONE, SIZE)
