"""Training for int8: ranges are learned, averaged, saved with the weights, and resumed."""

from pathlib import Path

import pytest
import torch

from tests.training.running import Stop, fit
from tests.training.test_fit import same, weights
from yolo.checkpoint import load_model
from yolo.models import yolov2_tiny
from yolo.models.quantize import quantizable

RANGES = dict.fromkeys(quantizable(yolov2_tiny(num_classes=10, width=0.125)), 4.0)
RANGES[next(iter(RANGES))] = 1.0


def test_learned_ranges_are_in_the_checkpoint(tmp_path: Path) -> None:
    """Those of the average, as the weights are; the network itself is saved as without fake quantisation."""
    fit(tmp_path / "int8", tmp_path / "scenes", epochs=1, ranges=RANGES)
    best = torch.load(tmp_path / "int8" / "best.ckpt", weights_only=True)
    model = load_model(tmp_path / "int8" / "best.ckpt")
    first, *others = model.ranges.values()
    assert list(model.ranges) == list(RANGES)
    assert (first, others[0]) == pytest.approx(best["state_dict"]["quantizer.log_limits"].exp().tolist())
    assert others[0] != 4.0
    last = torch.load(tmp_path / "int8" / "last.ckpt", weights_only=True)
    raw, average = (last[key]["quantizer.log_limits"] for key in ("raw_state_dict", "state_dict"))
    assert not torch.equal(raw, average)
    assert last["yolo"]["ranges"] == model.ranges


def test_training_for_int8_resumes_exactly(tmp_path: Path) -> None:
    fit(tmp_path / "whole", tmp_path / "scenes", epochs=2, ranges=RANGES)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(tmp_path / "parts", tmp_path / "scenes", epochs=2, ranges=RANGES, extra=(Stop(1, 1),))
    last = tmp_path / "parts" / "last.ckpt"
    learned = load_model(last).ranges  # what tools/train.py goes on from
    assert learned != RANGES
    fit(tmp_path / "parts", tmp_path / "scenes", epochs=2, resume=last, ranges=learned)
    assert same(weights(tmp_path / "whole" / "last.ckpt"), weights(last))
