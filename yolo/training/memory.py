"""Whether an error says that the GPU is full: PyTorch, its libraries and our operators have words of their own."""

import re

import torch

WORDS = (
    *("CUDA out of memory", "CUDA error: out of memory"),  # the first as RuntimeError: from our operators
    *("CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED"),
)
# All that an operator built on LibTorch's stable ABI can say before torch 2.13; the reason goes to stderr only. If it
# was an earlier kernel, whose error the allocation merely met, the GPU is lost, and whatever is tried next says so.
ALLOCATION = re.compile(
    r'(?:aoti_)?torch_call_dispatcher\(\s*"(aten::(?:empty|empty_like|new_empty|new_zeros|clone|contiguous))"'
)


def out_of_memory(error: BaseException) -> str | None:
    """What ``error`` says of a full GPU, in one line; None if it is about something else."""
    if not isinstance(error, RuntimeError):
        return None
    said = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(word in said for word in WORDS):
        return said.partition("\n")[0]
    allocation = ALLOCATION.match(said)
    if allocation:
        return f"{allocation[1]} failed in an operator of this package; PyTorch's reason is on stderr"
    return None
