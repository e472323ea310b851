"""What a recorded step computes with in place of a network's parameters, and where it leaves their gradients."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

SPACING = 64  # elements between starts of gradients: fused optimisers read several at once


class Leaves:
    """Tensors of their own in place of the parameters that are trained.

    A graph of the parameters that somebody still holds belongs to the stream that it was made on, which would then wait
    for the one that records. And autocast turns each weight, and later its gradient, by a kernel of its own: at a
    small batch a sixth of the step. Here all weights are turned at once, and their gradients on the way to their place.

    Args:
        network: Parameters are float32.
        dtype: What autocast turns the inputs of convolutions and linear layers into.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.parameters = list(trained.values())
        turned = {
            id(p) for m in network.modules() if type(m) in (nn.Conv2d, nn.Linear) for p in m.parameters()
        }
        self.tensors = {
            name: p.detach().to(dtype if id(p) in turned else p.dtype).requires_grad_()
            for name, p in trained.items()
        }
        ends = list(accumulate(-(-p.numel() // SPACING) * SPACING for p in self.parameters))
        self._starts = [0, *ends[:-1]]
        self._flat = self.parameters[0].new_empty(ends[-1])

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the parameters; those of their own type are the same memory."""
        pairs = list(zip(self.tensors.values(), self.parameters, strict=True))
        stale = [index for index, (leaf, p) in enumerate(pairs) if leaf.dtype != p.dtype]
        if stale:
            torch._foreach_copy_([pairs[i][0] for i in stale], [pairs[i][1] for i in stale])

    @torch.no_grad()
    def collect(self, found: Sequence[Tensor]) -> None:
        """Take the gradients of :attr:`tensors`."""
        places = self.gradients()
        values = [laid_out(gradient, to) for gradient, to in zip(found, places, strict=True)]
        for dtype in {value.dtype for value in values}:  # a kernel takes values of one type
            alike = [index for index, value in enumerate(values) if value.dtype == dtype]
            torch._foreach_copy_([places[i] for i in alike], [values[i] for i in alike])

    def gradients(self) -> list[Tensor]:
        """Of the parameters, as the latest :meth:`collect` left them, in memory that the next one writes over."""
        return self._views(self._flat)

    def keep(self) -> None:
        """Give parameters that still hold such gradients a copy: more are to be added to them."""
        place = self._flat.untyped_storage().data_ptr()
        if not any(
            p.grad is not None and p.grad.untyped_storage().data_ptr() == place for p in self.parameters
        ):
            return
        for p, copied in zip(self.parameters, self._views(self._flat.clone()), strict=True):
            if p.grad is not None and p.grad.untyped_storage().data_ptr() == place:
                p.grad = copied

    def _views(self, flat: Tensor) -> list[Tensor]:
        """Into ``flat``, laid out as the parameters are."""
        return [
            flat.as_strided(p.shape, p.stride(), start)
            for p, start in zip(self.parameters, self._starts, strict=True)
        ]


def laid_out(values: Tensor, to: Tensor) -> Tensor:
    """``values`` with the strides of ``to``; axes of one element need no copy for that."""
    strides = zip(to.shape, values.stride(), to.stride(), strict=True)
    if all(size == 1 or ours == theirs for size, ours, theirs in strides):
        return values.as_strided(to.shape, to.stride())
    return torch.empty_like(to, dtype=values.dtype).copy_(values)
