"""Time operators, a model or a training: python tools/benchmark.py ops | model weights=... | train data=..."""

import sys

from yolo.cli import answer
from yolo.cli import main as hydra_tool

if __name__ == "__main__" and sys.argv[1:2] in (["model"], ["train"]):
    answer("benchmark" if sys.argv[1] == "model" else "benchmark_train", __doc__, skip=1)

import argparse
import copy
import json
import math
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from train import build, detection, make_data, trainer_settings

from yolo import models
from yolo.checkpoint import Model
from yolo.data import Preprocess
from yolo.deploy import Runtime, load_detector
from yolo.deploy import benchmark as deployed
from yolo.deploy.pictures import images_of, picture_files, prepare
from yolo.deploy.run_torch import TorchRuntime
from yolo.inference import choose_device
from yolo.ops import benchmark as ops
from yolo.training import quiet
from yolo.training.benchmark import measure_training, speed_table
from yolo.training.distributed import is_first, leave_group, one_launch


def add_ops(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The operators: PyTorch reference, compiled kernels, torchvision."""
    parser = commands.add_parser("ops", help="decode, detect and nms, side by side")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--runs", type=int, default=50, help="calls of which the median is taken")
    parser.set_defaults(call=lambda args: ops.format_rows(ops.benchmark(args.device, args.runs)))


@hydra_tool("benchmark")
def model(cfg: DictConfig) -> None:
    """Time a model from files to detections, stage by stage."""
    if (cfg.weights is None) == (cfg.fresh is None):
        raise ValueError("give either weights=... or fresh=..., the name of a model of yolo.models")
    batches = [int(one) for one in OmegaConf.to_container(cfg.batch)]  # type: ignore[union-attr]
    size = None if cfg.size is None else tuple(cfg.size)
    output = Path(cfg.output or Path(HydraConfig.get().runtime.output_dir) / "timings.json")
    console = Console()
    console.width = max(console.width, 100)
    timings = []
    with tempfile.TemporaryDirectory() as folder:
        files = picture_files(cfg.source, Path(folder))
        runtime = _runtime(cfg, size, files)
        for batch in batches:
            timings.append(deployed.measure(runtime, files, batch, runs=cfg.runs, warm_up=cfg.warm_up))
            # after every size: what was measured stays if the next one fails
            output.write_text(json.dumps(deployed.to_json(timings), indent=1), "utf-8")
    console.print(deployed.timing_table(timings))


def _runtime(cfg: DictConfig, size: tuple[int, int] | None, files: list[str]) -> Runtime:
    options = {"precision": cfg.precision, "mode": cfg.mode, "autotune": cfg.autotune}
    if cfg.weights is not None:
        runtime = load_detector(cfg.weights, device=cfg.device, cfg=cfg.cfg, **options)
        runtime.preprocess = runtime.preprocess if size is None else replace(runtime.preprocess, size=size)
        return runtime
    detector = models.build(cfg.fresh, {}).eval()
    names = [str(index) for index in range(detector.num_classes)]
    fresh = Model(detector, names, Preprocess(size or detector.fixed_size or (416, 416)))
    rule = deployed.busy_rule(fresh, prepare(images_of(files[0], 1), fresh.preprocess), cfg.fresh_candidates)
    return TorchRuntime(fresh, rule, device=choose_device(cfg.device), **options)


@hydra_tool("benchmark_train")
def training(cfg: DictConfig) -> None:
    """Time a training with and without its loader, and the parts of a step."""
    quiet()
    sys.argv.insert(1, "train")  # Lightning starts further processes by this command line
    folder = Path(HydraConfig.get().runtime.output_dir)
    data = make_data(cfg)
    data.batch_size = cfg.data.batch_size
    module, _ = detection(cfg, data, None)
    ema = build(cfg.callbacks)["ema"]
    endless = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
    endless |= {"max_epochs": -1, "limit_val_batches": 0}

    def make_trainer(callbacks: list[pl.Callback]) -> pl.Trainer:
        settings = trainer_settings(cfg, cfg.trainer.devices, module, math.inf) | endless
        callbacks += [] if ema is None else [copy.deepcopy(ema)]
        return instantiate(settings, callbacks=callbacks, default_root_dir=str(folder), _convert_="all")

    with one_launch():
        speed = measure_training(module, data, make_trainer, cfg.steps, cfg.warm_up)
        first = is_first()
        leave_group()  # all together: one that ends without the others waits for them
    if not first:
        return
    output = Path(cfg.output or folder / "training.json")
    output.write_text(json.dumps(asdict(speed) | {"share": speed.share}, indent=1), "utf-8")
    Console().print(speed_table(speed))


HYDRA = {"model": model, "train": training}


def main(arguments: list[str] | None = None) -> None:
    """Parse, measure, print the table."""
    if arguments is None and sys.argv[1:2] and sys.argv[1] in HYDRA:
        HYDRA[sys.argv.pop(1)]()
        return
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    add_ops(commands)
    commands.add_parser("model", help="a whole model, stage by stage (model --help has the options)")
    commands.add_parser(
        "train", help="a training, with and without its loader (train --help has the options)"
    )
    args = parser.parse_args(arguments)
    sys.stdout.write(args.call(args) + "\n")


if __name__ == "__main__":
    main()
