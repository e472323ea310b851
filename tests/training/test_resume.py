"""Interrupted anywhere and resumed in a new process equals uninterrupted, bit for bit."""

import signal
from pathlib import Path

import pytest
import torch

from tests.training.running import Stop, contents, differences, fit, process
from yolo.data import DetectionDataset
from yolo.models import yolov2_tiny
from yolo.training import FreezeBackbone, freeze

BATCHES = 6  # of 4 pictures in an epoch of 24
HERE = Stop(1, 3, signal.SIGINT)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Sums depend on the number of threads; the processes of these tests have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, scenes: Path):
    """The checkpoints of uninterrupted runs, by batches a step."""
    made: dict[int, dict] = {}

    def run(accumulate: int) -> dict:
        if accumulate not in made:
            folder = tmp_path_factory.mktemp("whole")
            fit(folder, scenes, epochs=3, batch_size=4, accumulate=accumulate)
            made[accumulate] = contents(folder / "last.ckpt")
        return made[accumulate]

    return run


def stands_at(path: Path) -> tuple[int, int]:
    """Whole epochs, and batches of the next one, that a checkpoint has done."""
    loops = contents(path)["loops"]["fit_loop"]
    epoch, batches = loops["epoch_progress"]["current"], loops["epoch_loop.batch_progress"]["current"]
    return epoch["processed"], batches["ready"]


def interrupted(folder: Path, scenes: Path, stop: Stop = HERE, **options) -> Path:
    """The checkpoint that a run leaves which gets a signal."""
    with pytest.raises(SystemExit) as left:
        fit(folder, scenes, batch_size=4, extra=(stop, *options.pop("extra", ())), **options)
    assert left.value.code == 128 + stop.number
    return folder / "last.ckpt"


@pytest.mark.parametrize(
    ("accumulate", "stop", "expected"),
    [
        (1, Stop(1, 3, signal.SIGINT), (1, 4)),  # the step under way is finished
        (4, Stop(1, 1, signal.SIGTERM), (1, 4)),  # and the accumulation window
        (1, Stop(1, 5, signal.SIGTERM), (1, 6)),  # in the last batch: before the validation
        (1, Stop(1, 1, signal.SIGTERM, "validation"), (1, 6)),
    ],
)
def test_a_signal_in_the_second_epoch(
    tmp_path: Path, scenes: Path, whole, accumulate: int, stop: Stop, expected: tuple[int, int]
) -> None:
    last = interrupted(tmp_path, scenes, stop, epochs=3, accumulate=accumulate)
    assert stands_at(last) == expected
    fit(tmp_path, scenes, epochs=3, batch_size=4, accumulate=accumulate, resume=last)
    assert differences(whole(accumulate), contents(last)) == []


@pytest.mark.timeout(900)
def test_in_new_processes_with_workers_and_killed_between_two_checkpoints(
    tmp_path: Path, scenes: Path, whole
) -> None:
    """SIGTERM in epoch 2, then kill -9 later, and the third process goes on from the last checkpoint there is."""
    same = (
        *("--epochs", 3, "--batch-size", 4, "--accumulate", 4, "--workers", 1, "--every-n-steps", 1),
        *("--resume", tmp_path / "last.ckpt"),
    )
    first = process(tmp_path, scenes, *same[:-2], "--stop", "train", 1, 1, "SIGTERM")
    assert first.returncode == 128 + signal.SIGTERM, first.stderr
    assert stands_at(tmp_path / "last.ckpt") == (1, 4)
    assert process(tmp_path, scenes, *same, "--stop", "train", 2, 5, "SIGKILL").returncode == -signal.SIGKILL
    assert stands_at(tmp_path / "last.ckpt") in ((1, 4), (2, 6), (2, 4))  # it is written in the background
    last = process(tmp_path, scenes, *same)
    assert last.returncode == 0, last.stderr
    assert differences(whole(4), contents(tmp_path / "last.ckpt")) == []


def test_nothing_is_read_twice(tmp_path: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = interrupted(tmp_path, scenes, epochs=2)
    seen: list[int] = []
    get = DetectionDataset.__getitem__

    def count(self: DetectionDataset, index: int):
        if self.augment is not None:
            seen.append(index)
        return get(self, index)

    monkeypatch.setattr(DetectionDataset, "__getitem__", count)
    fit(tmp_path, scenes, epochs=2, batch_size=4, resume=last)
    assert len(seen) == len(set(seen)) == (BATCHES - 4) * 4


def test_frozen_layers_stay_frozen_after_a_resume_within_an_epoch(tmp_path: Path, scenes: Path) -> None:
    def run(folder: Path, **options) -> dict[str, torch.Tensor]:
        kept = {}

        def make():
            detector = yolov2_tiny(num_classes=10, width=0.125)
            kept["frozen"] = freeze(detector, "freeze_backbone")
            return detector

        class Late(FreezeBackbone):
            def __init__(self) -> None:
                pass

            @property
            def frozen(self):
                return kept["frozen"]

        if "resume" in options:
            fit(folder, scenes, batch_size=4, detector=make, extra=(Late(),), **options)
        else:
            interrupted(folder, scenes, detector=make, extra=(Late(),), **options)
        return {
            k: v for k, v in contents(folder / "last.ckpt")["raw_state_dict"].items() if ".backbone." in k
        }

    before = run(tmp_path)
    after = run(tmp_path, resume=tmp_path / "last.ckpt")
    assert before
    assert differences(before, after) == []


@pytest.mark.parametrize(("batch", "accumulate"), [(2, 2), (4, 1)])
def test_another_split_of_the_same_steps_goes_on_at_the_same_picture(
    tmp_path: Path, scenes: Path, batch: int, accumulate: int
) -> None:
    last = interrupted(tmp_path, scenes, epochs=2, multiscale=None)
    _, trainer = fit(
        tmp_path, scenes, epochs=2, batch_size=batch, accumulate=accumulate, resume=last, multiscale=None
    )
    assert trainer.global_step == 2 * BATCHES


def test_another_size_of_a_step_is_refused_within_an_epoch(tmp_path: Path, scenes: Path) -> None:
    last = interrupted(tmp_path, scenes, epochs=2)
    with pytest.raises(
        ValueError, match=r"in the middle of an epoch, at steps of 4 pictures .* has steps of 8"
    ):
        fit(tmp_path, scenes, epochs=2, batch_size=8, resume=last)


def test_the_best_weights_follow_a_run_into_a_new_folder(tmp_path: Path, scenes: Path) -> None:
    fit(tmp_path / "one", scenes, epochs=1)
    fit(tmp_path / "two", scenes, epochs=1, resume=tmp_path / "one" / "last.ckpt")
    assert (tmp_path / "two" / "best.ckpt").read_bytes() == (tmp_path / "one" / "best.ckpt").read_bytes()
