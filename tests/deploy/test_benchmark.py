"""Stages are counted once each, and all of them."""

from pathlib import Path

import pytest

from tests.deploy.making import RULE, toy
from yolo.deploy.benchmark import STAGES, busy_rule, measure, timing_table, to_json
from yolo.deploy.pictures import images_of, picture_files, prepare
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return picture_files(None, tmp_path_factory.mktemp("scenes"), 3)


def test_every_stage_has_its_time(files: list[str], dynamic: Path) -> None:
    for runtime in (TorchRuntime(toy(), RULE), OnnxRuntime(dynamic)):
        one = measure(runtime, files, 2, runs=3, warm_up=1)
        assert tuple(one.stages) == STAGES
        assert all(0 < low <= middle <= high for low, middle, high in one.stages.values())
        assert sum(values[0] for values in one.stages.values()) < 3 * one.total[2]
        assert one.images_per_second == pytest.approx(2e3 / one.total[0], rel=3)
        assert one.back_to_back is None
        assert one.peak_mib > 10
        assert timing_table([one]).row_count == len(STAGES) + 6
        assert to_json([one])[0]["batch"] == 2


def test_a_busy_rule_lets_as_many_pass_as_asked(files: list[str]) -> None:
    model = toy()
    images = prepare(images_of(files[0], 1), model.preprocess)
    rule = busy_rule(model, images, 30)
    every = TorchRuntime(model).every(images)
    assert int((every[1].amax(dim=-1) > rule.score_threshold).sum()) == 30
    with pytest.raises(ValueError, match="between 1 and 239, the predictions, got 500"):
        busy_rule(model, images, 500)


def test_what_cannot_be_timed(files: list[str], dense: Path) -> None:
    with pytest.raises(ValueError, match="at least one run and one picture, got 0 and 3"):
        measure(TorchRuntime(toy()), files, 1, runs=0)
    runtime = OnnxRuntime(dense)
    runtime.preprocess = toy().preprocess.__class__((64, 64))
    with pytest.raises(ValueError, match="height 64, width 96; got 1x3x64x64"):
        measure(runtime, files, 1)
