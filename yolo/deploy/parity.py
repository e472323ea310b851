"""The gate at the end of every export: the file must find what PyTorch finds, in real pictures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from yolo.deploy.runtime import Runtime
from yolo.ops.boxes import pairwise_iou
from yolo.types import Detections

SHOWN_SCORE = 0.01  # raw boxes count where some class scores more: others are of no use to anybody


@dataclass(frozen=True)
class Tolerance:
    """How far an exported file may be from PyTorch in float32.

    Args:
        max_box_px: Largest difference of an edge, pixels of the input.
        max_score: Largest difference of a score.
        min_matched: Least share of detections, of either side, with a partner on the other: same class, IoU
            above ``min_iou``. Those whose score is within ``max_score`` of the threshold may miss it.
        min_iou: Of partners.
        raw: Hold every single prediction to the first two limits, too. In int8 an object's best score may
            move to the next cell, which changes single predictions a lot and detections hardly.
        min_score: Pairs below it count as pairs, but their differences do not.
    """

    max_box_px: float
    max_score: float
    min_matched: float
    min_iou: float = 0.5
    raw: bool = True
    min_score: float = 0.0


# What measured exports of trained networks stay well below; int8 is judged by mAP, the gate catches wrecks.
TOLERANCES = {
    "fp32": Tolerance(0.05, 1e-3, 0.999),
    "fp16": Tolerance(2.0, 0.02, 0.98),
    "int8": Tolerance(32.0, 0.30, 0.80, raw=False, min_score=0.25),
}


@dataclass
class Row:
    """One artifact against PyTorch."""

    artifact: str
    shape: str = ""
    pictures: int = 0
    detections: int = 0  # of PyTorch
    matched: float = 1.0  # share
    min_iou: float = 1.0  # of matched pairs
    box_px: float = 0.0  # largest difference of an edge of a matched pair
    score: float = 0.0  # largest difference of a matched pair
    raw_box_px: float | None = None
    raw_score: float | None = None
    not_run: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.not_run:
            return f"not run: {self.not_run}"
        return f"failed: {'; '.join(self.faults)}" if self.faults else "passed"


def compare(reference: Runtime, artifact: Runtime, batches: Iterable[Tensor], tolerance: Tolerance) -> Row:
    """Run the same images through both and measure the differences.

    Args:
        reference: Gives every prediction by ``every`` and detections by a call.
        artifact: What was exported.
        batches: Images ``[N, 3, H, W]`` uint8, all of one size.
        tolerance: What is over it is listed as a fault.
    """
    row = Row(artifact.name)
    found = partners = expected = 0
    for images in batches:
        row.shape = "x".join(map(str, images.shape))
        row.pictures += len(images)
        every = reference.every(images)
        assert every is not None, "PyTorch shows every prediction"
        _compare_raw(row, every, artifact.every(images))
        right, got = (runtime.download(runtime(images)) for runtime in (reference, artifact))
        for index in range(len(images)):
            counts = _match(row, right, got, index, artifact.rule.score_threshold, tolerance)
            expected, found, partners = expected + counts[0], found + counts[1], partners + counts[2]
        row.detections += int(right.count.sum())
    total = expected + found
    row.matched = 2 * partners / total if total else 1.0
    row.faults = _faults(row, tolerance)
    return row


def _compare_raw(row: Row, right: tuple[Tensor, Tensor], got: tuple[Tensor, Tensor] | None) -> None:
    if got is None:
        return
    boxes, scores = (values.cpu() for values in right)
    other_boxes, other_scores = (values.cpu() for values in got)
    if boxes.shape != other_boxes.shape or scores.shape != other_scores.shape:
        row.faults.append(f"shapes {list(other_boxes.shape)} instead of {list(boxes.shape)}")
        row.raw_box_px = row.raw_score = float("inf")
        return
    shown = scores.amax(dim=-1) > SHOWN_SCORE
    box = (boxes - other_boxes).abs()[shown]
    row.raw_box_px = max(row.raw_box_px or 0.0, _largest(box))
    row.raw_score = max(row.raw_score or 0.0, _largest((scores - other_scores).abs()))


def _largest(values: Tensor) -> float:
    """A NaN counts as infinitely far."""
    return float(values.nan_to_num(nan=float("inf"), posinf=float("inf")).max()) if values.numel() else 0.0


def _match(
    row: Row, right: Detections, got: Detections, index: int, threshold: float, tolerance: Tolerance
) -> tuple[int, int, int]:
    """Pair the detections of one picture: how many each side has, and pairs."""
    a, b = int(right.count[index]), int(got.count[index])
    boxes, other = right.boxes[index, :a], got.boxes[index, :b]
    scores, other_scores = right.scores[index, :a], got.scores[index, :b]
    sure = threshold + tolerance.max_score
    overlap = pairwise_iou(boxes, other)
    overlap = overlap * (right.labels[index, :a, None] == got.labels[index, None, :b])
    pairs = 0
    taken_a, taken_b = torch.zeros(a, dtype=torch.bool), torch.zeros(b, dtype=torch.bool)
    for flat in overlap.flatten().argsort(descending=True).tolist():
        i, j = divmod(flat, b)
        if overlap[i, j] <= tolerance.min_iou:
            break
        if taken_a[i] or taken_b[j]:
            continue
        taken_a[i] = taken_b[j] = True
        pairs += 1
        if float(scores[i]) < tolerance.min_score:
            continue
        row.min_iou = min(row.min_iou, float(overlap[i, j]))
        row.box_px = max(row.box_px, _largest((boxes[i] - other[j]).abs()))
        row.score = max(row.score, float((scores[i] - other_scores[j]).abs()))
    lost = int(((scores > sure) & ~taken_a).sum())
    added = int(((other_scores > sure) & ~taken_b).sum())
    return pairs + lost, pairs + added, pairs


def _faults(row: Row, tolerance: Tolerance) -> list[str]:
    limits: Sequence[tuple[str, float | None, float]] = (
        ("box px", row.box_px, tolerance.max_box_px),
        ("score", row.score, tolerance.max_score),
        ("raw box px", row.raw_box_px if tolerance.raw else None, tolerance.max_box_px),
        ("raw score", row.raw_score if tolerance.raw else None, tolerance.max_score),
    )
    faults = list(row.faults)
    faults += [
        f"{name} {value:.4g} over {limit:g}"
        for name, value, limit in limits
        if value is not None and value > limit
    ]
    if row.matched < tolerance.min_matched:
        faults.append(f"matched {row.matched:.4f} under {tolerance.min_matched:g}")
    return faults


def reject(path: Path) -> Path:
    """Rename a file that did not pass, so that nobody takes it for good."""
    rejected = path.with_name(f"{path.name}.rejected")
    path.replace(rejected)
    return rejected
