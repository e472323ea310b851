"""Penalties whose gradients are what Darknet writes into ``delta``; all element by element, fp32."""

import torch
import torch.nn.functional as F
from torch import Tensor


def half_square(value: Tensor, target: Tensor) -> Tensor:
    """Gradient ``value - target``."""
    return 0.5 * (value - target).square()


def chance(x: Tensor, target: Tensor, activated: bool) -> Tensor:
    """A penalty on the probability p of ``x`` whose gradient with respect to ``x`` is ``p - target``.

    Cross-entropy where ``x`` is a logit. Where the convolution below is logistic already (``new_coords=1``),
    ``x`` is p itself and the penalty a square.
    """
    return (
        half_square(x, target)
        if activated
        else F.binary_cross_entropy_with_logits(x, target, reduction="none")
    )


def one_hot(label: Tensor, num_classes: int) -> Tensor:
    """``[T]`` to ``[T, C]`` float32; PyTorch's own reads the labels on the host first."""
    return (label[:, None] == torch.arange(num_classes, device=label.device)).float()


def focal_factor(probability: Tensor) -> Tensor:
    """Darknet's focal weight of a class gradient for the true class's ``probability`` (alpha 0.5, gamma 2).

    ``delta_yolo_class`` multiplies the whole vector onehot - p by it; it is a constant for the gradient.
    """
    q = probability.detach() + 1e-15
    return 0.5 * (1 - q) * (1 - q - 2 * q * torch.log(q))


def clipped(raw: Tensor, penalty: Tensor, limit: float) -> Tensor:
    """``penalty`` with its gradient on ``raw`` cleaned of NaN and clipped to ``limit`` per element.

    Done on the gradient of each row's own penalty, before anything scales it (loss scaling, normalisation),
    as Darknet's ``max_delta`` does.

    Args:
        raw: ``[P, 4]``, not a leaf: the outputs that ``penalty`` was computed from.
        penalty: ``[P]``.
        limit: Largest absolute value.
    """
    if not raw.requires_grad:
        return penalty
    (gradient,) = torch.autograd.grad(penalty.sum(), raw, retain_graph=True)
    gradient = torch.nan_to_num(gradient, 0.0, 0.0, 0.0).clamp(-limit, limit)
    return penalty.detach() + ((raw - raw.detach()) * gradient).sum(dim=-1)
