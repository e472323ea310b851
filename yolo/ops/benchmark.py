"""The operators side by side: PyTorch reference, compiled kernels, torchvision's path and a peer's function.

The bars of the project (H200): decoding at 70 % of the copy bandwidth; ``detect`` on an ordinary scene in
0.10 ms for one picture and 0.35 for 32, on the dense scene in 0.5 and 5, at an evaluation threshold in 10.
"""

import importlib
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torchvision  # type: ignore[import-untyped]
from torch import Tensor

from yolo.ops.decode import decode_boxes_reference
from yolo.ops.detect import detect_reference
from yolo.ops.heads import Anchors, HeadSpec
from yolo.ops.layout import pack
from yolo.ops.library import has_kernel

COCO_ANCHORS: Anchors = (
    (10.0, 13.0),
    (16.0, 30.0),
    (33.0, 23.0),
    (30.0, 61.0),
    (62.0, 45.0),
    (59.0, 119.0),
    (116.0, 90.0),
    (156.0, 198.0),
    (373.0, 326.0),
)
CLASSES = 80
IOU_THRESHOLD = 0.45
MAX_DETECTIONS = 300

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One measurement.

    Args:
        workload: What was computed.
        way: By which code.
        milliseconds: Median of one call, host included.
        replay: Median of one replay in a CUDA graph, where the code can be captured.
        note: Candidates, bandwidth.
    """

    workload: str
    way: str
    milliseconds: float
    replay: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Scene:
    """Head outputs of a known kind."""

    name: str
    specs: tuple[HeadSpec, ...]
    logits: list[Tensor]
    score_threshold: float
    multi_label: bool

    @property
    def options(self) -> tuple[float, float, int, bool, bool]:
        return self.score_threshold, IOU_THRESHOLD, MAX_DETECTIONS, self.multi_label, False


def benchmark(device: str, runs: int = 50) -> list[Row]:
    """Measure every operator on ``device``; takes a minute or two, so that each row is logged as it comes."""
    rows = []
    for row in _everything(device, runs):
        log.info("%s", format_row(row))
        rows.append(row)
    return rows


def format_rows(rows: Sequence[Row]) -> str:
    """A table, a line a measurement."""
    return "\n".join((f"{'workload':52} {'way':12} {'ms':>10} {'graph ms':>9}  note", *map(format_row, rows)))


def format_row(row: Row) -> str:
    """One line of the table."""
    replay = "" if row.replay is None else f"{row.replay:.4f}"
    return f"{row.workload:52} {row.way:12} {row.milliseconds:10.4f} {replay:>9}  {row.note}".rstrip()


def _everything(device: str, runs: int) -> Iterator[Row]:
    yield from _decoding(device, runs)
    for scene in scenes(device):
        yield from _detection(scene, device, runs)


def median_ms(call: Callable[[], object], device: str, runs: int) -> float:
    """Median milliseconds of ``call``, after a few calls to warm up; a single one is timed as it is."""
    for _ in range(min(3, runs - 1)):
        call()
    times = []
    for _ in range(runs):
        if device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            call()
            times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def replay_ms(call: Callable[[], object], runs: int) -> float:
    """Median milliseconds of a replay of ``call``, captured in a CUDA graph: the device's time alone."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return median_ms(graph.replay, "cuda", runs)


def copy_bandwidth(device: str) -> float:
    """Bytes read and written a millisecond by a large copy on ``device``."""
    source = torch.rand(2**28 if device == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_ms(lambda: target.copy_(source), device, 20)


def _decoding(device: str, runs: int) -> Iterator[Row]:
    """YOLOv3 at 608 pixels, batch 32 (a quarter of that on the CPU)."""
    bandwidth = copy_bandwidth(device)
    yield Row("copy", "torch", 0.0, None, f"{bandwidth / 1e6:.0f} GB/s read and written")
    specs = yolov3_specs()
    images = 32 if device == "cuda" else 8
    layout = pack(specs)
    cases = [(torch.float16, False), (torch.float32, False), (torch.float16, True), (torch.float32, True)]
    for dtype, channels_last in cases if device == "cuda" else cases[1:2]:
        logits = [x.to(dtype) for x in random_logits(specs, images, 608, device)]
        if channels_last:
            logits = [x.to(memory_format=torch.channels_last) for x in logits]
        name = (
            f"decode YOLOv3 608, batch {images}, {str(dtype)[6:]}{', channels last' if channels_last else ''}"
        )
        moved = sum(x.nbytes for x in logits) + sum(x.nbytes for x in decode_boxes_reference(logits, *layout))
        for way, call in (
            ("compiled", lambda: torch.ops.yolo.decode_boxes(logits, *layout)),  # noqa: B023
            ("reference", lambda: decode_boxes_reference(logits, *layout)),  # noqa: B023
        ):
            if way == "compiled" and not has_kernel("decode_boxes", device):
                continue
            replay = replay_ms(call, runs) if device == "cuda" else None
            took = median_ms(call, device, runs)
            share = moved / (replay or took) / bandwidth
            yield Row(name, way, took, replay, f"{moved / 1e6:.0f} MB, {share:.0%} of the copy bandwidth")


def _detection(scene: Scene, device: str, runs: int) -> Iterator[Row]:
    layout = pack(scene.specs)
    boxes, scores = decode_boxes_reference(scene.logits, *layout)
    passing = scores > scene.score_threshold
    found = passing.sum() if scene.multi_label else passing.any(dim=-1).sum()
    note = f"{int(found) / len(boxes):.0f} candidates a picture"
    if has_kernel("detect", device):

        def compiled() -> object:
            return torch.ops.yolo.detect(scene.logits, *layout, *scene.options)

        replay = replay_ms(compiled, runs) if device == "cuda" else None
        yield Row(scene.name, "compiled", median_ms(compiled, device, runs), replay, note)
    few = 1 if scene.multi_label else max(3, runs // 10)  # seconds a call
    yield Row(
        scene.name,
        "reference",
        median_ms(lambda: detect_reference(scene.logits, layout[0], layout[1], *scene.options), device, few),
    )
    if not scene.multi_label:  # hundreds of thousands of boxes take it a minute
        yield Row(scene.name, "torchvision", median_ms(lambda: torchvision_path(scene), device, few))
    peer = peer_function()
    if peer is not None:
        center = torch.cat(((boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]), dim=-1)
        table = torch.cat((center, scores), dim=-1).transpose(1, 2).contiguous()
        options = {"max_det": MAX_DETECTIONS, "multi_label": scene.multi_label}

        def suppress() -> object:
            return peer(table.clone(), scene.score_threshold, IOU_THRESHOLD, **options)

        yield Row(scene.name, "ultralytics", median_ms(suppress, device, few), None, "suppression only")


def peer_function() -> Callable[..., Any] | None:
    """The suppression of the ultralytics package where it is installed: a yardstick, never a dependency."""
    try:
        return importlib.import_module("ultralytics.utils.nms").non_max_suppression
    except ImportError:
        return None


def torchvision_path(scene: Scene) -> list[Tensor]:
    """Decode in PyTorch, then ``torchvision.ops.batched_nms`` picture by picture."""
    kept = []
    for boxes, scores in zip(*decode_boxes_reference(scene.logits, *pack(scene.specs)), strict=True):
        if scene.multi_label:
            row, label = (scores > scene.score_threshold).nonzero().unbind(dim=1)
            score = scores[row, label]
        else:
            best, label = scores.max(dim=-1)
            row = (best > scene.score_threshold).nonzero().squeeze(1)
            score, label = best[row], label[row]
        index = torchvision.ops.batched_nms(boxes[row], score, label, IOU_THRESHOLD)[:MAX_DETECTIONS]
        kept.append(torch.cat((boxes[row[index]], score[index, None], label[index, None]), dim=1))
    return kept


def yolov3_specs() -> tuple[HeadSpec, ...]:
    """The three heads of YOLOv3 for COCO."""
    masks = ((32.0, (6, 7, 8)), (16.0, (3, 4, 5)), (8.0, (0, 1, 2)))
    return tuple(HeadSpec("yolo", CLASSES, stride, COCO_ANCHORS, mask) for stride, mask in masks)


def random_logits(specs: Sequence[HeadSpec], images: int, size: int, device: str) -> list[Tensor]:
    """Standard normal head outputs for square pictures, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    sides = [int(size / spec.stride) for spec in specs]
    return [
        torch.randn(images, spec.channels, side, side, generator=generator).to(device)
        for spec, side in zip(specs, sides, strict=True)
    ]


def scenes(device: str) -> Iterator[Scene]:
    """Ordinary, dense and evaluation scenes for one picture and a batch."""
    specs = yolov3_specs()
    dtype = torch.float16 if device == "cuda" else torch.float32
    for images in (1, 32) if device == "cuda" else (1, 4):
        logits = [x.to(dtype) for x in ordinary_logits(specs, images, device)]
        yield Scene(f"detect YOLOv3 416, ordinary, batch {images}", specs, logits, 0.25, False)
        last = [x.to(memory_format=torch.channels_last) for x in logits]
        yield Scene(f"detect YOLOv3 416, channels last, batch {images}", specs, last, 0.25, False)
        yield dense_scene(images, device)
    images = images if device == "cuda" else 1
    logits = [(x - 2.5).to(dtype) for x in random_logits(specs, images, 416, device)]
    yield Scene(f"detect YOLOv3 416, evaluation, batch {images}", specs, logits, 0.001, True)
    if device == "cuda":
        dense = dense_scene(images, device)
        yield Scene(f"detect dense, evaluation, batch {images}", dense.specs, dense.logits, 0.001, True)


def ordinary_logits(specs: Sequence[HeadSpec], images: int, device: str) -> list[Tensor]:
    """About 200 candidates a picture: 2 % of the cells see something, and are sure of one class."""
    logits = random_logits(specs, images, 416, device)
    generator = torch.Generator().manual_seed(1)
    for x, spec in zip(logits, specs, strict=True):
        view = x.view(images, spec.num_anchors, 5 + spec.num_classes, *x.shape[2:])
        seen = torch.rand(view[:, :, 4].shape, generator=generator).to(device) < 0.02
        view[:, :, 4] += torch.where(seen, 5.0, -5.0)
        view[:, :, 5:] -= 3.0
        label = torch.randint(spec.num_classes, seen.shape, generator=generator).to(device)
        view[:, :, 5:].scatter_add_(2, label[:, :, None], torch.full_like(view[:, :, :1], 6.0))
    return logits


def dense_scene(images: int, device: str) -> Scene:
    """8,400 predictions at 640 pixels, about 7,900 of them above 0.25.

    Class scores are uniform numbers to the 40th power; boxes, 8 to 88 pixels wide and high, lie anywhere in
    their cells.
    """
    specs = tuple(HeadSpec("yolo", CLASSES, stride, ((32.0, 32.0),), (0,)) for stride in (8.0, 16.0, 32.0))
    generator = torch.Generator().manual_seed(0)
    logits = []
    for spec in specs:
        side = int(640 / spec.stride)
        x = torch.rand(images, spec.channels, side, side, generator=generator)
        x[:, :2] = x[:, :2].logit(1e-6)
        x[:, 2:4] = ((x[:, 2:4] * 80 + 8) / 32).log()
        x[:, 4] = 30.0
        x[:, 5:] = (x[:, 5:] ** 40).clamp(1e-20, 1 - 1e-6).logit()
        logits.append(x.to(device))
    return Scene(f"detect dense (8,400 predictions), batch {images}", specs, logits, 0.25, False)
