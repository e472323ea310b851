"""Forward, loss and backward as two CUDA graphs: a small batch no longer waits for the host that launches it."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from yolo.losses import Criterion
from yolo.training.leaves import Leaves
from yolo.types import Targets

ROOM = 16  # objects a picture that are always provided for
WARM_UP = 2  # runs before a recording: what libraries set up on first use must not be part of it


def padded(targets: Targets, count: int, images: int) -> Targets:
    """``targets`` with ``count`` rows; the ones added have no area and no class, so losses leave them out.

    They are spread over the ``images`` of the batch: gradients of one place are added one after the other.
    """
    rows = count - len(targets.labels)
    spread = torch.arange(rows, device=targets.image.device) % images
    return Targets(
        F.pad(targets.boxes, (0, 0, 0, rows)),
        F.pad(targets.labels, (0, rows), value=-1),
        torch.cat((targets.image, spread)),
    )


def blank(images: Tensor, size: tuple[int, int]) -> Tensor:
    """As many black pictures of ``size``."""
    return images.new_zeros((*images.shape[:2], *size)).contiguous(memory_format=torch.channels_last)


def without_cache() -> torch.autocast:
    """Mixed precision as it is, but every use of a weight casts it: a cast belongs to one graph."""
    return torch.autocast(
        "cuda", torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda"), cache_enabled=False
    )


def end_recording(device: torch.device, pool: Any, state: Tensor) -> None:
    """Tell PyTorch that a recording is over where that failed: it would wait for the end for ever.

    Args:
        device: Whose memory and random numbers it took part in.
        pool: Where its memory came from.
        state: Of the random numbers, to go on from.
    """
    with suppress(RuntimeError):  # it is not waiting
        torch._C._cuda_endAllocateToPool(device.index, pool)
    fresh = torch.Generator(device)
    fresh.set_state(state)
    torch.cuda.default_generators[device.index].graphsafe_set_state(fresh.graphsafe_get_state())


@dataclass(frozen=True)
class Recording:
    """One input size: what the graphs read, what they write, and the graphs."""

    images: Tensor
    targets: Targets
    values: Tensor
    weights: Tensor  # what backward starts from: the gradient of ``values``
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph


class RecordedStep:
    """The loss of a batch, replayed where a batch of this size has been recorded.

    All sizes share the memory of the largest, which is therefore recorded first, and one place for gradients. A batch
    with more objects than there is room for has everything recorded anew, with room for twice as many.

    Args:
        network: Its running statistics are those of the batches only, not of the recording, and so are its random
            numbers.
        criterion: Its loss; :attr:`Criterion.recordable`.
        sizes: Every height and width that may come.
    """

    def __init__(self, network: nn.Module, criterion: Criterion, sizes: Iterable[tuple[int, int]]) -> None:
        self.network, self.criterion = network, criterion
        self.sizes = sorted(sizes, key=lambda size: size[0] * size[1], reverse=True)
        self.room = 0  # objects of a batch
        self.names: list[str] = []
        self.recordings: dict[torch.Size, Recording] = {}

    @cached_property
    def leaves(self) -> Leaves:
        """Made under the autocast of the first step."""
        mixed = torch.is_autocast_enabled("cuda")
        return Leaves(self.network, torch.get_autocast_dtype("cuda") if mixed else torch.float32)

    def __call__(self, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        """The same as ``criterion.of(network, images, targets)``, of float32 parameters.

        Args:
            images: ``[N, 3, H, W]``, channels last, RGB, 0 to 1.
            targets: Pixels of ``images``.
        """
        count, n = len(targets.labels), len(images)
        if count > self.room or images.shape not in self.recordings:
            self.room = max(self.room, ROOM * n, 2 * count)
            self._record(images, padded(targets, self.room, n))
        recording = self.recordings[images.shape]
        recording.images.copy_(images)
        for kept, value in zip(recording.targets, padded(targets, self.room, n), strict=True):
            kept.copy_(value)
        values: Tensor = _Replay.apply(self, recording, *self.leaves.parameters)
        return dict(zip(self.names, values.unbind(), strict=True))

    def _record(self, images: Tensor, targets: Targets) -> None:
        """Record every size, and that of ``images``, with room for as many objects as ``targets`` has."""
        self.leaves.keep()
        self.recordings.clear()
        sizes = dict.fromkeys([*self.sizes, (images.shape[2], images.shape[3])])
        blanks = [blank(images, size) for size in sizes]
        buffers = [*self.network.buffers(), *self.criterion.buffers()]
        statistics = [buffer.clone() for buffer in buffers]
        device = images.device
        current, random = torch.cuda.current_stream(device), torch.cuda.get_rng_state(device)
        # memory that is free again is so for the stream that it was taken on: one stream for all
        stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(current), without_cache():
                # all of them first: what this takes goes back before the graphs get theirs
                with torch.cuda.stream(stream):
                    for one in blanks:
                        for _ in range(WARM_UP):
                            values = self._values(one, targets)
                            self._backward(values, torch.zeros_like(values))
                            del values
                for one in blanks:
                    self.recordings[one.shape] = self._capture(one, targets, stream, pool)
        except RuntimeError:
            self.recordings.clear()
            end_recording(device, pool, random)
            raise
        else:
            torch.cuda.set_rng_state(random, device)  # dropout of the runs before has drawn some
        finally:
            current.wait_stream(stream)
            torch._foreach_copy_(buffers, statistics)

    def _capture(self, images: Tensor, targets: Targets, stream: torch.cuda.Stream, pool: Any) -> Recording:
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        targets, weights = (
            Targets(*(x.clone() for x in targets)),
            torch.zeros(len(self.names), device=images.device),
        )
        # thread_local: the loader's thread goes on pinning memory
        with torch.cuda.graph(forward, pool, stream, "thread_local"):
            values = self._values(images, targets)
        with torch.cuda.graph(backward, pool, stream, "thread_local"):
            self._backward(values, weights)
        return Recording(images, targets, values.detach(), weights, forward, backward)

    def _values(self, images: Tensor, targets: Targets) -> Tensor:
        self.leaves.refresh()
        losses = self.criterion.of(self._run, images, targets)
        self.names = list(losses)
        return torch.stack(list(losses.values()))

    def _run(self, images: Tensor) -> Any:
        return functional_call(self.network, self.leaves.tensors, (images,))

    def _backward(self, values: Tensor, weights: Tensor) -> None:
        found = torch.autograd.grad(
            values, list(self.leaves.tensors.values()), weights, allow_unused=True, materialize_grads=True
        )
        self.leaves.collect(found)


class _Replay(torch.autograd.Function):
    """The next replay, of any size, writes over values, which are copied out at once, and over gradients."""

    @staticmethod
    def forward(ctx: Any, step: RecordedStep, recording: Recording, *parameters: Tensor) -> Tensor:
        ctx.step, ctx.recording = step, recording
        recording.forward.replay()
        return recording.values.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        ctx.step.leaves.keep()
        ctx.recording.weights.copy_(weights)
        ctx.recording.backward.replay()
        return None, None, *ctx.step.leaves.gradients()
