"""What a run keeps for its report costs it nothing and changes nothing."""

from pathlib import Path

import pytest

from tests.training.running import fit
from tests.training.test_fit import same, weights
from yolo.data import load_image
from yolo.metrics import DetectionMetric
from yolo.training import Recorder, record


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


def test_the_best_validation_and_the_first_batches_are_kept(tmp_path: Path, scenes: Path) -> None:
    recorder = Recorder(str(tmp_path), batches=2)
    module, trainer = fit(tmp_path, scenes, epochs=2, extra=(recorder,))
    assert recorder.validated is not None
    assert len(recorder.validated.pictures) == 8
    metric = DetectionMetric(module.model.classes)
    metric.pictures = list(recorder.validated.pictures)
    metric.update([], [])
    best = next(one for one in trainer.callbacks if type(one).__name__ == "Checkpoints").best  # type: ignore[attr-defined]
    assert metric.compute()["map"] == pytest.approx(best, abs=1e-7)
    drawn = sorted((tmp_path / "report").iterdir())
    assert [path.name for path in drawn] == ["batch_0.jpg", "batch_1.jpg"]
    height, width, _ = load_image(drawn[0]).shape
    assert (height, width) == (2 * 384, 4 * 384)  # eight pictures of 96 pixels, four times as large

    fit(tmp_path / "plain", scenes, epochs=2)
    assert same(weights(tmp_path / "last.ckpt"), weights(tmp_path / "plain" / "last.ckpt"))


def test_a_drawing_that_fails_stops_nothing(
    tmp_path: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(record, "draw_batch", broken)
    fit(tmp_path, scenes, epochs=1, extra=(Recorder(str(tmp_path), batches=1),))
    assert (tmp_path / "last.ckpt").exists()
    assert "no drawing of the first batches: RuntimeError: no ink" in caplog.text
