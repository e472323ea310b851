"""Learning rates and parameter groups."""

import math
from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Trainable parameters in two groups: with decay, and without (norms and biases, as Darknet does).

    Darknet: ``update_convolutional_layer`` decays weights, not biases and scales.
    """
    trainable = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]


def settling_from(max_epochs: int | None, settle: int) -> float:
    """The first of the last epochs, in which pictures are whole and of one size, as they will be in use.

    Args:
        max_epochs: Of the run; None or less than one: it has no end.
        settle: How many; at most a fifth of the run.
    """
    if max_epochs is None or max_epochs < 1:
        return math.inf
    return max_epochs - min(settle, max_epochs // 5)


def _warmup(step: int, steps: int, power: float) -> float:
    return 1.0 if step >= steps else ((step + 1) / steps) ** power


def cosine(
    optimizer: Optimizer, total_steps: int, warmup_steps: int = 100, final: float = 0.01, power: float = 1.0
) -> LambdaLR:
    """Warm up, then half a cosine down to ``final`` times the rate; stepped after every optimiser step.

    Args:
        total_steps: Optimiser steps of the whole run.
        warmup_steps: At most a fifth of the run is used.
        power: Shape of the warm-up; Darknet's ``burn_in`` uses 4.
    """
    warmup_steps = min(warmup_steps, max(total_steps // 5, 1))

    def rate(step: int) -> float:
        progress = min(max(step - warmup_steps, 0) / max(total_steps - warmup_steps, 1), 1.0)
        return _warmup(step, warmup_steps, power) * (
            final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))
        )

    return LambdaLR(optimizer, rate)


def steps(
    optimizer: Optimizer,
    total_steps: int,
    warmup_steps: int = 100,
    at: Sequence[float] = (0.8, 0.9),
    scale: float = 0.1,
    power: float = 4.0,
) -> LambdaLR:
    """Darknet's ``policy=steps``: warm up, then multiply by ``scale`` at the fractions ``at`` of the run."""
    warmup_steps = min(warmup_steps, max(total_steps // 5, 1))

    def rate(step: int) -> float:
        return _warmup(step, warmup_steps, power) * scale ** sum(step >= total_steps * part for part in at)

    return LambdaLR(optimizer, rate)


def constant(optimizer: Optimizer, total_steps: int, warmup_steps: int = 0, power: float = 1.0) -> LambdaLR:
    """Warm up and stay."""
    return LambdaLR(optimizer, lambda step: _warmup(step, warmup_steps, power))
