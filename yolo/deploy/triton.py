"""A model repository for NVIDIA Triton Inference Server."""

import shutil
from pathlib import Path

from yolo.deploy.metadata import Metadata

DYNAMIC_BATCH = 32


def write_repository(onnx: Path, folder: Path, about: Metadata, name: str = "detector") -> Path:
    """Lay ``onnx`` out as ``folder/name/1/model.onnx`` with ``config.pbtxt`` and the labels beside it.

    Args:
        onnx: From :func:`yolo.deploy.onnx.export_onnx`; copied.
        folder: What ``tritonserver --model-repository`` gets.
        about: Its description.
        name: Of the model in the server.

    Returns:
        The folder of the model.
    """
    place = folder / name
    (place / "1").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(onnx, place / "1" / "model.onnx")
    (place / "labels.txt").write_text("".join(f"{one}\n" for one in about.classes), "utf-8")
    (place / "description.json").write_text(about.to_json(), "utf-8")
    (place / "config.pbtxt").write_text(config(about, name), "utf-8")
    return place


def config(about: Metadata, name: str) -> str:
    """The text of ``config.pbtxt``; dims leave out the batch where Triton may choose it."""
    height, width = about.size or (-1, -1)
    free = about.batch is None
    first = () if free else (about.batch,)
    classes, rows = len(about.classes), -1
    image_type = "TYPE_UINT8" if about.input_type == "uint8" else "TYPE_FP32"
    outputs: list[tuple[str, str, tuple[int | None, ...]]]
    if about.rule is None:
        outputs = [
            ("boxes", "TYPE_FP32", (*first, rows, 4)),
            ("scores", "TYPE_FP32", (*first, rows, classes)),
        ]
    else:
        kept = about.rule.max_detections
        # the count is one number a picture: a shape of its own [1] that Triton takes away again
        outputs = [
            ("boxes", "TYPE_FP32", (*first, kept, 4)),
            ("scores", "TYPE_FP32", (*first, kept)),
            ("labels", "TYPE_INT64", (*first, kept)),
            ("count", "TYPE_INT64", first or (1,)),
        ]
    lines = [f'name: "{name}"', 'backend: "onnxruntime"', f"max_batch_size: {DYNAMIC_BATCH if free else 0}"]
    lines += _tensor("input", "images", image_type, (*first, 3, height, width))
    for output, kind, shape in outputs:
        lines += _tensor("output", output, kind, shape, reshape=output == "count" and free)
    if free:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def _tensor(
    field: str, name: str, kind: str, shape: tuple[int | None, ...], reshape: bool = False
) -> list[str]:
    extra = ", reshape: { shape: [ ] }" if reshape else ""
    dims = ", ".join(map(str, shape))
    return [f'{field} [ {{ name: "{name}", data_type: {kind}, dims: [ {dims} ]{extra} }} ]']
