"""An int8 graph: symmetric QuantizeLinear/DequantizeLinear pairs around the layers that bear it.

Weights are stored as int8 with one scale per output channel; biases stay in floating point. TensorRT refuses
asymmetric zero points, so there are none.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yolo.deploy.extras import require
from yolo.models.quantize import LEVELS

PREFIX = "network."  # of the names of weights in an exported graph
KINDS = ("Conv", "Gemm")


def insert_pairs(model: Any, ranges: Mapping[str, float]) -> list[str]:
    """Quantise layers of an exported graph in place.

    Args:
        model: ONNX, from :func:`yolo.deploy.onnx.export_onnx`.
        ranges: The absolute input value that becomes 127, by layer name; other layers stay as they are.

    Returns:
        The layers that were quantised.

    Raises:
        ValueError: A layer is not in the graph.
    """
    onnx = require("onnx")
    graph = model.graph
    weights = {one.name: one for one in graph.initializer}
    pairs: dict[tuple[str, float], str] = {}  # tensor and range to what all layers that read it so share
    nodes, done = [], []
    for node in graph.node:
        layer = _layer(node)
        if layer in ranges:
            weight = onnx.numpy_helper.to_array(weights[node.input[1]])
            read = (node.input[0], ranges[layer])
            if read not in pairs:
                pair = _activation_pair(onnx, graph, *read, f"{PREFIX}{layer}.input", weight.dtype)
                pairs[read] = pair[-1].output[0]
                nodes += pair
            nodes.append(_weight_pair(onnx, graph, node.input[1], weight))
            node.input[0] = pairs[read]
            node.input[1] = f"{node.input[1]}_dequantized"
            done.append(layer)
        nodes.append(node)
    missing = sorted(set(ranges) - set(done))
    if missing:
        raise ValueError(f"the graph has no layer {', '.join(missing)} that could be quantised")
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in graph.node for name in node.input}
    left = [one for one in graph.initializer if one.name in used]
    del graph.initializer[:]
    graph.initializer.extend(left)
    return done


def _layer(node: Any) -> str:
    """The layer that a node computes, or an empty text."""
    if node.op_type not in KINDS or len(node.input) < 2:
        return ""
    name: str = node.input[1]
    if not (name.startswith(PREFIX) and name.endswith(".weight")):
        return ""
    return name.removeprefix(PREFIX).removesuffix(".weight")


def _activation_pair(
    onnx: Any, graph: Any, source: str, limit: float, name: str, dtype: np.dtype[Any]
) -> list[Any]:
    names = _constants(onnx, graph, name, np.array(limit / LEVELS, dtype), np.array(0, np.int8))
    quantized, dequantized = f"{name}_quantized", f"{name}_dequantized"
    make = onnx.helper.make_node
    return [
        make("QuantizeLinear", [source, *names], [quantized], f"{name}_quantize"),
        make("DequantizeLinear", [quantized, *names], [dequantized], f"{name}_dequantize"),
    ]


def _weight_pair(onnx: Any, graph: Any, name: str, weight: NDArray[Any]) -> Any:
    flat = np.abs(weight.astype(np.float32)).reshape(len(weight), -1).max(axis=1)
    scale = (np.maximum(flat, 1e-12) / LEVELS).astype(weight.dtype)
    scale = np.maximum(scale, np.finfo(weight.dtype).tiny)
    steps = scale.astype(np.float32).reshape(-1, *(1,) * (weight.ndim - 1))
    values = np.rint(weight.astype(np.float32) / steps).clip(-LEVELS, LEVELS).astype(np.int8)
    names = _constants(onnx, graph, name, scale, np.zeros(len(scale), np.int8))
    graph.initializer.append(onnx.numpy_helper.from_array(values, f"{name}_quantized"))
    return onnx.helper.make_node(
        "DequantizeLinear",
        [f"{name}_quantized", *names],
        [f"{name}_dequantized"],
        f"{name}_dequantize",
        axis=0,
    )


def _constants(onnx: Any, graph: Any, name: str, scale: NDArray[Any], zero: NDArray[Any]) -> list[str]:
    names = [f"{name}_scale", f"{name}_zero"]
    for one, values in zip(names, (scale, zero), strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(values, one))
    return names
