"""A detector run by PyTorch: as it is, compiled, or replayed from a CUDA graph."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor, nn

from yolo.checkpoint import Model
from yolo.deploy.extras import installed
from yolo.deploy.fused import EIGHT, Kernels, begins_fused, fuse_convolutions
from yolo.deploy.graph import Suppression, suppress
from yolo.deploy.precision import folded
from yolo.deploy.runtime import ANY, Limits, Runtime
from yolo.ops import decode, detect
from yolo.ops.library import has_kernel
from yolo.types import Detections

Mode = Literal["eager", "compiled", "graph"]
Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FEW, MANY = 3, 10  # kernels that are tried for a fused convolution, without and with ``autotune``
WARM_UP = 3  # runs before a capture: libraries allocate and choose their kernels in the first ones


class _Prepared(nn.Module):
    """Pixels to raw outputs, in one piece for the compiler: it fuses the conversion into the first layers."""

    def __init__(self, detector: nn.Module, dtype: torch.dtype, channels_last: bool) -> None:
        super().__init__()
        self.detector = detector
        self.dtype = dtype
        self.channels_last = channels_last

    def forward(self, images: Tensor) -> list[Tensor]:
        x = images.to(self.dtype)
        x = x / 255.0 if images.dtype == torch.uint8 else x
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return list(self.detector(x))


class _Fed(_Prepared):
    """The same by two kernels, into eight channels, of which five are zero: tensor cores take eight at once."""

    def forward(self, images: Tensor) -> list[Tensor]:
        n, channels, height, width = images.shape
        x = torch.empty(
            (n, EIGHT, height, width),
            dtype=self.dtype, device=images.device, memory_format=torch.channels_last,
        ).zero_()  # fmt: skip
        if images.dtype == torch.uint8:
            torch.div(images, 255.0, out=x[:, :channels])
        else:
            x[:, :channels] = images
        return list(self.detector(x))


def _prepared(detector: nn.Module, dtype: torch.dtype, channels_last: bool) -> _Prepared:
    """``detector`` behind the conversion that its first convolution wants."""
    return (_Fed if begins_fused(detector) else _Prepared)(detector, dtype, channels_last)


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    images: Tensor
    outputs: tuple[Tensor, ...]


class TorchRuntime(Runtime):
    """The network with its batch norms folded, then :func:`yolo.ops.detect`.

    Args:
        model: As :func:`yolo.checkpoint.load_model` gives it; not changed.
        rule: Suppression of the results.
        device: Where it runs.
        precision: Of the network; decoding and suppression are always float32.
        mode: ``compiled`` by torch.compile once per input shape; ``graph`` also records network and
            suppression in one CUDA graph per shape, and in half precision takes cuDNN's fused convolutions
            (:mod:`yolo.deploy.fused`) for the compiler's where the extra ``fused`` is installed.
        autotune: Try ten kernels for each fused convolution and shape, not three: a minute or two once.
    """

    def __init__(
        self,
        model: Model,
        rule: Suppression | None = None,
        *,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        mode: Mode = "eager",
        autotune: bool = False,
    ) -> None:
        device = torch.device(device)
        if precision not in DTYPES:
            raise ValueError(f"precision must be one of {', '.join(DTYPES)}, got {precision!r}")
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
        if mode == "graph" and device.type != "cuda":
            raise ValueError(f"mode=graph needs a CUDA device, got {device}")
        fused = mode == "graph" and precision != "fp32" and installed("cudnn")
        if autotune and not fused:
            raise ValueError(
                "autotune=true tries kernels of fused convolutions: it needs mode=graph, precision fp16 or bf16 and "
                "pip install 'yolo-lightning[fused]'"
            )
        detector = folded(model.yolo(f"precision={precision} with mode={mode}"))
        fixed = detector.fixed_size
        height, width = ((fixed[0],) * 2, (fixed[1],) * 2) if fixed else ((1, ANY), (1, ANY))
        super().__init__(
            f"PyTorch {mode} {precision} {device.type}",
            model.classes,
            model.preprocess,
            rule or Suppression(),
            Limits((1, ANY), height, width, detector.stride),
            device,
            suppresses=mode == "graph",
        )
        self.mode = mode
        self.specs = detector.specs
        channels_last = device.type == "cuda"
        detector = detector.to(device, DTYPES[precision])
        if fused:
            fuse_convolutions(detector, Kernels(MANY if autotune else FEW))
        if channels_last:
            detector = detector.to(memory_format=torch.channels_last)
        self._network: Callable[[Tensor], list[Tensor]] = _prepared(
            detector, DTYPES[precision], channels_last
        )
        if mode != "eager" and not fused:
            self._network = torch.compile(self._network, fullgraph=True, dynamic=False)
        # the reference of detect looks at the values, which a recording cannot
        self.fixed_shapes = mode == "graph" and not has_kernel("detect", "cuda")
        self._graphs: dict[tuple[int, ...], _Captured] = {}

    @torch.inference_mode()
    def upload(self, images: Tensor) -> Tensor:
        self.check(images)
        if self.mode != "graph":
            return images.to(self.device, non_blocking=True)
        images = self.fed(images)
        captured = self._graphs.get(tuple(images.shape))
        if captured is None:
            captured = self._graphs[tuple(images.shape)] = self._capture(images)
        return captured.images.copy_(images, non_blocking=True)

    @torch.inference_mode()
    def network(self, images: Tensor) -> tuple[Tensor, ...]:
        if self.mode != "graph":
            return tuple(self._network(images))
        captured = self._graphs[tuple(images.shape)]
        captured.graph.replay()
        return captured.outputs

    @torch.inference_mode()
    def suppress(self, outputs: Sequence[Tensor]) -> Detections:
        if self.mode != "graph":
            return self._detect(outputs)
        return Detections(*(values.clone() for values in outputs))  # the next replay writes over them

    @torch.inference_mode()
    def every(self, images: Tensor) -> tuple[Tensor, Tensor]:
        self.check(images)
        return decode(self._network(images.to(self.device)), self.specs)

    def _detect(self, logits: Sequence[Tensor]) -> Detections:
        if self.fixed_shapes:
            boxes, scores = decode(logits, self.specs)
            spare = max(
                0, self.rule.candidates - boxes.shape[1] * (scores.shape[2] if self.rule.multi_label else 1)
            )
            return Detections(*suppress(boxes, scores, self.rule, spare))
        return detect(logits, self.specs, **self.rule.detect_options())

    def ruled(self, **options: Any) -> Self:
        other = super().ruled(**options)
        other._graphs = {}  # the rule is part of what was recorded
        return other

    def _capture(self, images: Tensor) -> _Captured:
        """Record network and suppression for inputs of this shape."""
        static = torch.empty(images.shape, dtype=torch.uint8, device=self.device).copy_(images)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side), _measured_kernels():
            for _ in range(WARM_UP):
                self._detect(self._network(static))
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # PyTorch's own stream for recordings is of the GPU that recorded first: another one's work would be left out
        with torch.cuda.device(self.device), torch.cuda.graph(graph, stream=side), _measured_kernels():
            outputs = tuple(self._detect(self._network(static)))
        return _Captured(graph, static, outputs)


def _measured_kernels() -> AbstractContextManager[None]:
    """Let cuDNN measure which of its kernels is fastest for a shape, which it remembers."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True)
