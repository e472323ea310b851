"""Networks of other kinds in the same harness: fit, checkpoint and score as YOLO does, whatever they are."""

from pathlib import Path

import pytest

from tests.training.running import fit
from yolo.checkpoint import load_model
from yolo.data import read_digits
from yolo.evaluate import evaluate
from yolo.models import CenterNet, Network, centernet, ssd


@pytest.mark.parametrize("kind", ["centernet", "ssd"])
def test_it_trains_and_its_checkpoint_scores_as_the_run_did(kind: str, tmp_path: Path) -> None:
    def build() -> Network:
        if kind == "ssd":
            return ssd(10, backbone="mobilenet")
        return centernet(10, backbone="darknet19", width=0.125)

    _, trainer = fit(tmp_path / "run", tmp_path, epochs=1, detector=build)
    assert trainer.global_step == 3
    model = load_model(tmp_path / "run" / "best.ckpt")
    assert isinstance(model.detector, CenterNet) == (kind == "centernet")
    assert model.detector.recipe is not None
    assert model.detector.recipe.name == kind
    annotated = read_digits(tmp_path, "val", counts=(24, 8, 8), size=(96, 96), digits=(1, 3), scale=(24, 48))
    report, found, _ = evaluate(model, annotated, workers=0, batch_size=8)
    assert report["map50"] == pytest.approx(float(trainer.callback_metrics["val/map50"]), abs=1e-6)
    assert sum(len(one.labels) for one in found) > 0
