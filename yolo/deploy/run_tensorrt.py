"""An engine run by TensorRT 10, 11 or RTX."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from yolo.deploy.extras import require
from yolo.deploy.graph import Suppression
from yolo.deploy.metadata import EVERY, SUPPRESSED, Metadata, read_sidecar
from yolo.deploy.runtime import INPUTS, Limits, Runtime, agreed, narrowed
from yolo.deploy.tensorrt import listener
from yolo.types import Detections

TYPES = {
    "UINT8": torch.uint8,
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "BOOL": torch.bool,
}
WARM_UP = 2


def check_engine(path: Path, about: Metadata, version: str, capability: tuple[int, int] | None) -> None:
    """Compare an engine with its description, the installed TensorRT and the GPU, before TensorRT sees it.

    Args:
        path: Of the engine.
        about: Its description.
        version: Of the TensorRT that is installed.
        capability: Of the GPU, such as (9, 0); None without one.

    Raises:
        ValueError: One line with the file, what was found and what is needed.
    """
    kind, size = about.engine["kind"], path.stat().st_size
    if size != about.engine["bytes"]:
        raise ValueError(
            f"{path}: {size} bytes, its description says {about.engine['bytes']}: cut short or replaced"
        )
    if about.engine["version"] != version:
        raise ValueError(
            f"{path}: built by {kind} {about.engine['version']}, installed is {version}: "
            "export it again with that one"
        )
    if capability is None:
        raise ValueError(f"{path}: an engine needs an NVIDIA GPU, PyTorch sees none")
    found = f"{capability[0]}.{capability[1]}"
    if kind == "tensorrt" and list(capability) != about.engine["capability"]:
        needed = ".".join(map(str, about.engine["capability"]))
        raise ValueError(
            f"{path}: built for {about.engine['gpu']} (compute capability {needed}), this GPU has {found}"
        )
    targets = about.engine["targets"]
    if kind == "tensorrt_rtx" and targets and capability[0] * 10 + capability[1] not in targets:
        needed = " or ".join(f"{target // 10}.{target % 10}" for target in targets)
        raise ValueError(f"{path}: built for compute capability {needed}, this GPU has {found}")


def engine_limits(about: Metadata) -> Limits:
    """What all profiles of an engine take together; a shape must also fit one of them."""
    shapes = [shape for profile in about.engine["profiles"] for shape in profile]
    batch, height, width = ((min(axis), max(axis)) for axis in zip(*shapes, strict=True))
    return Limits(batch, height, width, about.stride)


def fitting_profile(about: Metadata, shape: Sequence[int]) -> int | None:
    """The first profile that takes ``[N, 3, H, W]`` images, if any does."""
    wanted = (shape[0], shape[2], shape[3])
    for index, (low, _, high) in enumerate(about.engine["profiles"]):
        if all(a <= side <= b for a, side, b in zip(low, wanted, high, strict=True)):
            return index
    return None


def profile_for(about: Metadata, shape: Sequence[int], where: str) -> int:
    """As :func:`fitting_profile`.

    Raises:
        ValueError: None takes it; the message has the numbers.
    """
    index = fitting_profile(about, shape)
    if index is not None:
        return index
    known = "; ".join(
        f"{'x'.join(map(str, low))} to {'x'.join(map(str, high))}"
        for low, _, high in about.engine["profiles"]
    )
    wanted = f"{shape[0]}x{shape[2]}x{shape[3]}"
    raise ValueError(f"{where}: no profile takes batch x height x width {wanted}; it has {known}")


def read_types(engine: Any, about: Metadata, path: Path) -> dict[str, torch.dtype]:
    """Types of the inputs and outputs of an engine, by name.

    Raises:
        ValueError: They are not those of its description.
    """
    wanted = {"images", *(EVERY if about.rule is None else SUPPRESSED)}
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    if set(names) != wanted:
        raise ValueError(
            f"{path}: has {', '.join(names)}; its description promises {', '.join(sorted(wanted))}"
        )
    types = {name: TYPES[engine.get_tensor_dtype(name).name] for name in names}
    if types["images"] != INPUTS[about.input_type]:
        raise ValueError(
            f"{path}: is fed images of {types['images']}, its description says {INPUTS[about.input_type]}"
        )
    return types


class _Slot(NamedTuple):
    """All that belongs to one input shape; addresses never change, so that a CUDA graph can be replayed."""

    context: Any
    host: Tensor  # pinned
    images: Tensor
    outputs: dict[str, Tensor]
    graph: torch.cuda.CUDAGraph


class TensorRTRuntime(Runtime):
    """An engine of :func:`yolo.deploy.tensorrt.build_engine`.

    Types and shapes are read from the engine. Every input shape gets its buffers and a CUDA graph when it is
    first seen; everything runs on a stream of its own.

    Args:
        path: Of the engine; its description lies beside it.
        rule: May be narrower than what is in the engine, not other.
        device: The GPU.

    Raises:
        ValueError: The engine is for another TensorRT or GPU, damaged, or something else.
    """

    def __init__(
        self, path: Path, rule: Suppression | None = None, *, device: torch.device | str = "cuda"
    ) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        device = torch.device(device)
        about = read_sidecar(path)
        if not about.engine:
            raise ValueError(f"{path}: its description is not that of an engine")
        self.trt = require(about.engine["kind"])
        capability = torch.cuda.get_device_capability(device) if torch.cuda.is_available() else None
        check_engine(path, about, str(self.trt.__version__), capability)
        self.path, self.about = path, about
        self.logger = listener(self.trt)
        self.trt_runtime = self.trt.Runtime(self.logger)
        self.engine = self.trt_runtime.deserialize_cuda_engine(path.read_bytes())
        if self.engine is None:
            said = "; ".join(self.logger.errors) or "it does not say why"
            raise ValueError(f"{path}: {about.engine['kind']} {about.engine['version']} refuses it: {said}")
        self.types = read_types(self.engine, about, path)
        super().__init__(
            f"{about.engine['kind']} {about.engine['version']} {about.precision}",
            about.classes,
            about.preprocess,
            agreed(about.rule, rule, path.name),
            engine_limits(about),
            device,
            about.input_type,
            suppresses=about.rule is not None,
        )
        self.stream = torch.cuda.Stream(device)
        self.slots: dict[tuple[int, ...], _Slot] = {}

    def allowed(self, rule: Suppression) -> Suppression:
        return agreed(self.about.rule, rule, self.path.name)

    def takes(self, shape: Sequence[int]) -> bool:
        return self.limits.take(shape) and fitting_profile(self.about, shape) is not None

    def upload(self, images: Tensor) -> Tensor:
        self.check(images)
        slot = self._slot(tuple(images.shape))
        images = self.fed(images)
        with torch.cuda.stream(self.stream):
            if images.device.type == "cpu":
                images = slot.host.copy_(images)
            slot.images.copy_(images, non_blocking=True)
        return slot.images

    def network(self, images: Tensor) -> tuple[Tensor, ...]:
        self.check_fed(images)
        slot = self._slot(tuple(images.shape))
        with torch.cuda.stream(self.stream):
            if images.data_ptr() != slot.images.data_ptr():
                slot.images.copy_(images, non_blocking=True)
            slot.graph.replay()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return tuple(slot.outputs[name] for name in (EVERY if self.about.rule is None else SUPPRESSED))

    def suppress(self, outputs: Sequence[Tensor]) -> Detections:
        if not self.suppresses:
            return super().suppress(outputs)
        detections = Detections(*(values.clone() for values in outputs))  # the next replay writes over them
        return detections if self.about.rule == self.rule else narrowed(detections, self.rule)

    def _slot(self, shape: tuple[int, ...]) -> _Slot:
        if shape not in self.slots:
            self.slots[shape] = self._prepare(shape)
        return self.slots[shape]

    def _prepare(self, shape: tuple[int, ...]) -> _Slot:
        """Buffers and a recorded graph for one input shape."""
        index = profile_for(self.about, shape, str(self.path))
        context = self.engine.create_execution_context()
        if context is None:
            raise ValueError(f"{self.path}: no execution context: {'; '.join(self.logger.errors)}")
        dtype = self.types["images"]
        images = torch.zeros(shape, dtype=dtype, device=self.device)
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(self.stream):
            context.set_optimization_profile_async(index, self.stream.cuda_stream)
            if not context.set_input_shape("images", shape) or context.infer_shapes():
                raise ValueError(
                    f"{self.path}: refuses images of {list(shape)}: {'; '.join(self.logger.errors)}"
                )
            outputs = {
                name: torch.empty(tuple(context.get_tensor_shape(name)), dtype=kind, device=self.device)
                for name, kind in self.types.items()
                if name != "images"
            }
            for name, buffer in {"images": images, **outputs}.items():
                context.set_tensor_address(name, buffer.data_ptr())
            for _ in range(WARM_UP):
                self._execute(context)
            self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._execute(context)
        host = torch.empty(shape, dtype=dtype, pin_memory=True)
        return _Slot(context, host, images, outputs, graph)

    def _execute(self, context: Any) -> None:
        if not context.execute_async_v3(self.stream.cuda_stream):
            raise RuntimeError(f"{self.path}: TensorRT failed: {'; '.join(self.logger.errors)}")
