"""Write a model as ONNX, TensorRT engine or Triton repository: python tools/export.py weights=best.ckpt."""

from yolo.cli import answer, main

if __name__ == "__main__":
    answer("export", __doc__)

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from yolo.checkpoint import load_model
from yolo.data import Annotated
from yolo.deploy import (
    TOLERANCES,
    EngineOptions,
    Int8Options,
    Profile,
    Suppression,
    Tolerance,
    Wanted,
    export,
)
from yolo.deploy.pictures import Image, images_of, load_images
from yolo.deploy.report import parity_table, score_table, sensitivity_table, write_report
from yolo.deploy.run_onnx import OnnxRuntime
from yolo.deploy.run_torch import TorchRuntime
from yolo.deploy.score import score
from yolo.inference import choose_device, with_preprocess
from yolo.report.page import never_fatal
from yolo.report.run import export_report
from yolo.report.sections import Started

log = logging.getLogger("yolo.export")
SUFFIXES = {"onnx": ".onnx", "engine": ".engine", "triton": "_triton"}


@main("export")
def run(cfg: DictConfig) -> None:
    """Write a model as ONNX, TensorRT engine or Triton repository, and compare it with PyTorch."""
    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    weights = Path(cfg.weights)
    size = options["size"]
    model = with_preprocess(
        load_model(cfg.weights, cfg.cfg), cfg.preprocess.resize, None if size == "dynamic" else size
    )
    wanted = Wanted(
        precision=cfg.precision,
        rule=Suppression(**options["suppression"]) if cfg.nms else None,
        batch=None if cfg.batch == "dynamic" else int(cfg.batch),
        size=None if size == "dynamic" else model.preprocess.size,
        input_type=cfg.input,
    )
    console = Console()
    console.width = max(console.width, 100)  # what the columns need; a log file has no width of its own
    done = export(
        model,
        Path(cfg.output) if cfg.output else weights.with_name(weights.stem + SUFFIXES.get(cfg.format, "")),
        wanted,
        _pictures(cfg, options["parity"]),
        format=cfg.format,
        opset=cfg.opset,
        source=weights if weights.is_file() else None,
        int8=_int8(cfg, options["int8"], bool(model.ranges)) if cfg.precision == "int8" else None,
        engine=_engine(options["engine"]),
        tolerance=_tolerance(options["parity"], cfg.precision),
        progress=True,
    )
    tables = [sensitivity_table(done)] if done.sensitivity else []
    tables.append(parity_table(done))
    console.print(*tables, sep="\n")
    scores = {}
    if done.passed and cfg.precision == "int8" and "data" in cfg and cfg.int8.evaluate is not None:
        split = _split(cfg, cfg.int8.evaluate)
        runtimes = [TorchRuntime(model, device=choose_device(cfg.int8.device)), OnnxRuntime(done.graph)]
        scores = {runtime.name: score(runtime, split, cfg.int8.match) for runtime in runtimes}
        tables.append(score_table(scores))
        console.print(tables[-1])
    folder = Path(HydraConfig.get().runtime.output_dir)
    write_report(done, scores, folder / "parity.json")
    with never_fatal("report"):
        export_report(folder, done.path, done.passed, tables, Started.now(OmegaConf.to_yaml(cfg)))
    if not done.passed:
        raise ValueError(f"{done.path}: over tolerance, see the table; do not use this file")
    if (
        options["parity"]["source"] is None
        and "data" not in cfg
        and not any(row.detections for row in done.rows)
    ):
        log.info("nothing was found on the built-in pictures: parity.source=pictures/ compares on your own")
    log.info("written: %s", done.path)


def _split(cfg: DictConfig, split: str) -> Annotated:
    """The pictures and objects of a split of ``data=``."""
    if "data" not in cfg or cfg.data.get(split) is None:
        raise ValueError(
            f"precision=int8 needs data=... with the split {split!r}, to calibrate or evaluate on"
        )
    annotated: Annotated = instantiate(cfg.data[split], _convert_="all")()
    return annotated


def _pictures(cfg: DictConfig, parity: dict[str, Any]) -> list[Image]:
    """For the gate: those asked for, else of the data set, else built-in ones."""
    if parity["source"] is None and "data" in cfg:
        records = _split(cfg, "val").records
        return list(load_images([record.path for record in records], parity["count"]))
    return images_of(parity["source"], parity["count"])


def _tolerance(parity: dict[str, Any], precision: str) -> Tolerance:
    given = {
        key: parity[key] for key in ("max_box_px", "max_score", "min_matched") if parity[key] is not None
    }
    return replace(TOLERANCES[precision], **given)


def _int8(cfg: DictConfig, chosen: dict[str, Any], trained: bool) -> Int8Options:
    rest = ("fp16" if cfg.format == "engine" else "fp32") if chosen["rest"] == "auto" else chosen["rest"]
    # a network that was trained for int8 knows its ranges: pictures only show how much each layer suffers
    needed = "data" in cfg or not trained
    paths = [record.path for record in _split(cfg, chosen["split"]).records] if needed else []
    return Int8Options(
        pictures=list(load_images(paths, chosen["probes"] if trained else chosen["count"])),
        method=chosen["method"],
        percentile=chosen["percentile"],
        probes=chosen["probes"],
        max_error=chosen["max_error"],
        keep=tuple(chosen["keep"]),
        rest=rest,
        device=str(choose_device(chosen["device"])),
    )


def _engine(chosen: dict[str, Any]) -> EngineOptions:
    cache = chosen["timing_cache"]
    return EngineOptions(
        kind=chosen["kind"],
        profiles=tuple(
            Profile(*(tuple(profile[key]) for key in ("min", "opt", "max")))
            for profile in chosen["profiles"] or []
        ),
        workspace_mib=chosen["workspace_mib"],
        optimization_level=chosen["optimization_level"],
        targets=tuple(chosen["target"]),
        timing_cache=None if cache is None else Path(cache).expanduser(),
    )


if __name__ == "__main__":
    run()
