"""``python -m yolo.ops``: which operators are compiled for which device."""

import sys

import torch

from yolo.ops.library import has_kernel

OPERATORS = (
    "decode_boxes",
    "detect",
    "nms",
    "batch_norm_act",
    "stem_norm_act",
    "max_pool_2x2",
    "vary_colour",
    "jpeg_scan",
)


def summary() -> str:
    """One line an operator, and what this PyTorch can run."""
    cuda = torch.version.cuda or "none"
    lines = [f"torch {torch.__version__}, CUDA {cuda}, device {'yes' if torch.cuda.is_available() else 'no'}"]
    for name in OPERATORS:
        built = [device for device in ("cpu", "cuda") if has_kernel(name, device)]
        lines.append(
            f"yolo::{name}: {' and '.join(built) + ' kernels' if built else 'PyTorch reference only'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(summary() + "\n")
