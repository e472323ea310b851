"""tools/anchors.py from the command line to a config that training takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from tests.helpers.paths import shared

ROOT = Path(__file__).parent.parent.parent


MINE = "given=[[[20,20],[40,40],[60,60],[80,80],[140,140]]]"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    tool = str(ROOT / "tools" / "anchors.py")
    return subprocess.run(
        [sys.executable, tool, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    shared("data", "bccd")
    folder = tmp_path_factory.mktemp("anchors")
    options = [
        "data=bccd",
        "model=yolov2",
        "k=5",
        "restarts=2",
        "rounds=1",
        "write=true",
        "choose=kmeans",
        "multiscale.low=0.75",
        "multiscale.high=1.5",
        MINE,
    ]
    result = run(
        "kmeans", *options, f"hydra.run.dir={folder}", f"data.cache_dir={folder / 'cache'}", folder=folder
    )
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def test_says_what_it_found(done: tuple[Path, str]) -> None:
    _, output = done
    assert "3941 boxes of bccd train" in output
    assert "320x320 to 608x608 pixels; seed 0" in output
    assert "verdict: " in output
    assert "width cells" in output
    assert "given.0 (average IoU " in output


def test_written_config_trains_that_model(done: tuple[Path, str]) -> None:
    folder, output = done
    assert f"--config-dir {folder} data=bccd model=yolov2_bccd" in output
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        overrides = [
            f"hydra.searchpath=[file://{folder}]",
            "data=bccd",
            "model=yolov2_bccd",
            "model.width=0.05",
        ]
        cfg = compose("train", overrides)
    detector = instantiate(cfg.model, _convert_="all")
    assert detector.num_classes == 3
    assert len(detector.specs[0].anchors) == 5
    assert detector.specs[0].anchors[0] == pytest.approx((28, 27), abs=1.5)
    assert cfg.preprocess.size == [416, 416]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [(["kmeans", "model=yolov1"], 1, "has no anchors"), (["kmean", "data=bccd"], 2, "kmean")],
)
def test_wrong_requests_end_in_one_line(
    tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    shared("data", "bccd")
    result = run(*arguments, "data=bccd", folder=tmp_path)
    assert result.returncode == status, result.stderr
    assert words in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_loads_neither_lightning_nor_torchmetrics() -> None:
    """They take a quarter of a GB, which the box sizes of a large set need (issue: less than 1 GB in all)."""
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='imported');"
        "print(*sorted({'pytorch_lightning', 'torchmetrics', 'albumentations', 'sklearn'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(ROOT / "tools" / "anchors.py")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
