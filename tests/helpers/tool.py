"""tools/train.py on the command line, with a run of seconds on the CPU."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TRAIN = Path(__file__).parents[2] / "tools" / "train.py"
SMALL = (
    *("data.counts=[8,4,4]", "data.scene=[64,64]", "data.digits=[1,2]", "data.scale=[20,30]"),
    *(
        "data.workers=0",
        "data.batch_size=2",
        "data.cache=none",
        "data.cache_dir=cache",
        "preprocess.size=[64,64]",
    ),
    *("model=yolov2_tiny", "model.width=0.0625", "model.hidden=16", "multiscale=null", "augment=none"),
    *("trainer.accelerator=cpu", "trainer.max_epochs=1"),
)


def start(
    *arguments: str,
    cwd: Path,
    launcher: Sequence[str] = (sys.executable,),
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start the tool in the folder ``cwd``."""
    flags = [
        argument for argument in arguments if argument.startswith("-")
    ]  # Hydra wants options in one piece
    return subprocess.Popen(
        [*launcher, str(TRAIN), *flags, *SMALL, *(one for one in arguments if one not in flags)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
    )


def train(*arguments: str, **options) -> str:
    """Run the tool to its end, which must be a good one; gives what it said."""
    running = start(*arguments, **options)
    said, _ = running.communicate(timeout=800)
    assert running.returncode == 0, said
    return said
