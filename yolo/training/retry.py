"""A second try with smaller batches for a run that does not fit the GPU."""

import gc
import logging
from collections.abc import Callable
from pathlib import Path

import torch

from yolo.training.batch_size import StepSize
from yolo.training.memory import out_of_memory

log = logging.getLogger(__name__)


def fit_with_retry(
    fit: Callable[[Path | None], None], step: StepSize, checkpoint: Path | None, last: Path
) -> None:
    """Run ``fit(checkpoint)``; if the GPU is full, once more with every batch of ``step`` in two parts.

    The second run builds everything anew and goes on from ``last`` if the first one has written it, else from where
    that one began: the step that failed has left its traces in running statistics and gradients.

    Args:
        fit: Builds and trains from a checkpoint or, with None, from the start.
        step: Is told to split; ``fit`` must use it.
        checkpoint: Where the first run begins.
        last: The ``last.ckpt`` of the run.

    Raises:
        ValueError: The GPU is full and there is no second try: several processes would wait for the one that failed.
    """
    try:
        fit(checkpoint)
    except RuntimeError as error:
        said = out_of_memory(error)
        if said is None:
            raise
        if step.world > 1:
            raise ValueError(
                f"out of GPU memory with {step.batch_size} pictures a batch ({said}): give a smaller data.batch_size, "
                f"with nominal_batch for the same steps, and checkpoint={last} if it was written"
            ) from error
    else:
        return
    # out of the except clause: the error holds the frames of the run, and they its tensors
    gc.collect()
    torch.cuda.empty_cache()
    begin = last if last.is_file() else checkpoint
    smaller = step.split()
    log.warning(
        "out of GPU memory (%s): once more, from %s, with %d pictures a batch and the gradients of %d times as many "
        "batches a step",
        said, begin or "the start", smaller, step.parts,
    )  # fmt: skip
    fit(begin)
