"""The operator library ``yolo::`` and its compiled half: absent is fine, broken is loud.

Every operator has a schema and a PyTorch reference, registered for any device; the compiled CPU and CUDA
kernels take precedence where they are built. Autocast needs no rule of its own: the operators take half
precision as it comes and compute in float32, so casting their inputs first would only add a pass.
"""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

library = torch.library.Library("yolo", "DEF")


def load_extension() -> bool:
    """Load the compiled kernels if this installation has them.

    Raises:
        ImportError: They are here but do not load, say a CUDA build under a CPU-only torch.
    """
    try:
        importlib.import_module("yolo._C")
    except ModuleNotFoundError as error:
        if error.name != "yolo._C":
            raise
        return False  # every operator keeps its PyTorch reference
    return True


def register(name: str, schema: str, reference: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define ``yolo::name`` with its reference for every device and its shapes."""
    library.define(f"{name}{schema}")
    torch.library.register_kernel(f"yolo::{name}", None, reference, lib=library)
    torch.library.register_fake(f"yolo::{name}", fake, lib=library)


def register_without_gradient(name: str, instead: str) -> None:
    """Say that no result of ``yolo::name`` can be differentiated, so that ``backward`` refuses them."""

    def mark(ctx: Any, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*((output,) if isinstance(output, Tensor) else output))

    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        raise RuntimeError(f"yolo::{name} has no gradient; train through {instead}")

    torch.library.register_autograd(f"yolo::{name}", backward, setup_context=mark, lib=library)


def below_autograd(*inputs: Tensor) -> AbstractContextManager[None]:
    """Calls in here go to the kernels at once, unless one of ``inputs`` wants a gradient or a compiler looks on.

    Otherwise every call passes through autograd's Python rule, which takes longer than all else about it.
    """
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)):
        return nullcontext()
    return torch._C._AutoDispatchBelowAutograd()


def computed_type(x: Tensor) -> torch.dtype:
    """What a convolution reads ``x`` as: its type, or autocast's."""
    kind = x.device.type
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if autocast else x.dtype


def in_vectors(x: Tensor) -> bool:
    """Whether the CUDA kernels that read pixels 16 bytes at a time take ``x``.

    They take channels-last CUDA tensors of fp16, bf16 or fp32 whose pixels are multiples of 16 bytes.
    """
    return (
        x.is_cuda
        and x.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and x.shape[1] * x.element_size() % 16 == 0
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def has_kernel(name: str, device: str) -> bool:
    """Whether ``yolo::name`` has a compiled kernel for ``device``, "cpu" or "cuda"."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"yolo::{name}", device.upper())


load_extension()
