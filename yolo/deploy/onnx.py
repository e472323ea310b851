"""A detector as one ONNX file that ONNX Runtime and every TensorRT take."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from yolo.deploy.extras import require
from yolo.deploy.graph import Deployed
from yolo.deploy.metadata import EVERY, INSIDE, KEY, SUPPRESSED, Metadata, from_properties

log = logging.getLogger(__name__)

OPSET = 20
OPSETS = (18, 19, 20)  # 18 has Mish and bitwise types; TensorRT 11 takes up to 25
LARGEST_FILE = (1 << 31) - 1  # of one protobuf message
MAX_CELLS = 256  # the largest side of a dynamic input, in strides
MAX_BATCH = 1024

MEANING = {
    "uint8": "images[batch, 3, height, width] uint8, RGB, 0 to 255",
    "float32": "images[batch, 3, height, width] float32, RGB, 0 to 1",
    "boxes": "x1, y1, x2, y2 in pixels of images",
    "scores": "objectness times class probability",
    "labels": "index into the class names",
    "count": "rows in use; the others are zero",
}


def export_onnx(module: Deployed, path: Path, about: Metadata, opset: int = OPSET) -> None:
    """Write ``images -> boxes, scores`` or, with suppression, ``boxes, scores, labels, count``.

    ``boxes`` is ``[batch, predictions, 4]``, ``scores`` ``[batch, predictions, classes]``; with suppression
    ``boxes`` is ``[batch, K, 4]``, ``scores`` and ``labels`` ``[batch, K]`` and ``count`` ``[batch]``.

    Args:
        module: What to write, on the CPU.
        path: Of the file; written beside it first, then renamed.
        about: Its ``batch`` and ``size`` say which axes are fixed; all of it goes into the file.
        opset: 18 to 20.

    Raises:
        ValueError: The opset is another, or the file would be beyond 2 GiB.
    """
    require("onnxscript")
    if opset not in OPSETS:
        raise ValueError(f"opset must be one of {OPSETS}, got {opset}")
    program = _trace(module, about)
    with _quiet():
        exported = torch.onnx.export(
            program,
            input_names=["images"],
            output_names=list(_outputs(module)),
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
    assert exported is not None, "the exporter gives a program when it writes no file itself"
    model = exported.model_proto
    _tidy(model, module, about)
    save(model, path, about)


def _trace(module: Deployed, about: Metadata) -> torch.export.ExportedProgram:
    """Trace with a batch of 2, since 1 would count as a constant, and with sides that nothing else has."""
    stride = about.stride
    batch = 2 if about.batch is None else about.batch
    height, width = about.size if about.size is not None else (3 * stride, 5 * stride)
    dtype = torch.uint8 if module.input_type == "uint8" else torch.float32
    axes: dict[int, Any] = {}
    if about.batch is None:
        axes[0] = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    if about.size is None:
        axes[2] = stride * torch.export.Dim("rows", min=1, max=MAX_CELLS)
        axes[3] = stride * torch.export.Dim("columns", min=1, max=MAX_CELLS)
    example = torch.zeros((batch, 3, height, width), dtype=dtype)
    with torch.no_grad():
        return torch.export.export(module, (example,), dynamic_shapes=(axes,) if axes else None, strict=False)


def _outputs(module: Deployed) -> Sequence[str]:
    return EVERY if module.rule is None else (*SUPPRESSED, *INSIDE)


class _quiet:  # noqa: N801
    """The exporter reports its progress as if it were ours to pass on."""

    def __enter__(self) -> None:
        self.levels = {
            name: logging.getLogger(name).level for name in ("torch.onnx", "onnx_ir", "onnxscript")
        }
        for name in self.levels:
            logging.getLogger(name).setLevel(logging.ERROR)

    def __exit__(self, *error: object) -> None:
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)


def _tidy(model: Any, module: Deployed, about: Metadata) -> None:
    """Name the axes, say what inputs and outputs mean, drop the exporter's notes (they hold paths)."""
    graph = model.graph
    del graph.value_info[:]  # names of the exporter's own symbols
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    for function in model.functions:
        del function.metadata_props[:]
    model.producer_name, model.producer_version = "yolo-lightning", ""
    graph.name = "detector"
    shown = [output for output in graph.output if output.name not in INSIDE]
    del graph.output[:]
    graph.output.extend(shown)
    images = graph.input[0]
    images.doc_string = MEANING[module.input_type]
    _name_axes(images, ("batch", "3", "height", "width"))
    for output in graph.output:
        output.doc_string = MEANING[output.name]
        _name_axes(output, ("batch", "predictions", "classes"))


def _name_axes(value: Any, names: Sequence[str]) -> None:
    for axis, name in zip(value.type.tensor_type.shape.dim, names, strict=False):
        if axis.HasField("dim_param"):
            axis.dim_param = name


def save(model: Any, path: Path, about: Metadata) -> None:
    """Write an ONNX model with its description, whole or not at all.

    Raises:
        ValueError: It is beyond what one file can hold.
    """
    onnx = require("onnx")
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {KEY: about.to_json(), "classes": "\n".join(about.classes)})
    if model.ByteSize() > LARGEST_FILE:
        raise ValueError(
            f"{path}: the graph takes {model.ByteSize()} bytes, one ONNX file holds {LARGEST_FILE}"
        )
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(model.SerializeToString())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_metadata(path: Path) -> Metadata:
    """The description inside an ONNX file.

    Raises:
        ValueError: The file is no ONNX model, or not one of this project.
    """
    return from_properties({one.key: one.value for one in load(path).metadata_props}, path)


def load(path: Path) -> Any:
    """Read an ONNX model.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is something else.
    """
    onnx = require("onnx")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    decode_error = require("google.protobuf.message").DecodeError
    try:
        model = onnx.load(path)
    except decode_error as error:
        raise ValueError(f"{path}: not an ONNX model ({error})") from error
    if not model.graph.node:
        raise ValueError(f"{path}: not an ONNX model (no graph in it)")
    return model
