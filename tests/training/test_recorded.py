"""Replayed steps: the same numbers as steps that the host launches, whatever size and number of objects comes."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn

from tests.helpers.ranks import ranks
from tests.losses.test_losses import LOSSES, NONE, USUAL, outputs, size_of
from tests.training.running import fit
from yolo.losses import ModernLoss, build_loss
from yolo.models import yolov1, yolov2_tiny, yolov3_tiny
from yolo.training import DetectionModule, MultiScale, recorded
from yolo.training.distributed import one_launch
from yolo.training.recorded import RecordedStep, padded
from yolo.types import Targets

NETWORKS = {"v2": yolov2_tiny, "v3": yolov3_tiny}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("targets", [USUAL, NONE], ids=["usual", "none"])
def test_rows_that_fill_up_change_no_loss(name: str, targets: Targets) -> None:
    loss = LOSSES[name](3)
    found = []
    for rows in (len(targets.labels), len(targets.labels) + 37):
        logits = [x.requires_grad_() for x in outputs(loss)]
        torch.manual_seed(0)
        terms = deepcopy(loss)(logits, padded(targets, rows, 2), size_of(loss))
        gradients = torch.autograd.grad(
            torch.stack(list(terms.values())).sum(), logits, materialize_grads=True
        )
        found.append([*terms.values(), *gradients])
    if name == "v1_softmax":  # it draws a number for every row
        found = [values[1:] for values in found]
        assert all(torch.isfinite(x).all() for values in found for x in values)
        return
    for plain, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, plain, rtol=1e-5, atol=1e-7)


def batches(side: int, device: str) -> Iterator[tuple[Tensor, Targets]]:
    """Two sizes; few objects, none, and more than there is room for."""
    generator = torch.Generator().manual_seed(0)
    for step, count in enumerate((5, 3, 0, 80, 5)):
        size = side if step % 2 == 0 else side + 32
        images = torch.rand(2, 3, size, size, generator=generator)
        corner = torch.rand(count, 2, generator=generator) * size * 0.6
        extent = torch.rand(count, 2, generator=generator) * size * 0.3 + 4
        labels = torch.randint(3, (count,), generator=generator)
        image = torch.randint(2, (count,), generator=generator)
        boxes = torch.cat((corner, corner + extent), 1)
        yield (
            images.to(device).contiguous(memory_format=torch.channels_last),
            Targets(boxes.to(device), labels.to(device), image.to(device)),
        )


@pytest.mark.parametrize("kind", ["v2", "v3"])
def test_what_is_recorded_are_the_values_and_gradients_of_the_step(kind: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[kind](num_classes=3, width=0.125)
    network.backbone.requires_grad_(False)  # frozen layers have no gradient
    loss = build_loss(network)
    step = RecordedStep(network, loss, [])
    for images, targets in batches(96, "cpu"):
        terms = loss.of(network, images, targets)
        network.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        values = step._values(images, padded(targets, 96, 2))
        step._backward(values, torch.ones_like(values))
        torch.testing.assert_close(values, torch.stack(list(terms.values())), rtol=1e-5, atol=1e-6)
        trained = [p for p in network.parameters() if p.requires_grad]
        assert 0 < len(trained) < len(list(network.parameters()))
        for p, gradient in zip(trained, step.leaves.gradients(), strict=True):
            assert gradient.stride() == p.stride()
            torch.testing.assert_close(gradient, p.grad, rtol=1e-4, atol=1e-6)


def without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a recording does before it records, without a GPU."""
    stream = SimpleNamespace(wait_stream=lambda _: None)
    fakes = {
        "Stream": lambda _: stream, "current_stream": lambda _: stream, "stream": lambda _: nullcontext(),
        "graph_pool_handle": lambda: None, "get_rng_state": lambda _: torch.get_rng_state(),
        "set_rng_state": lambda state, _: torch.set_rng_state(state),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(recorded, "without_cache", nullcontext)
    monkeypatch.setattr(RecordedStep, "_capture", lambda *_: None)


def test_a_recording_moves_neither_statistics_nor_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    without_streams(monkeypatch)
    network = yolov1(num_classes=3, width=0.125, image_size=128)  # with dropout
    step = RecordedStep(network, build_loss(network), [])
    images = torch.rand(2, 3, *(network.fixed_size or ()))
    buffers = [*network.buffers(), *step.criterion.buffers()]
    before, random = deepcopy(buffers), torch.get_rng_state()
    step._record(images, padded(USUAL, 8, 2))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(one, other) for one, other in zip(buffers, before, strict=True))
    assert list(step.recordings) == [images.shape]


def test_a_recording_leaves_gradients_that_are_to_be_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of another size, or with more objects, in the middle of an accumulation."""
    without_streams(monkeypatch)
    network = yolov3_tiny(num_classes=3, width=0.125)
    step = RecordedStep(network, build_loss(network), [])
    for p, gradient in zip(step.leaves.parameters, step.leaves.gradients(), strict=True):
        gradient.fill_(7.0)
        p.grad = gradient
    step._record(torch.rand(2, 3, 96, 96), padded(USUAL, 8, 2))
    assert all(p.grad is not None and p.grad.eq(7.0).all() for p in network.parameters())


def test_recordings_give_their_memory_to_the_scoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    detect, full = DetectionModule._detect, []

    def narrow(self: DetectionModule, images: Tensor) -> object:
        if not full:
            self._recorded = full.append(self) or RecordedStep(self.detector, self.criterion, [])
        if self._recorded is not None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return detect(self, images)

    monkeypatch.setattr(DetectionModule, "_detect", narrow)
    module, trainer = fit(tmp_path, tmp_path / "digits", epochs=1)
    assert full == [module]
    assert "val/map" in trainer.callback_metrics
    assert caplog.text.count("too little GPU memory") == 1


class Twins:
    """The same network and loss, once recorded and once not."""

    def __init__(self, kind: str, variant: str, sizes: list[tuple[int, int]]) -> None:
        torch.manual_seed(0)
        network = NETWORKS[kind](num_classes=3).cuda().to(memory_format=torch.channels_last)
        self.networks: list[nn.Module] = [network, deepcopy(network)]
        self.losses = [build_loss(one, variant).cuda() for one in self.networks]  # type: ignore[arg-type]
        self.recorded = RecordedStep(self.networks[0], self.losses[0], sizes)

    def step(self, images: Tensor, targets: Targets) -> list[dict[str, Tensor]]:
        return [self.recorded(images, targets), self.losses[1].of(self.networks[1], images, targets)]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("kind", "variant"), [(k, v) for k in ("v2", "v3") for v in ("modern", "darknet")])
def test_a_replay_is_the_step(kind: str, variant: str, dtype: torch.dtype) -> None:
    twins = Twins(kind, variant, [(160, 160), (192, 192)])
    for images, targets in batches(160, "cuda"):
        with torch.autocast("cuda", dtype):
            terms = twins.step(images, targets)
        for name, value in terms[1].items():
            torch.testing.assert_close(terms[0][name], value, rtol=1e-2, atol=1e-4)
        for network, found in zip(twins.networks, terms, strict=True):
            network.zero_grad()
            (torch.stack(list(found.values())).sum() * 3).backward()
        close(twins, 5e-2)
    for one, other in zip(*(network.buffers() for network in twins.networks), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
    for one, other in zip(*(loss.buffers() for loss in twins.losses), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.gpu
@needs_gpu
def test_dropout_draws_what_it_draws_without_a_recording() -> None:
    torch.manual_seed(0)
    network = yolov1(num_classes=3, width=0.125, image_size=192).cuda().to(memory_format=torch.channels_last)
    other = deepcopy(network)
    losses = [build_loss(one).cuda() for one in (network, other)]
    size = network.fixed_size
    assert size is not None
    step = RecordedStep(network, losses[0], [size])
    found = []
    for of in (step, lambda *batch: losses[1].of(other, *batch)):
        torch.cuda.manual_seed(0)
        with torch.autocast("cuda", torch.float16):
            found.append(
                [
                    of(images, targets)
                    for images, targets in batches(size[0], "cuda")
                    if images.shape[2] == size[0]
                ]
            )
    for one, wanted in zip(*found, strict=True):
        for name, value in wanted.items():
            torch.testing.assert_close(one[name], value, rtol=1e-2, atol=1e-4)


@pytest.mark.gpu
@needs_gpu
def test_gradients_add_up_over_replays() -> None:
    twins = Twins("v3", "modern", [(160, 160)])
    for images, targets in batches(160, "cuda"):
        with torch.autocast("cuda", torch.float16):
            terms = twins.step(images, targets)
        for found in terms:
            torch.stack(list(found.values())).sum().backward()
    close(twins, 5e-2)


def close(twins: Twins, tolerance: float) -> None:
    """The gradients of both, as a share of the largest of their layer."""
    names = [name for name, _ in twins.networks[0].named_parameters()]
    for name, one, other in zip(names, *(network.parameters() for network in twins.networks), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        worst = (one.grad - other.grad).abs().max() / other.grad.abs().max().clamp(min=1e-6)
        assert worst < tolerance, f"{name}: {worst}"


OPTIONS = {"accelerator": "gpu", "trainer": {"precision": "16-mixed"}, "workers": 1, "epochs": 4}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with every recorded step."""
    calls: list[object] = []
    call = RecordedStep.__call__
    monkeypatch.setattr(RecordedStep, "__call__", lambda *args: calls.append(args) or call(*args))
    return calls


@pytest.mark.gpu
@needs_gpu
def test_a_run_is_recorded_and_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    scales = MultiScale(every=1)
    _, plain = fit(tmp_path / "plain", tmp_path / "digits", multiscale=scales, **OPTIONS)
    assert not calls
    _, recorded = fit(
        tmp_path / "recorded", tmp_path / "digits", multiscale=scales, cuda_graphs=True, **OPTIONS
    )
    assert len(calls) == recorded.global_step == 12
    ours, theirs = (run.callback_metrics["train/loss_epoch"] for run in (recorded, plain))
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.0)


def _rank(rank: int, folder: Path, replayed: bool) -> None:
    """A run of two processes that share the GPU; gloo, since NCCL wants one for each."""
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    strategy = DDPStrategy(parallel_devices=[torch.device("cuda", 0)] * 2, process_group_backend="gloo")
    options = OPTIONS | {"trainer": OPTIONS["trainer"] | {"strategy": strategy}}
    with pytest.MonkeyPatch.context() as patch:
        calls = counted(patch)
        module, run = fit(
            folder,
            folder / f"digits{rank}",
            batch_size=4,
            multiscale=MultiScale(every=1),
            cuda_graphs=replayed,
            **options,
        )
    assert len(calls) == (run.global_step if replayed else 0)
    found = {"loss": run.callback_metrics["train/loss_epoch"], "weights": dict(module.named_parameters())}
    torch.save(found, folder / f"{rank}.pt")


@pytest.mark.gpu
@needs_gpu
def test_processes_that_replay_exchange_their_gradients(tmp_path: Path) -> None:
    losses = []
    for replayed in (False, True):
        folder = tmp_path / str(replayed)
        folder.mkdir()
        ranks(_rank, folder, replayed)
        one, other = (torch.load(folder / f"{rank}.pt") for rank in range(2))
        for name, weight in one["weights"].items():
            assert torch.equal(weight, other["weights"][name]), name
        losses.append(one["loss"])
    torch.testing.assert_close(*losses, rtol=0.1, atol=0.0)


@pytest.mark.gpu
@needs_gpu
def test_replays_beside_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of one process: DDP takes the gradients, and NCCL's own thread runs while steps are recorded."""
    calls = counted(monkeypatch)
    grouped = OPTIONS | {"trainer": OPTIONS["trainer"] | {"strategy": "ddp", "devices": 1}}
    with one_launch():
        _, run = fit(tmp_path / "grouped", tmp_path / "digits", cuda_graphs=True, **grouped)
        assert dist.get_backend() == "nccl"
    assert len(calls) == run.global_step == 12
    _, plain = fit(tmp_path / "plain", tmp_path / "digits", **OPTIONS)
    ours, theirs = (one.callback_metrics["train/loss_epoch"] for one in (run, plain))
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.0)


@pytest.mark.gpu
@needs_gpu
def test_sizes_share_their_memory() -> None:
    peaks = []
    for sizes in ([(512, 512)], [(side, side) for side in range(256, 544, 32)]):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        twins = Twins("v3", "modern", sizes)
        with torch.autocast("cuda", torch.float16):
            twins.recorded(*next(batches(512, "cuda")))
        torch.cuda.empty_cache()
        peaks.append(torch.cuda.memory_reserved() - before)
        del twins
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.gpu
@needs_gpu
def test_what_cannot_be_recorded_is_trained_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, plain = fit(tmp_path / "plain", tmp_path / "digits", **OPTIONS)
    of = ModernLoss.of

    def waiting(self: ModernLoss, network: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        losses = of(self, network, images, targets)
        assert torch.isfinite(losses["box"]).item()  # waits for the device
        return losses

    monkeypatch.setattr(ModernLoss, "of", waiting)
    _, other = fit(tmp_path / "other", tmp_path / "digits", cuda_graphs=True, **OPTIONS)
    assert "cannot be recorded" in caplog.text
    assert torch.rand(8, device="cuda").unique().numel() == 8  # random numbers go on, too
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    ours, theirs = (run.callback_metrics["train/loss_epoch"] for run in (other, plain))
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.0)
