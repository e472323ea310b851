"""TensorRT engines from an exported ONNX file: ``tensorrt`` 10 and 11, and ``tensorrt_rtx``.

One builder serves all three: precision lives in the ONNX (networks are strongly typed), so no builder flag,
calibrator or layer setting of precision is used; TensorRT 11 and RTX no longer have them.
"""

import fcntl
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from rich.progress import Progress, TaskID

from yolo.deploy.extras import require
from yolo.deploy.metadata import Metadata, checksum, from_properties, sidecar
from yolo.deploy.onnx import load

log = logging.getLogger(__name__)

Kind = Literal["tensorrt", "tensorrt_rtx"]
Shape = tuple[int, int, int]  # batch, height, width
MIB = 1 << 20


class Profile(NamedTuple):
    """Inputs that an engine takes, and those it is made fastest for: batch, height, width."""

    smallest: Shape
    usual: Shape
    largest: Shape


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is built.

    Args:
        kind: ``tensorrt`` for this machine's GPU (any, also H100 and H200); ``tensorrt_rtx`` for GeForce and
            RTX GPUs, which it can build for on a machine without any.
        profiles: One engine serves them all; the runtime picks by shape.
        workspace_mib: Scratch memory on the GPU; None for TensorRT's own limit.
        optimization_level: 0 to 5, None for TensorRT's own; RTX ignores it.
        targets: RTX: compute capabilities such as 89 and 120; none for every one from Ampere on.
        timing_cache: Folder of measured kernels, so that a second build is fast; RTX has none.
    """

    kind: Kind = "tensorrt"
    profiles: tuple[Profile, ...] = ()
    workspace_mib: int | None = None
    optimization_level: int | None = None
    targets: tuple[int, ...] = ()
    timing_cache: Path | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"engine kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.targets and self.kind != "tensorrt_rtx":
            raise ValueError(
                f"targets={list(self.targets)} needs kind=tensorrt_rtx: tensorrt builds for this GPU"
            )
        for profile in self.profiles:
            for axis, name in enumerate(("batch", "height", "width")):
                low, usual, high = (shape[axis] for shape in profile)
                if not 1 <= low <= usual <= high:
                    raise ValueError(
                        f"the {name} of a profile must rise from smallest to largest, "
                        f"got {low}, {usual}, {high}"
                    )


def version_of(kind: Kind) -> str:
    """The version of TensorRT that is installed.

    Raises:
        ImportError: None is.
    """
    return str(require(kind).__version__)


def default_profile(about: Metadata) -> Profile:
    """From what a graph takes: up to 32 pictures, and half to twice the usual size, where those are free."""
    low, usual, high = (1, 8, 32) if about.batch is None else (about.batch,) * 3
    if about.size is not None:
        return Profile((low, *about.size), (usual, *about.size), (high, *about.size))
    height, width = about.preprocess.size

    def multiple(side: float) -> int:
        return max(about.stride, int(side // about.stride) * about.stride)

    return Profile(
        (low, multiple(height / 2), multiple(width / 2)),
        (usual, multiple(height), multiple(width)),
        (high, multiple(2 * height), multiple(2 * width)),
    )


def check_profile(about: Metadata, profile: Profile, where: str) -> None:
    """Raise ValueError if the graph cannot take what a profile promises."""
    for batch, height, width in profile:
        if about.batch is not None and batch != about.batch:
            raise ValueError(f"{where} takes batches of {about.batch}, the profile asks for {batch}")
        if about.size is not None and (height, width) != about.size:
            raise ValueError(
                f"{where} takes {about.size[0]}x{about.size[1]} pixels, the profile asks for {height}x{width}"
            )
        if height % about.stride or width % about.stride:
            raise ValueError(
                f"{where} takes sides that are multiples of {about.stride}, "
                f"the profile asks for {height}x{width}"
            )


def check_topk(model: Any, shape: tuple[int, ...], where: str) -> None:
    """Refuse a TopK whose K is beyond what the smallest profile has: TensorRT builds it, and it fails later.

    Args:
        model: ONNX.
        shape: Smallest ``images``.
        where: The file, for the message.

    Raises:
        ValueError: With K and how many there are.
    """
    onnx = require("onnx")
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for axis, side in zip(fixed.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        axis.dim_value = side
    fixed = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
    known = {
        one.name: one.type.tensor_type.shape.dim for one in (*fixed.graph.value_info, *fixed.graph.input)
    }
    constants = {one.name: one for one in fixed.graph.initializer}
    for node in fixed.graph.node:
        if node.op_type != "TopK" or node.input[1] not in constants or node.input[0] not in known:
            continue
        wanted = int(onnx.numpy_helper.to_array(constants[node.input[1]]).reshape(-1)[0])
        axis = next((one.i for one in node.attribute if one.name == "axis"), -1)
        have = known[node.input[0]][axis]
        if have.HasField("dim_value") and have.dim_value < wanted:
            raise ValueError(
                f"{where}: keeps the best {wanted} of the {have.dim_value} predictions that the smallest "
                f"profile, {'x'.join(map(str, shape))}, has; lower candidates to {have.dim_value} or raise "
                "the profile"
            )


def build_engine(onnx_path: Path, path: Path, options: EngineOptions, *, progress: bool = False) -> Metadata:
    """Compile an exported ONNX file to an engine, with its description and a report of its layers beside it.

    The engine is a plain plan that ``trtexec --loadEngine`` takes.

    Args:
        onnx_path: From :func:`yolo.deploy.onnx.export_onnx`.
        path: Of the engine.
        options: How it is built.
        progress: Show a bar.

    Returns:
        What is written beside the engine.

    Raises:
        ImportError: That TensorRT is not installed.
        ValueError: TensorRT cannot read or build the graph; the message holds its complaints.
    """
    trt = require(options.kind)
    model = load(onnx_path)
    about = from_properties({one.key: one.value for one in model.metadata_props}, onnx_path)
    profiles = options.profiles or (default_profile(about),)
    for profile in profiles:
        check_profile(about, profile, onnx_path.name)
        batch, height, width = profile.smallest
        check_topk(model, (batch, 3, height, width), onnx_path.name)
    del model

    logger = listener(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(_network_flags(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx_path)):
        said = [
            f"{parser.get_error(i).node_name()}: {parser.get_error(i).desc()}"
            for i in range(parser.num_errors)
        ]
        raise ValueError(f"TensorRT cannot read {onnx_path}: {'; '.join(said)}")
    config = _configure(trt, builder, options, profiles)
    cache = None if options.timing_cache is None or options.kind == "tensorrt_rtx" else options.timing_cache
    with _timing_cache(config, cache, onnx_path, options), _bar(trt, config, progress):
        plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ValueError(
            f"TensorRT cannot build {onnx_path}: {'; '.join(logger.errors) or 'it does not say why'}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(memoryview(plan))
    about = about.with_engine(_about_engine(options, profiles, path, onnx_path))
    sidecar(path).write_text(about.to_json(), "utf-8")
    path.with_name(f"{path.name}.layers.json").write_text(json.dumps(layers_of(network), indent=0), "utf-8")
    return about


def listener(trt: Any) -> Any:
    """A logger of TensorRT that remembers the errors and passes the rest on at debug level."""

    class Listener(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(" ".join(message.split()))
            log.debug("%s: %s", severity, message)

    return Listener()


def _network_flags(trt: Any) -> int:
    """Strongly typed: its bit is 1 in TensorRT 10 and 0 afterwards."""
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def _configure(trt: Any, builder: Any, options: EngineOptions, profiles: Sequence[Profile]) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # layer names in the report
    if options.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib * MIB)
    if options.optimization_level is not None and options.kind == "tensorrt":
        config.builder_optimization_level = options.optimization_level
    if options.targets:
        known = trt.ComputeCapability.__members__
        wrong = [target for target in options.targets if f"SM{target}" not in known]
        if wrong:
            names = ", ".join(name[2:] for name in known if name.startswith("SM"))
            raise ValueError(f"tensorrt_rtx has no target {wrong[0]}; it has {names}")
        config.num_compute_capabilities = len(options.targets)
        for index, target in enumerate(options.targets):
            config.set_compute_capability(known[f"SM{target}"], index)
    for profile in profiles:
        one = builder.create_optimization_profile()
        one.set_shape("images", *((batch, 3, height, width) for batch, height, width in profile))
        if config.add_optimization_profile(one) < 0:
            raise ValueError(f"TensorRT refuses the profile {profile}")
    return config


def _about_engine(
    options: EngineOptions, profiles: Sequence[Profile], path: Path, onnx_path: Path
) -> dict[str, Any]:
    device: dict[str, Any] = {}
    if options.kind == "tensorrt":
        device = {
            "gpu": torch.cuda.get_device_name(),
            "capability": list(torch.cuda.get_device_capability()),
        }
    return {
        "kind": options.kind,
        "version": version_of(options.kind),
        "profiles": [list(map(list, profile)) for profile in profiles],
        "targets": list(options.targets),
        "bytes": path.stat().st_size,
        "sha256": checksum(path),
        "onnx_sha256": checksum(onnx_path),
        **device,
    }


def layers_of(network: Any) -> list[dict[str, Any]]:
    """Name, kind, type and shape of every layer of a parsed network, before TensorRT fuses them."""
    rows = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
        rows.append(
            {
                "name": layer.name,
                "kind": layer.type.name.lower(),
                "types": [one.dtype.name.lower() for one in outputs],
                "shapes": [_shape(one) for one in outputs],
            }
        )
    return rows


def _shape(tensor: Any) -> list[int] | None:
    try:
        return list(tensor.shape)
    except ValueError:  # its rank is known only when it runs
        return None


@contextmanager
def _timing_cache(
    config: Any, folder: Path | None, onnx_path: Path, options: EngineOptions
) -> Iterator[None]:
    """Give the builder what earlier builds of the same graph measured; one process at a time writes."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{cache_key(onnx_path, options)}.timing"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache = config.create_timing_cache(file.read_bytes() if file.is_file() else b"")
        config.set_timing_cache(cache, ignore_mismatch=False)
        yield
        part = file.with_suffix(".part")
        part.write_bytes(memoryview(config.get_timing_cache().serialize()))
        part.replace(file)


def cache_key(onnx_path: Path, options: EngineOptions) -> str:
    """A name for all that decides what is measured. The plan's own bytes differ from build to build."""
    values = {
        **asdict(options),
        "timing_cache": None,
        "version": version_of(options.kind),
        "onnx": checksum(onnx_path),
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


@contextmanager
def _bar(trt: Any, config: Any, show: bool) -> Iterator[None]:
    if not show:
        yield
        return
    with Progress(transient=True) as bar:
        monitor = _monitor(trt, bar)
        config.progress_monitor = monitor
        yield


def _monitor(trt: Any, bar: Progress) -> Any:
    class Monitor(trt.IProgressMonitor):
        """TensorRT's phases, nested, as bars."""

        def __init__(self) -> None:
            super().__init__()
            self.tasks: dict[str, TaskID] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.tasks[phase_name] = bar.add_task(phase_name, total=num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            bar.update(self.tasks[phase_name], completed=step + 1)
            return True  # False would cancel the build

        def phase_finish(self, phase_name: str) -> None:
            bar.remove_task(self.tasks.pop(phase_name))

    return Monitor()
