"""Keeps words of libraries that no user can act on off the screen."""

import logging
import warnings

MESSAGES = (
    r".*isinstance\(treespec, LeafSpec\).*",  # Lightning against a newer torch
    r"You have overridden `transfer_batch_to_device` in `LightningModule`",  # meant so
    r"Experiment logs directory .* exists and is not empty",  # Hydra made the run folder
    r"The number of training batches .* is smaller than the logging interval",  # epochs are logged anyway
    r"`broadcast_buffers` is deprecated",  # yolo.training.distributed needs it as it is
    r"It is recommended to use `self.log\('val/",  # scores are those of all ranks already
    r"Your `IterableDataset` has `__len__` defined",  # a batch that is repeated, without workers
    r"The AccumulateGrad node's stream does not match",  # Lightning builds DDP on a stream of its own: nothing lost
    r"Grad strides do not match bucket view strides",  # of 1x1 convolutions, whose order of axes says nothing
    r".*does not have many workers which may be a bottleneck",  # at most a worker a core, by ourselves
)


def quiet() -> None:
    """Silence them in this process."""
    for message in MESSAGES:
        warnings.filterwarnings("ignore", message)
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(_no_advertisement)


def _no_advertisement(record: logging.LogRecord) -> bool:
    return not any(part in str(record.msg) for part in ("Tip:", "TPU available"))
