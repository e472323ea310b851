"""The CUDA sources compile for every generation of GPUs they are meant for; none is needed for that."""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).parents[2]
# reversed: the longest to compile happen to come first, and two are compiled at once
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"), reverse=True)
# What sources are compiled as, and for which generations the result is made code: where no source asks for another
# __CUDA_ARCH__ than these, one pass says for all of them whether it compiles.
GENERATIONS = {"75": ("75",), "80": ("80", "90", "120")}


def find_toolkit() -> Path | None:
    """The folder of a CUDA toolkit: CUDA_HOME, else what nvcc says of itself, else the usual places.

    The folder that an nvcc on the PATH lies in says little: it may be a script that calls another.
    """
    candidates = [Path(os.environ["CUDA_HOME"])] if "CUDA_HOME" in os.environ else []
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        said = subprocess.run(
            [nvcc, "--dryrun", "any.cu"], capture_output=True, text=True, check=False
        ).stderr
        candidates += [Path(found) for found in re.findall(r"^#\$ TOP=(.+)$", said, re.MULTILINE)]
    candidates += sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    whole = (c for c in candidates if (c / "bin/nvcc").is_file() and (c / "include/cuda_runtime.h").is_file())
    return next(whole, None)


def flags(toolkit: Path) -> list[str]:
    """What setup.py gives nvcc, for every architecture at once."""
    stable = re.search(r"-DTORCH_TARGET_VERSION=\w+", (ROOT / "setup.py").read_text())
    assert stable is not None
    common = ["-std=c++20", "-fmad=false", "-DUSE_CUDA", stable[0], "--expt-relaxed-constexpr"]
    for virtual, real in GENERATIONS.items():
        common += [f"-gencode=arch=compute_{virtual},code=[{','.join(f'sm_{one}' for one in real)}]"]
    folders = [*include_paths("cpu"), str(toolkit / "include")]
    return common + [part for folder in folders for part in ("-isystem", folder)]


def test_no_source_asks_for_another_generation() -> None:
    texts = [path.read_text() for path in sorted((ROOT / "csrc").rglob("*.*"))]
    asked = {found for text in texts for found in re.findall(r"__CUDA_ARCH__.*?(\d+)", text)}
    assert asked <= {f"{virtual}0" for virtual in GENERATIONS}


@pytest.mark.timeout(900)  # seconds of two idle cores, minutes of busy ones
def test_cuda_sources_compile_for_every_generation(tmp_path: Path) -> None:
    toolkit = find_toolkit()
    if toolkit is None:
        pytest.skip("no CUDA toolkit: neither CUDA_HOME nor nvcc nor /usr/local/cuda* leads to one")
    assert SOURCES

    def build(source: Path) -> tuple[str, str]:
        # device code alone and not optimised: what compiles is the question, and time is short
        command = [str(toolkit / "bin/nvcc"), *flags(toolkit), "-Xcicc=-O0", "-Xptxas=-O0"]
        command += ["-fatbin", str(source), "-o", str(tmp_path / f"{source.stem}.fatbin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return source.name, "" if done.returncode == 0 else done.stderr

    with ThreadPoolExecutor(2) as pool:
        failed = [f"{name}:\n{errors}" for name, errors in pool.map(build, SOURCES) if errors]
    assert not failed, "\n".join(failed)
