"""The operators side by side: PyTorch reference, compiled kernels, torchvision's path and a peer's function.

The bars of the project (H200): decoding at 70 % of the copy bandwidth; ``detect`` on an ordinary scene in
0.10 ms for one picture and 0.35 for 32, on the dense scene in 0.5 and 5, at an evaluation threshold in 10; batch
norm and leaky ReLU of ``[64, 64, 320, 320]``, forward and backward, in 2.2.
"""

import importlib
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from yolo.ops.colour import vary_colour_reference
from yolo.ops.decode import decode_boxes_reference
from yolo.ops.detect import detect, detect_reference
from yolo.ops.layout import pack
from yolo.ops.library import has_kernel
from yolo.ops.norm import batch_norm_act
from yolo.ops.pool import max_pool_2x2
from yolo.ops.stem import stem_norm_act
from yolo.ops.workloads import IOU_THRESHOLD, MAX_DETECTIONS, Scene, random_logits, scenes, yolov3_specs

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
    if device == "cuda":
        yield from _normalizing(runs)
        yield from _starting(runs)
        yield from _pooling(runs)
    yield from _colouring(device, runs)
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


def _normalizing(runs: int) -> Iterator[Row]:
    """Batch norm and leaky ReLU, forward and backward, as YOLOv3 has them at 640 pixels, batch 64."""
    bandwidth = copy_bandwidth("cuda")
    types = torch.float16, torch.bfloat16, torch.float32
    for channels, side in ((64, 320), (128, 160), (256, 80), (512, 40), (1024, 20)):
        for dtype in types if channels == 64 else types[:1]:
            x = torch.randn(64, channels, side, side, device="cuda", dtype=dtype)
            yield from _normalize(x.to(memory_format=torch.channels_last).requires_grad_(), bandwidth, runs)


def _normalize(x: Tensor, bandwidth: float, runs: int) -> Iterator[Row]:
    channels, side = x.shape[1:3]
    norm, act = nn.BatchNorm2d(channels, device="cuda"), nn.LeakyReLU(0.1, inplace=True)
    grad, inputs = torch.randn_like(x), (x, norm.weight, norm.bias)
    tables = norm.weight, norm.bias, norm.running_mean, norm.running_var

    def timed(forward: Callable[[], Tensor]) -> tuple[float, float]:
        def both() -> object:
            return torch.autograd.grad(forward(), inputs, grad)

        return median_ms(both, "cuda", runs), replay_ms(both, runs)

    took = {"reference": timed(lambda: act(norm(x)))}
    if has_kernel("batch_norm_act", "cuda"):
        took["compiled"] = timed(lambda: batch_norm_act(x, *tables, act="leaky", slope=0.1))
    for way, (ms, replay) in took.items():
        share = (
            8 * x.nbytes / replay / bandwidth
        )  # x twice, forward and backward, the gradient twice; y and dx
        name = f"norm + leaky 64 x {channels} x {side} x {side}, {str(x.dtype)[6:]}"
        yield Row(name, way, ms, replay, f"{share:.0%} of the copy bandwidth")


def _starting(runs: int) -> Iterator[Row]:
    """The first block of YOLOv3 and of its tiny form, forward and backward, 64 pictures of 640 pixels."""
    bandwidth = copy_bandwidth("cuda")
    x = torch.rand(64, 3, 640, 640, device="cuda", dtype=torch.float16)
    for filters in (32, 16):
        conv = nn.Conv2d(3, filters, 3, padding=1, bias=False, device="cuda")
        norm = nn.BatchNorm2d(filters, device="cuda")
        yield from _start(x.to(memory_format=torch.channels_last), conv, norm, bandwidth, runs)


def _start(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, bandwidth: float, runs: int) -> Iterator[Row]:
    block = nn.Sequential(conv, norm, nn.LeakyReLU(0.1))
    inputs = conv.weight, norm.weight, norm.bias
    tables = norm.weight, norm.bias, norm.running_mean, norm.running_var
    # a cached cast of the weights would lead a recorded backward pass out of its recording
    with torch.autocast("cuda", x.dtype, cache_enabled=False):
        grad = torch.randn_like(block(x))
        ways = {"reference": lambda: block(x)}
        if has_kernel("stem_norm_act", "cuda"):
            ways["compiled"] = lambda: stem_norm_act(x, conv.weight, *tables, act="leaky", slope=0.1)
        for way, forward in ways.items():

            def both(forward: Callable[[], Tensor] = forward) -> object:
                return torch.autograd.grad(forward(), inputs, grad)

            ms, replay = median_ms(both, "cuda", runs), replay_ms(both, runs)
            share = (4 * x.nbytes + 3 * grad.nbytes) / replay / bandwidth  # x four times, y, dy twice
            name = f"first block 64 x 3 to {grad.shape[1]} x 640 x 640"
            yield Row(name, way, ms, replay, f"{share:.0%} of the copy bandwidth")


def _pooling(runs: int) -> Iterator[Row]:
    """Maxima of 2 x 2 pixels, forward and backward, as YOLOv3-tiny has them at 416 pixels, batch 64."""
    bandwidth = copy_bandwidth("cuda")
    for channels, side in ((16, 416), (64, 104), (256, 26)):
        x = torch.randn(64, channels, side, side, device="cuda", dtype=torch.float16)
        x = x.to(memory_format=torch.channels_last).requires_grad_()
        grad = torch.randn_like(F.max_pool2d(x, 2))
        ways = {"reference": lambda x: F.max_pool2d(x, 2)}
        if has_kernel("max_pool_2x2", "cuda"):
            ways["compiled"] = max_pool_2x2
        for way, pool in ways.items():

            def both(x: Tensor = x, grad: Tensor = grad, pool: Callable[[Tensor], Tensor] = pool) -> object:
                return torch.autograd.grad(pool(x), x, grad)

            ms, replay = median_ms(both, "cuda", runs), replay_ms(both, runs)
            share = 3.5 * x.nbytes / replay / bandwidth  # x twice, a quarter each of y and dy, dx
            yield Row(
                f"pool 64 x {channels} x {side} x {side}",
                way,
                ms,
                replay,
                f"{share:.0%} of the copy bandwidth",
            )


def _colouring(device: str, runs: int) -> Iterator[Row]:
    """The pictures of a training step at 640 pixels, batch 64 (an eighth of that on the CPU)."""
    count = 64 if device == "cuda" else 8
    images = torch.randint(0, 256, (count, 3, 640, 640), dtype=torch.uint8, device=device)
    images = images.to(memory_format=torch.channels_last)
    colours = torch.tensor([[0.01, 1.2, 0.8]], device=device).repeat(count, 1)
    calls = {"reference": lambda: vary_colour_reference(images, colours)}
    if has_kernel("vary_colour", device):
        calls["compiled"] = lambda: torch.ops.yolo.vary_colour(images, colours)
    for way, call in calls.items():
        replay = replay_ms(call, runs) if device == "cuda" else None
        yield Row(f"colour 640, batch {count}", way, median_ms(call, device, runs), replay)


def _detection(scene: Scene, device: str, runs: int) -> Iterator[Row]:
    layout = pack(scene.specs)
    boxes, scores = decode_boxes_reference(scene.logits, *layout)
    passing = scores > scene.score_threshold
    found = passing.sum() if scene.multi_label else passing.any(dim=-1).sum()
    note = f"{int(found) / len(boxes):.0f} candidates a picture"
    if has_kernel("detect", device):

        def compiled() -> object:
            return detect(scene.logits, scene.specs, **scene.options)

        replay = replay_ms(compiled, runs) if device == "cuda" else None
        yield Row(scene.name, "compiled", median_ms(compiled, device, runs), replay, note)
    few = 1 if scene.multi_label else max(3, runs // 10)  # seconds a call
    yield Row(
        scene.name,
        "reference",
        median_ms(lambda: detect_reference(scene.logits, layout[0], layout[1], **scene.options), device, few),
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
