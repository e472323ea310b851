"""How fast a training is, and where the time of a step goes: the very loop that ``tools/train.py`` runs.

Three runs of the same module: with the data set's own loader; with one batch that lies on the device, which leaves the
step alone; and the loader alone. What Lightning, logging and the averaged weights cost is part of both training rates.
Where several processes train one model the rates are those of all together, and a fourth run leaves their exchange of
gradients out: what it saves is the share of a step spent in communication.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from yolo.data import collate, to_float
from yolo.data.batch import Item
from yolo.models import flops
from yolo.training.communication import (
    Communication,
    Unsynchronized,
    bucket_megabytes,
    exchange_milliseconds,
    exchanges_gradients,
    gradient_bytes,
    over_ranks,
)
from yolo.training.datamodule import PREFETCH, DetectionData
from yolo.training.module import DetectionModule
from yolo.types import Batch

MakeTrainer = Callable[[list[pl.Callback]], pl.Trainer]


@dataclass(frozen=True)
class TrainingSpeed:
    """Images per second of all processes together, and milliseconds of a step."""

    device: str
    processes: int
    batch_size: int  # of each process
    size: tuple[int, int]  # height and width, pixels
    with_loader: float
    without_loader: float
    loader_alone: float
    parts: dict[
        str, float
    ]  # milliseconds of forward, loss, backward and the rest of a step without the loader
    matrix_tflops: float  # of a large product of half-precision matrices (float32 on a CPU)
    useful_tflops: float  # three times the forward pass, at the rate without the loader
    communication: Communication | None  # of several processes

    @property
    def share(self) -> float:
        """Of the devices' measured matrix rate."""
        return self.useful_tflops / (self.matrix_tflops * self.processes)


class Stopwatch(pl.Callback):
    """Seconds from the end of step ``warm_up`` to the end of step ``warm_up + steps``, and of the parts between."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self.warm_up, self.steps = warm_up, steps
        self.seconds = 0.0
        self._began = 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step == self.warm_up:
            synchronize(module.device)
            self._began = time.perf_counter()
        elif trainer.global_step == self.warm_up + self.steps:
            synchronize(module.device)
            self.seconds = time.perf_counter() - self._began
            trainer.should_stop = True


class Repeated(IterableDataset[Batch]):
    """One batch, again and again."""

    def __init__(self, batch: Batch, times: int) -> None:
        self.batch, self.times = batch, times

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.times):
            yield self.batch

    def __len__(self) -> int:
        return self.times


class Endless(Dataset[Item]):
    """A data set that is ``times`` as long, so that a small one lasts for the measurement."""

    def __init__(self, dataset: Dataset[Item], length: int, times: int) -> None:
        self.dataset, self.length, self.times = dataset, length, times

    def __getitem__(self, index: int) -> Item:
        return self.dataset[index % self.length]

    def __len__(self) -> int:
        return self.length * self.times


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Loading(pl.LightningDataModule):
    """A loader as the training module wants its data."""

    def __init__(self, loader: DataLoader[Any], batches: int) -> None:
        super().__init__()
        self.loader, self.batches = loader, batches

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader

    def batches_per_epoch(self, world: int) -> int:
        return self.batches


def measure_training(
    module: DetectionModule,
    data: DetectionData,
    make_trainer: MakeTrainer,
    steps: int = 50,
    warm_up: int = 10,
) -> TrainingSpeed:
    """Train for a moment, twice, and time it.

    Args:
        module: Fresh; its weights are changed.
        data: Its ``batch_size`` pictures a step; the ``train`` split.
        make_trainer: Makes the trainer of a run out of callbacks.
        steps: That are timed.
        warm_up: Steps before that; with the loader at least as many as it has batches ready.

    Raises:
        ValueError: The network is not of the YOLO family.
    """
    detector = module.model.yolo("measuring where a step's time goes")
    size = data.batch_size
    height, width = module.model.preprocess.size
    # of an image; before anything is measured, since an error had better come now than in minutes
    work = 3 * flops(detector, height, width)
    # what was loaded while the first step was set up says nothing about the loader
    begin = max(warm_up, PREFETCH * data.workers)
    total = begin + steps
    dataset = data.dataset("train")
    times = -(-total * size // len(dataset)) + 1
    loader: DataLoader[Any] = DataLoader(
        Endless(dataset, len(dataset), times), size, shuffle=True, drop_last=True, num_workers=data.workers,
        collate_fn=collate, prefetch_factor=PREFETCH if data.workers else None, pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    # not persistent: at the end of Python each worker that is left over is waited for, five seconds long
    watch = Stopwatch(begin, steps)
    trainer = make_trainer([watch])
    trainer.fit(module, datamodule=Loading(loader, total))
    device, world = trainer.strategy.root_device, trainer.world_size
    resident = module.transfer_batch_to_device(next(iter(loader)), device, 0)

    def resident_step(*callbacks: pl.Callback) -> float:
        """Seconds of a step whose batch lies on the device; of the slowest process."""
        alone = Stopwatch(warm_up, steps)
        repeated = DataLoader(Repeated(resident, warm_up + steps + 1), batch_size=None)
        make_trainer([alone, *callbacks]).fit(module, datamodule=Loading(repeated, warm_up + steps))
        return over_ranks(alone.seconds, dist.ReduceOp.MAX, device) / steps

    step = resident_step()
    communication = None
    if exchanges_gradients(trainer):
        size_of_gradients = gradient_bytes(module)
        exchange = exchange_milliseconds(size_of_gradients, bucket_megabytes(trainer), device)
        share = max(0.0, 1.0 - resident_step(Unsynchronized()) / step)
        communication = Communication(size_of_gradients, exchange, share)
    without_loader = world * size / step
    return TrainingSpeed(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        processes=world,
        batch_size=size,
        size=(height, width),
        with_loader=world * size * steps / over_ranks(watch.seconds, dist.ReduceOp.MAX, device),
        without_loader=without_loader,
        loader_alone=over_ranks(_loader_rate(loader, warm_up, steps, size), dist.ReduceOp.SUM, device),
        parts=_parts(module.to(device), resident, max(3, steps // 5)),
        matrix_tflops=matrix_rate(device),
        useful_tflops=work * without_loader / 1e12,
        communication=communication,
    )


def speed_table(speed: TrainingSpeed) -> Table:
    """For people."""
    several = f"{speed.processes} x " if speed.processes > 1 else ""
    title = f"{several}{speed.device}, batch {several}{speed.batch_size} at {speed.size[1]}x{speed.size[0]}"
    table = Table(title=title)
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, rate in (
        ("training, loader included", speed.with_loader),
        ("training, one batch on the device", speed.without_loader),
        ("loader alone", speed.loader_alone),
    ):
        table.add_row(name, f"{rate:,.1f} images/s")
    for name, milliseconds in speed.parts.items():
        table.add_row(f"{name}, waited for", f"{milliseconds:,.2f} ms")
    if speed.communication is not None:
        name = f"exchange of {speed.communication.bytes / 1e6:,.1f} MB of gradients, alone"
        table.add_row(name, f"{speed.communication.alone:,.2f} ms")
        table.add_row("share of a step spent waiting for it", f"{speed.communication.share:.1%}")
    table.add_row("useful work", f"{speed.useful_tflops:,.2f} TFLOP/s")
    table.add_row("share of the measured matrix rate", f"{speed.share:.1%} of {speed.matrix_tflops:,.1f}")
    return table


def _loader_rate(loader: DataLoader[Any], warm_up: int, steps: int, batch_size: int) -> float:
    batches = iter(loader)
    for _ in islice(batches, warm_up):
        pass
    began = time.perf_counter()
    count = sum(1 for _ in islice(batches, steps))
    return count * batch_size / (time.perf_counter() - began)


def _parts(module: DetectionModule, batch: Batch, runs: int) -> dict[str, float]:
    """Milliseconds of each part of a step, the device waited for after each; their sum is more than a real step."""
    device = module.device
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    module.train()
    spent = dict.fromkeys(("forward", "loss", "backward"), 0.0)
    images = to_float(batch.images).contiguous(memory_format=torch.channels_last)
    size = (images.shape[2], images.shape[3])
    for run in range(runs + 2):
        marks = [_now(device)]
        with torch.autocast(device.type, dtype, enabled=device.type == "cuda"):
            logits = module.detector(images)
            marks.append(_now(device))
            loss: Tensor = torch.stack(list(module.criterion(logits, batch.targets, size).values())).sum()
            marks.append(_now(device))
        loss.backward()
        marks.append(_now(device))
        module.zero_grad(set_to_none=True)
        if run >= 2:
            for name, start, stop in zip(spent, marks, marks[1:], strict=False):
                spent[name] += (stop - start) * 1e3 / runs
    return spent


def _now(device: torch.device) -> float:
    synchronize(device)
    return time.perf_counter()


def matrix_rate(device: torch.device, side: int | None = None) -> float:
    """TFLOP/s of a product of two square matrices: float16 on a GPU, float32 on a CPU."""
    side = side or (8192 if device.type == "cuda" else 1024)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        began = _now(device)
        a @ b
        best = min(best, _now(device) - began)
    return 2 * side**3 / best / 1e12
