"""tools/train.py as Lightning, torchrun, SLURM and Hydra's joblib launcher start it."""

import sys
from pathlib import Path

import pytest

from tests.helpers.ranks import free_port
from tests.helpers.tool import start, train
from tests.training.running import contents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def only_run(folder: Path) -> Path:
    """The one folder under runs/train, which must have the checkpoints of two processes."""
    (found,) = (folder / "runs" / "train").iterdir()
    assert {"best.ckpt", "last.ckpt", "metrics.csv"} <= {path.name for path in found.iterdir()}
    assert contents(found / "last.ckpt")["position"]["world"] == 2
    return found


def test_lightning_starts_the_second_process(tmp_path: Path) -> None:
    said = train("trainer.devices=2", cwd=tmp_path)
    only_run(tmp_path)
    assert [said.count(words) for words in ("epoch 1/1: ", "results in ", "It is recommended")] == [1, 1, 0]


def test_torchrun(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    train("trainer.devices=2", cwd=tmp_path, launcher=launcher)
    assert only_run(tmp_path).name.startswith("torchrun-")


def test_slurm(tmp_path: Path) -> None:
    """Two tasks with the environment that srun gives them."""
    job = {
        "SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "train", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0",
        "SLURM_NODELIST": "127.0.0.1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    tasks = [
        start(
            "trainer.devices=2", cwd=tmp_path, environment=job | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}
        )
        for rank in ("0", "1")
    ]
    said = [task.communicate(timeout=800)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert only_run(tmp_path).name == "slurm-77.0"


def test_jobs_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="pip install 'yolo-lightning[sweep]'")
    train("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1", "name=seeds", cwd=tmp_path)
    made = [tmp_path / "runs" / "train" / "seeds" / job / "last.ckpt" for job in ("0", "1")]
    first, second = (contents(path)["state_dict"] for path in made)
    name = next(name for name in first if name.endswith("conv.weight"))
    assert not first[name].equal(second[name])


def test_a_stopped_run_goes_on_by_the_same_command(tmp_path: Path) -> None:
    """`checkpoint=auto` begins, then goes on, then has nothing to do."""
    command = ("name=night", "checkpoint=auto", "trainer.max_epochs=2")
    train(*command, "trainer.max_epochs=1", cwd=tmp_path)
    train(*command, cwd=tmp_path)
    last = tmp_path / "runs" / "train" / "night" / "last.ckpt"
    assert contents(last)["epoch"] == 1
    assert "nothing to do: 2 of 2 epochs done" in train(*command, cwd=tmp_path)
