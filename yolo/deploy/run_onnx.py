"""An exported file run by ONNX Runtime."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from yolo.deploy.extras import require
from yolo.deploy.graph import Suppression
from yolo.deploy.metadata import EVERY, INSIDE, SUPPRESSED, Metadata, from_properties
from yolo.deploy.onnx import load
from yolo.deploy.runtime import ANY, Limits, Runtime, agreed, narrowed, suppress_dense
from yolo.types import Detections

log = logging.getLogger(__name__)

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def limits_of(about: Metadata) -> Limits:
    """What an exported graph takes."""
    batch = (1, ANY) if about.batch is None else (about.batch, about.batch)
    if about.size is None:
        return Limits(batch, (about.stride, ANY), (about.stride, ANY), about.stride)
    height, width = about.size
    return Limits(batch, (height, height), (width, width), about.stride)


class OnnxRuntime(Runtime):
    """A file of :func:`yolo.deploy.onnx.export_onnx` in ONNX Runtime.

    On CUDA inputs and outputs stay on the device (IO binding).

    Args:
        path: The file.
        rule: May be narrower than what is in the file, not other.
        device: ``cpu`` or ``cuda``.
        threads: Of the CPU; 0 for as many as there are cores.

    Raises:
        ValueError: Not a file of this project, or ONNX Runtime would run it on another device than asked.
    """

    def __init__(
        self,
        path: Path,
        rule: Suppression | None = None,
        *,
        device: torch.device | str = "cpu",
        threads: int = 0,
    ) -> None:
        device = torch.device(device)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        self.path, self.threads = path, threads
        self.session = _session(str(path), path, device, threads)
        self.inner: Any = None  # a session that also shows what is suppressed
        self.about = about = from_properties(self.session.get_modelmeta().custom_metadata_map, path)
        super().__init__(
            f"ONNX Runtime {about.precision} {device.type}",
            about.classes,
            about.preprocess,
            agreed(about.rule, rule, path.name),
            limits_of(about),
            device,
            about.input_type,
            suppresses=about.rule is not None,
        )
        self.outputs = list(EVERY if about.rule is None else SUPPRESSED)
        found = [one.name for one in self.session.get_outputs()]
        if found != self.outputs:
            raise ValueError(
                f"{path}: outputs {', '.join(found)}; its description promises {', '.join(self.outputs)}"
            )

    def allowed(self, rule: Suppression) -> Suppression:
        """Any rule: what the graph's own suppression reads can be seen, too, and suppressed outside."""
        if self.about.rule is None:
            return rule
        try:
            return agreed(self.about.rule, rule, self.path.name)
        except ValueError as error:
            log.info("%s; its suppression is left aside", error)
            return rule

    def __call__(self, images: Tensor) -> Detections:
        if self.about.rule is None or self._inside(self.rule):
            return super().__call__(images)
        every = self.every(images)
        assert every is not None, "every ONNX file shows all of its predictions"
        return suppress_dense(*every, self.rule)

    def _inside(self, rule: Suppression) -> bool:
        """Whether the suppression in the graph, at most narrowed, is this one."""
        try:
            return agreed(self.about.rule, rule, self.path.name) == rule
        except ValueError:
            return False

    def network(self, images: Tensor) -> tuple[Tensor, ...]:
        self.check_fed(images)
        if self.device.type == "cpu":
            values = self.session.run(self.outputs, {"images": np.ascontiguousarray(images.numpy())})
            return tuple(torch.from_numpy(value) for value in values)
        binding = self.session.io_binding()
        images = images.contiguous()
        torch.cuda.current_stream(self.device).synchronize()  # ONNX Runtime has a stream of its own
        value = require("onnxruntime").OrtValue.from_dlpack(images)
        binding.bind_ortvalue_input("images", value)
        for name in self.outputs:
            binding.bind_output(name, "cuda", self.device.index or 0)
        self.session.run_with_iobinding(binding)
        return tuple(torch.utils.dlpack.from_dlpack(one) for one in binding.get_outputs())

    def every(self, images: Tensor) -> tuple[Tensor, Tensor] | None:
        """Also where suppression is in the graph: what it reads has names there."""
        if not self.suppresses:
            return super().every(images)
        if self.inner is None:
            onnx = require("onnx")
            model = load(self.path)
            float_type = onnx.TensorProto.FLOAT
            model.graph.output.extend(
                onnx.helper.make_tensor_value_info(name, float_type, None) for name in INSIDE
            )
            self.inner = _session(model.SerializeToString(), self.path, torch.device("cpu"), self.threads)
        boxes, scores = self.inner.run(list(INSIDE), {"images": self.upload(images).cpu().numpy()})
        return torch.from_numpy(boxes), torch.from_numpy(scores)

    def suppress(self, outputs: Any) -> Detections:
        detections = super().suppress(outputs)
        if self.about.rule is None or self.about.rule == self.rule:
            return detections
        return narrowed(detections, self.rule)


def _session(source: str | bytes, path: Path, device: torch.device, threads: int) -> Any:
    ort = require("onnxruntime")
    if device.type not in PROVIDERS:
        raise ValueError(f"ONNX Runtime runs on {' or '.join(PROVIDERS)} here, got {device}")
    provider = PROVIDERS[device.type]
    have = ort.get_available_providers()
    if provider not in have:
        raise ValueError(
            f"this onnxruntime has no {provider}, only {', '.join(have)} (pip install onnxruntime-gpu)"
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    settings = [{"device_id": device.index or 0}] if device.type == "cuda" else [{}]
    state = ort.capi.onnxruntime_pybind11_state
    refusals = (
        state.InvalidProtobuf,
        state.InvalidGraph,
        state.Fail,
        state.InvalidArgument,
        state.NotImplemented,
    )
    try:
        session = ort.InferenceSession(source, options, providers=[provider], provider_options=settings)
    except refusals as error:
        raise ValueError(f"{path}: ONNX Runtime cannot load it: {str(error).splitlines()[0]}") from error
    used = session.get_providers()[0]
    if used != provider:  # it falls back to the CPU without a word
        raise ValueError(f"{path}: asked for {provider}, ONNX Runtime uses {used}")
    return session
