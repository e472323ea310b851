"""Batch sizes found by trial, and the second try of a run that did not fit."""

import logging
from functools import partial
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from tests.training.running import contents, fit
from yolo.models import yolov3
from yolo.ops.library import has_kernel
from yolo.training import StepSize
from yolo.training.batch_size import largest
from yolo.training.memory import out_of_memory
from yolo.training.retry import fit_with_retry


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


@pytest.mark.parametrize(
    ("room", "most", "expected"),
    [
        *(
            (1, 99, 1),
            (2, 99, 2),
            (7, 99, 4),
            (8, 99, 8),
            (15, 99, 8),
            (23, 99, 16),
            (24, 99, 24),
            (57, 99, 56),
        ),
        *((999, 99, 96), (999, 30, 24), (999, 5, 4), (999, 1, 1), (999, 16, 16)),
    ],
)
def test_the_largest_that_fits(room: int, most: int, expected: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= room

    assert largest(fits, most) == expected
    assert len(tried) == len(set(tried)) <= 12
    assert max(tried) <= max(most, 1)


def test_one_picture_must_fit() -> None:
    with pytest.raises(ValueError, match="one picture does not fit"):
        largest(lambda size: False, 8)


@pytest.mark.parametrize(("pictures", "expected"), [(24, 2), (400, 16)])
def test_auto_on_the_cpu(tmp_path: Path, scenes: Path, pictures: int, expected: int) -> None:
    step = StepSize("auto")
    _, trainer = fit(
        tmp_path, scenes, epochs=1, counts=(pictures, 1, 1), extra=(step,), size=(32, 32), multiscale=None,
        trainer={"limit_train_batches": 1, "limit_val_batches": 0},
    )  # fmt: skip
    assert trainer.datamodule.batch_size == expected
    again = StepSize("auto", checkpoint=tmp_path / "last.ckpt")
    _, trainer = fit(
        tmp_path, scenes, epochs=1, counts=(400, 1, 1), extra=(again,), size=(32, 32), multiscale=None,
        resume=tmp_path / "last.ckpt", trainer={"limit_train_batches": 1, "limit_val_batches": 0},
    )  # fmt: skip
    assert again.batch_size == expected


@pytest.mark.gpu
def test_auto_on_a_gpu_takes_a_good_part_of_its_memory(tmp_path: Path, scenes: Path) -> None:
    """With 4 GB left to this process YOLOv3 takes a few pictures, and training at the largest size fits."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(4e9 / total)
    try:
        step = StepSize("auto")
        fit(
            tmp_path, scenes, epochs=1, counts=(400, 1, 1), extra=(step,), size=(416, 416),
            detector=lambda: yolov3(num_classes=10), accelerator="gpu",
            trainer={"limit_train_batches": 3, "limit_val_batches": 0, "precision": "16-mixed"},
        )  # fmt: skip
        assert step.batch_size in (2, 4, 8)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_what_is_no_number_of_pictures_is_refused() -> None:
    for wrong in (0, -1, "many", 2.5, None):
        with pytest.raises(
            ValueError, match=r"data\.batch_size is a number of pictures, at least 1, or auto"
        ):
            StepSize(wrong)
    with pytest.raises(ValueError, match="nominal_batch"):
        StepSize(1, 0)


@pytest.mark.parametrize(("batch", "parts", "smaller"), [(16, 2, 8), (9, 3, 3), (7, 7, 1)])
def test_a_split_keeps_the_pictures_of_a_step(batch: int, parts: int, smaller: int) -> None:
    step = StepSize(batch)
    assert (step.split(), step.parts) == (smaller, parts)


def test_one_picture_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="out of memory with one picture a batch"):
        StepSize(1).split()


class Full(pl.Callback):
    """Runs out of memory once, in the middle of a step."""

    def __init__(self, epoch: int, batch: int) -> None:
        self.at = epoch, batch
        self.sizes: list[tuple[int, int]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, module, batch, batch_idx: int) -> None:
        self.sizes.append((len(batch.images), trainer.accumulate_grad_batches))
        if self.at == (trainer.current_epoch, batch_idx):
            self.at = -1, -1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(("epoch", "batch", "begin"), [(0, 0, 0), (1, 2, 1)])
def test_a_full_gpu_gets_a_second_try(
    tmp_path: Path, scenes: Path, caplog: pytest.LogCaptureFixture, epoch: int, batch: int, begin: int
) -> None:
    step, full = StepSize(8), Full(epoch, batch)
    began = []

    def run(checkpoint: Path | None) -> None:
        began.append(checkpoint)
        fit(tmp_path, scenes, epochs=2, extra=(step, full), resume=checkpoint)

    with caplog.at_level(logging.WARNING):
        fit_with_retry(run, step, None, tmp_path / "last.ckpt")
    assert began == [None, tmp_path / "last.ckpt" if begin else None]
    assert (
        "out of GPU memory (CUDA out of memory. Tried to allocate 2.00 GiB.): once more, from " in caplog.text
    )
    assert "with 4 pictures a batch and the gradients of 2 times as many batches a step" in caplog.text
    done = full.sizes.index((4, 2))
    assert full.sizes[done:] == [(4, 2)] * (2 - begin) * 6
    last = contents(tmp_path / "last.ckpt")
    assert (last["global_step"], last["position"]) == (6, {"batch": 4, "world": 1, "accumulate": 2})


def test_only_once_and_only_for_memory(tmp_path: Path) -> None:
    calls = []

    def run(checkpoint: Path | None) -> None:
        calls.append(checkpoint)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        fit_with_retry(run, StepSize(4), None, tmp_path / "last.ckpt")
    assert len(calls) == 2

    def other(checkpoint: Path | None) -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        fit_with_retry(other, StepSize(4), None, tmp_path / "last.ckpt")

    several = StepSize(4)
    several.world = 2
    with pytest.raises(ValueError, match=r"4 pictures a batch .*give a smaller data.batch_size"):
        fit_with_retry(run, several, None, tmp_path / "last.ckpt")


def test_libraries_have_words_of_their_own_for_a_full_gpu() -> None:
    assert out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED\nhere")) == (
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"
    )
    assert out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered")) is None
    assert out_of_memory(ValueError("CUDA out of memory")) is None


def words(name: str) -> str:
    """What an operator of ours says when LibTorch cannot serve its call of ``aten::name``."""
    if name == "empty_like":
        images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(2**20, 3, 2**20, 2**20)
        call = partial(torch.ops.yolo.vary_colour, images, torch.zeros(2**20, 3))
    else:
        rows = (2**24, 2**24) if name == "contiguous" else (2**48, 0)
        scores, labels = torch.zeros(1, 1).expand(rows), torch.zeros(1, 1, dtype=torch.int64).expand(rows)
        boxes = torch.zeros(1, 1, 4).expand(*rows, 4)
        call = partial(torch.ops.yolo.nms, boxes, scores, labels, 0.5, 0.5, 9, False)
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


@pytest.mark.skipif(not has_kernel("nms", "cpu"), reason="the operators are not compiled")
@pytest.mark.parametrize("name", ["empty_like", "new_empty", "contiguous"])
def test_our_operators_have_few_words_for_a_full_gpu(name: str) -> None:
    """Real messages of theirs: torch 2.13 and later put the reason in front, earlier ones leave it out."""
    said = words(name)
    reason, _, bare = said.removesuffix(")").rpartition(" (originally from ")
    if reason:
        assert "DefaultCPUAllocator" in reason
        assert (
            out_of_memory(RuntimeError(said)) is None
        )  # main memory, and nothing that half a batch would mend
        full = "CUDA out of memory. Tried to allocate 2.00 GiB."
        assert str(out_of_memory(RuntimeError(said.replace(reason, full)))).startswith(full)
    assert out_of_memory(RuntimeError(bare)) == (
        f"aten::{name} failed in an operator of this package; PyTorch's reason is on stderr"
    )
    assert out_of_memory(RuntimeError(bare.replace(name, "view"))) is None
