# Two commands do all the set-up on a machine with Python, make and a compiler: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The torch that is installed when none is there yet; any torch from 2.10 will do.
TORCH ?= torch==2.14.1 torchvision==0.29.1

# What `make test` runs; TESTS="" runs everything, also what is slow or needs a GPU.
TESTS ?= -m "not slow and not gpu"

.PHONY: demo test lint docs clean

SOURCES := pyproject.toml setup.py $(wildcard csrc/*.h csrc/*.cpp csrc/cpu/*.cpp csrc/cuda/*.cu csrc/cuda/*.cuh)

$(BIN)/.torch:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "setuptools>=77" wheel
	$(BIN)/python -c "import torch, torchvision" 2>/dev/null || $(BIN)/python -m pip install -q $(TORCH)
	touch $@

# What it takes to train, and what the tests need beyond that.
$(BIN)/.installed: $(BIN)/.torch $(SOURCES)
	$(BIN)/python -m pip install -q --no-build-isolation -e .
	touch $@

$(BIN)/.tested: $(BIN)/.torch $(SOURCES)
	$(BIN)/python -m pip install -q --no-build-isolation -e ".[dev,docs,export]"
	touch $(BIN)/.installed $@

# Bytecode of a module when it is first imported, not of all of torch when it is installed: half a minute.
export PIP_NO_COMPILE ?= 1

demo: $(BIN)/.installed
	$(BIN)/python tools/train.py experiment=demo hydra.run.dir=runs/demo/train
	$(BIN)/python tools/val.py weights=runs/demo/train/best.ckpt data=digits data.counts=[1,150,300] split=test data.cache_dir=.cache draw=8 hydra.run.dir=runs/demo/val
	$(BIN)/python tools/predict.py weights=runs/demo/train/best.ckpt source="'.cache/digits-v2-160x160-1x*/test/*0.jpg'" hydra.run.dir=runs/demo/predict
	@echo "checkpoint: runs/demo/train/best.ckpt"
	@echo "metrics:    runs/demo/val/metrics.json"
	@echo "pictures:   runs/demo/predict/images/"

test: $(BIN)/.tested
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist loadfile $(TESTS)

lint: $(BIN)/.tested
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: $(BIN)/.tested
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site runs .cache *.egg-info yolo/_C*.so
