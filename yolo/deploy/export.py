"""Export as one call: graph, precision, engine, and the gate at the end."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from yolo.checkpoint import Model
from yolo.deploy.build import Wanted, deployed, describe
from yolo.deploy.calibrate import Method, Sensitivity, measure, sensitivities
from yolo.deploy.metadata import ENGINES, Metadata, sidecar
from yolo.deploy.onnx import OPSET, export_onnx, load, save
from yolo.deploy.parity import TOLERANCES, Row, Tolerance, compare, reject
from yolo.deploy.pictures import Image, batches, prepare
from yolo.deploy.precision import folded
from yolo.deploy.quantize import insert_pairs
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_tensorrt import TensorRTRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.deploy.runtime import Runtime
from yolo.deploy.tensorrt import EngineOptions, build_engine
from yolo.deploy.triton import write_repository
from yolo.models.detector import Detector
from yolo.models.quantize import quantizable

log = logging.getLogger(__name__)

Format = Literal["onnx", "engine", "triton"]
Rest = Literal["fp32", "fp16"]
SUFFIXES = {"onnx": (".onnx",), "engine": ENGINES}  # by which a file is known when it is loaded
UNTRACED_BATCH = 3


@dataclass(frozen=True)
class Int8Options:
    """How the ranges of an int8 graph are found and which layers are left out of it.

    Args:
        pictures: At least a few hundred that look like those the model will see; a network that was trained for
            int8 knows its ranges and needs none.
        method: ``entropy``, ``percentile`` or ``max`` (:class:`yolo.deploy.calibrate.Histogram`).
        percentile: For ``percentile``.
        probes: Pictures on which the sensitivity of every layer is measured.
        max_error: Layers whose int8 form alone changes the raw outputs by more than this share are left out,
            unless they were trained for int8.
        keep: Layers to leave out in any case.
        rest: Type of everything that is not int8.
        batch_size: Of the calibration.
    """

    pictures: Sequence[Image] = ()
    method: Method = "entropy"
    percentile: float = 99.99
    probes: int = 8
    max_error: float = 0.1
    keep: tuple[str, ...] = ()
    rest: Rest = "fp32"
    batch_size: int = 8
    device: str = "cpu"


@dataclass
class Exported:
    """What an export wrote, and what the gate says of it."""

    path: Path
    graph: Path  # the ONNX, which engines and repositories are made of
    about: Metadata
    rows: list[Row] = field(default_factory=list)
    sensitivity: list[Sensitivity] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Nothing that could be run was over tolerance."""
        return not any(row.faults for row in self.rows)


class _Graph(NamedTuple):
    about: Metadata
    sensitivity: list[Sensitivity]


def export(
    model: Model,
    output: Path,
    wanted: Wanted,
    pictures: Sequence[Image],
    *,
    format: Format = "onnx",
    opset: int = OPSET,
    source: Path | None = None,
    int8: Int8Options | None = None,
    engine: EngineOptions | None = None,
    tolerance: Tolerance | None = None,
    progress: bool = False,
) -> Exported:
    """Write ``model`` in another form and compare it with PyTorch in float32.

    Args:
        model: Not changed.
        output: An ``.onnx`` file, an ``.engine`` file (its ONNX is kept beside it), or the folder of a Triton
            model repository.
        wanted: What the graph must be able to do.
        pictures: For the gate.
        format: ``triton`` holds the ONNX.
        opset: Of the ONNX, 18 to 20.
        source: The file the weights came from, for the description.
        int8: Needed for that precision.
        engine: Needed for that format.
        tolerance: None for what is usual for the precision.
        progress: Show a bar while an engine is built.

    Returns:
        What was written. If the gate refuses it, the file is called ``*.rejected``.

    Raises:
        ValueError: Something in the model, the options or the files does not fit.
    """
    if format not in get_args(Format):
        raise ValueError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
    if format != "triton" and output.suffix not in SUFFIXES[format]:
        raise ValueError(f"output of format={format} ends in {' or '.join(SUFFIXES[format])}, got {output}")
    model.yolo("export")
    tolerance = tolerance or TOLERANCES[wanted.precision]
    graph = output if format == "onnx" else output.with_suffix(".onnx")
    about, sensitivity = _write_graph(model, graph, wanted, opset, source, int8)
    gate = _Gate(model, about, pictures, tolerance)
    done = Exported(graph, graph, about, sensitivity=sensitivity)
    done.rows += gate.onnx(graph)
    if not done.passed:
        done.path = done.graph = reject(graph)
        return done
    if format == "engine":
        about = build_engine(graph, output, engine or EngineOptions(), progress=progress)
        done.path, done.about = output, about
        done.rows += gate.engine(output, about)
        if not done.passed:
            done.path = reject(output)
            reject(sidecar(output))
    if format == "triton":
        done.path = write_repository(graph, output, about)
    return done


def _write_graph(
    model: Model, path: Path, wanted: Wanted, opset: int, source: Path | None, int8: Int8Options | None
) -> _Graph:
    about = describe(model, wanted, source)
    quantised = wanted.precision == "int8"
    if not quantised:
        module, kept = deployed(model.yolo("export"), wanted, half=wanted.precision == "fp16")
        about = replace(about, kept=kept)
        export_onnx(module, path, about, opset)
        return _Graph(about, [])
    int8 = int8 or Int8Options()
    if not int8.pictures and not model.ranges:
        raise ValueError("precision=int8 needs pictures to calibrate on")
    if int8.rest == "fp16" and opset < 19:
        raise ValueError(f"int8 with fp16 for the rest needs opset 19 or 20, got {opset}")
    detector = folded(model.yolo("precision=int8")).to(int8.device)
    ranges = model.ranges or ranges_of(model, int8, detector)
    probes = [_floats([image], model, int8) for image in int8.pictures[: int8.probes]]
    rows = sensitivities(detector, ranges, probes) if probes else []
    if model.ranges:
        kept = dict.fromkeys(quantizable(detector).keys() - ranges.keys(), "not trained for int8")
    else:
        kept = {row.name: f"error {row.error:.3f} in int8" for row in rows if row.error > int8.max_error}
    for name in int8.keep:
        if name not in ranges:
            raise ValueError(f"keep: no layer is called {name}; there are {', '.join(ranges)}")
        kept[name] = "asked for"
    for name, why in kept.items():
        log.info("%s stays in %s: %s", name, int8.rest, why)
    module, wide = deployed(model.yolo("export"), wanted, half=int8.rest == "fp16")
    about = replace(about, kept=kept | wide)
    export_onnx(module, path, about, opset)
    graph = load(path)
    insert_pairs(graph, {name: limit for name, limit in ranges.items() if name not in about.kept})
    save(graph, path, about)
    return _Graph(about, rows)


def ranges_of(model: Model, int8: Int8Options, detector: Detector | None = None) -> dict[str, float]:
    """Measure the range of every layer's input on ``int8.pictures``.

    Args:
        model: Not changed.
        int8: Pictures and method.
        detector: That of ``model``, folded and on the device, where it is at hand.
    """
    detector = folded(model.yolo("precision=int8")).to(int8.device) if detector is None else detector
    starts = range(0, len(int8.pictures), int8.batch_size)
    chunks = (_floats(int8.pictures[start : start + int8.batch_size], model, int8) for start in starts)
    return measure(detector, chunks, int8.method, int8.percentile)


def _floats(images: Sequence[Image], model: Model, int8: Int8Options) -> Tensor:
    return prepare(images, model.preprocess).to(int8.device).float() / 255.0


class _Gate:
    """Compares what was written with PyTorch, at the usual size and, where sizes are free, at another one."""

    def __init__(
        self, model: Model, about: Metadata, pictures: Sequence[Image], tolerance: Tolerance
    ) -> None:
        self.reference = TorchRuntime(model, about.rule)
        self.tolerance = tolerance
        count = about.batch or min(UNTRACED_BATCH, max(1, len(pictures)))
        height, width = about.size or model.preprocess.size
        sizes = [(height, width)] if about.size else [(height, width), (height + about.stride, width)]
        self.batches = [batches(pictures, replace(model.preprocess, size=size), count) for size in sizes]

    def onnx(self, path: Path) -> list[Row]:
        """A row for every size."""
        try:
            runtime = OnnxRuntime(path)
        except ImportError as error:
            return [Row("ONNX Runtime", not_run=str(error))]
        return self._rows(runtime)

    def engine(self, path: Path, about: Metadata) -> list[Row]:
        """The same, or one row that says why this machine cannot run the engine."""
        try:
            runtime = TensorRTRuntime(path)
        except (ImportError, ValueError) as error:
            name = f"{about.engine['kind']} {about.engine['version']} {about.precision}"
            return [Row(name, not_run=str(error))]
        return self._rows(runtime)

    def _rows(self, runtime: Runtime) -> list[Row]:
        taken = [images for images in self.batches if runtime.takes(images[0].shape)]
        if not taken:
            return [Row(runtime.name, not_run=f"it takes {runtime.limits}")]
        return [compare(self.reference, runtime, images, self.tolerance) for images in taken]
