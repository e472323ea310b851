"""Where in an epoch a checkpoint stands, told so that another split of the same batches can go on from it."""

from typing import Any

import pytorch_lightning as pl


def describe_position(trainer: pl.Trainer) -> dict[str, int]:
    """How a step is made up: ``batch`` pictures a process, ``world`` processes, ``accumulate`` batches a step."""
    return {
        "batch": trainer.datamodule.batch_size,  # type: ignore[attr-defined]
        "world": trainer.world_size,
        "accumulate": trainer.accumulate_grad_batches,
    }


def adopt_position(checkpoint: dict[str, Any], trainer: pl.Trainer) -> None:
    """Count the batches that ``checkpoint`` has done of its epoch in batches of this run.

    Raises:
        ValueError: It stands in the middle of an epoch, and a step of this run has another number of pictures.
    """
    loops = checkpoint["loops"]["fit_loop"]
    epoch, batches = loops["epoch_progress"]["current"], loops["epoch_loop.batch_progress"]["current"]
    theirs, ours = checkpoint["position"], describe_position(trainer)
    if epoch["ready"] == epoch["processed"] or theirs == ours:
        return
    step = [one["batch"] * one["world"] * one["accumulate"] for one in (theirs, ours)]
    if step[0] != step[1]:
        raise ValueError(
            f"the checkpoint stands in the middle of an epoch, at steps of {step[0]} pictures "
            f"(data.batch_size={theirs['batch']}, {theirs['world']} processes, {theirs['accumulate']} batches a step); "
            f"this run has steps of {step[1]}: resume with the same"
        )
    unfinished = batches["ready"] - batches["completed"]  # 1 where it was written at the end of a batch
    done = batches["ready"] * theirs["batch"] * theirs["world"] // (ours["batch"] * ours["world"])
    batches.update(ready=done, started=done, processed=done, completed=done - unfinished)
