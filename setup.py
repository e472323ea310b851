"""Builds yolo._C; everything else is declared in pyproject.toml.

YOLO_CUDA=0 builds CPU kernels only, 1 insists on CUDA kernels, auto (the default) builds them where this torch and
this machine have CUDA. Without any compiler the package still works: every operator has a PyTorch reference.
"""

import os
import shutil
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

CSRC = Path("csrc")
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"  # runs on every libtorch from 2.10 on

choice = os.environ.get("YOLO_CUDA", "auto")
if choice not in ("0", "1", "auto"):
    raise ValueError(f"YOLO_CUDA must be 0, 1 or auto, got {choice}")
# A wrapper script named nvcc can lead torch to a folder without a toolkit; set CUDA_HOME there.
toolkit = CUDA_HOME is not None and (Path(CUDA_HOME) / "include" / "cuda_runtime.h").is_file()
possible = bool(toolkit and torch.version.cuda)
if choice == "1" and not possible:
    raise RuntimeError(
        f"YOLO_CUDA=1 needs nvcc and a CUDA torch, got CUDA_HOME={CUDA_HOME}, torch {torch.__version__}"
    )
with_cuda = possible if choice == "auto" else choice == "1"
compiler = with_cuda or shutil.which(os.environ.get("CXX", "c++")) is not None
built = ("CPU and CUDA" if with_cuda else "CPU") if compiler else "no"
print(f"yolo: building {built} kernels (YOLO_CUDA={choice})")

# Sums and products stay separate operations, so that CPU, CUDA and PyTorch agree on which boxes overlap.
EXACT = {"cxx": "-ffp-contract=off", "nvcc": "-fmad=false"}
sources = [*CSRC.glob("*.cpp"), *CSRC.glob("cpu/*.cpp"), *(CSRC.glob("cuda/*.cu") if with_cuda else ())]
extension = (CUDAExtension if with_cuda else CppExtension)(
    "yolo._C",
    sorted(map(str, sources)),
    depends=sorted(map(str, [*CSRC.glob("**/*.h"), *CSRC.glob("**/*.cuh")])),
    py_limited_api=True,
    extra_compile_args={
        # no-trapping-math changes no result: it lets the compiler vectorise a choice between two numbers
        "cxx": ["-O3", STABLE_ABI, EXACT["cxx"], "-fno-trapping-math"],
        "nvcc": ["-O3", STABLE_ABI, EXACT["nvcc"], "-DUSE_CUDA"],
    },
)
setup(
    ext_modules=[extension] if compiler else [],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
