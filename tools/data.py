"""Check, convert or draw a data set: python tools/data.py check data=bccd (configs/data.yaml)."""

from yolo.cli import answer, main

if __name__ == "__main__":
    answer("data", __doc__, verbs=("check", "convert", "show"))

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from yolo.data import Annotated
from yolo.data.writers import Options, convert
from yolo.doctor import (
    diagnosis_tables,
    draw_samples,
    examine,
    open_source,
    read_all,
    splits_of,
    uncarried,
    write_json,
    write_page,
)
from yolo.doctor.source import Reader

log = logging.getLogger("yolo.data.tool")


def open_data(cfg: DictConfig) -> tuple[str, dict[str, Reader]]:
    """Name and readers of what ``source`` or ``data`` says."""
    if cfg.source is not None:
        return str(cfg.source), open_source(cfg.source, allow_outside=cfg.allow_outside)
    return str(cfg.data.name), splits_of(instantiate(cfg.data, _convert_="all"))


def check(cfg: DictConfig, folder: Path) -> bool:
    """Report everything that is wrong; whether training would lose nothing."""
    name, readers = open_data(cfg)
    with ExitStack() as stack:
        readers_log = logging.getLogger("yolo.data.formats")  # the report says it all
        stack.callback(readers_log.setLevel, readers_log.level)
        readers_log.setLevel(logging.ERROR)
        bar = stack.enter_context(Progress(console=Console(stderr=True)))

        def track(total: int) -> Callable[[], object]:
            task = bar.add_task("pictures", total=total)
            return lambda: bar.advance(task)

        diagnosis = examine(
            name,
            readers,
            instantiate(cfg.preprocess, _convert_="all"),
            instantiate(cfg.limits, _convert_="all"),
            threads=cfg.workers,
            track=track,
        )
    console = Console()
    console.width = max(console.width, 100)  # what the columns need; a log file has no width of its own
    for part in diagnosis_tables(diagnosis, cfg.shown):
        console.print(part, soft_wrap=isinstance(part, str), highlight=False)
    write_json(diagnosis, folder / "check.json")
    write_page(diagnosis, folder / "check.html", cfg.workers)
    log.info("written: %s, %s", folder / "check.json", folder / "check.html")
    return not diagnosis.lost


def rewrite(cfg: DictConfig) -> None:
    """Write the set in another format and say what it does not hold."""
    if cfg.output is None:
        raise ValueError("convert needs output=..., the folder of the new set")
    if cfg.pictures not in ("copy", "link"):
        raise ValueError(f"pictures is copy or link, got {cfg.pictures!r}")
    name, readers = open_data(cfg)
    parts = read_all(readers)
    options = Options(cfg.pictures == "link", cfg.keep_flagged, cfg.one_based, cfg.round_corners)
    done = convert(parts, cfg.format, Path(cfg.output), options)
    lost = sum(len(part.lost) for part in parts.values())
    problems = [f"{lost} problems of {name} itself (check lists them)"] if lost else []
    for loss in [*problems, *done.losses, *uncarried(readers, parts)]:
        log.warning("not in %s: %s", cfg.output, loss)
    log.info(
        "written and read again: %d pictures, %d boxes, no corner moved by more than %.2g pixels",
        done.pictures, done.boxes, done.shift,
    )  # fmt: skip
    log.info("to use it: python tools/train.py %s", training_options(cfg.format, Path(cfg.output), parts))


def training_options(form: str, root: Path, parts: Mapping[str, Annotated]) -> str:
    """What makes train.py use a converted set."""
    classes = next(iter(parts.values())).classes
    data = {"yolo": "yolo_txt", "coco": "coco_json", "voc": "voc_folder", "darknet": "darknet"}[form]
    words = [f"data={data}", f"data.root={root}", f"data.num_classes={len(classes)}"]
    if form == "voc" and sorted(classes) != classes:  # the files do not say which class is the first
        names = ",".join("'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'" for name in classes)
        words.append(f'"data.classes=[{names}]"')
    return " ".join(words)


def show(cfg: DictConfig, folder: Path) -> None:
    """Draw pictures as they are and as training sees them."""
    name, readers = open_data(cfg)
    if cfg.split not in readers:
        raise ValueError(f"data set {name} has the splits {', '.join(readers)}, got split={cfg.split}")
    part = read_all({cfg.split: readers[cfg.split]})[cfg.split]
    drawn = list(
        draw_samples(
            part.records,
            part.classes,
            instantiate(cfg.preprocess, _convert_="all"),
            instantiate(cfg.augment, _convert_="all"),
            folder / cfg.split,
            count=cfg.count,
            versions=cfg.versions,
            seed=cfg.seed,
        )
    )
    log.info("drawn: %d sheets in %s", len(drawn), folder / cfg.split)


@main("data")
def data(cfg: DictConfig) -> None:
    """Check a data set, convert it, show its pictures."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    if cfg.verb == "convert":
        rewrite(cfg)
    elif cfg.verb == "show":
        show(cfg, folder)
    elif not check(cfg, folder):
        sys.exit(1)


if __name__ == "__main__":
    data()
