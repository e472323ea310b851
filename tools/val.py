"""Score a detector: python tools/val.py weights=best.ckpt data=bccd split=test (configs/val.yaml)."""

from yolo.cli import answer, main

if __name__ == "__main__":
    answer("val", __doc__)

import logging
import time
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from yolo.data import Annotated
from yolo.deploy import open_model
from yolo.evaluate import evaluate
from yolo.inference import with_preprocess
from yolo.report import draw_results, evaluation_tables, write_metrics, write_results
from yolo.report.page import never_fatal
from yolo.report.run import evaluation_report
from yolo.report.sections import Started

log = logging.getLogger("yolo.val")


def read(data: DictConfig, split: str) -> Annotated:
    """The pictures and objects of a split of a data set."""
    splits = [name for name in ("train", "val", "test") if data.get(name) is not None]
    if split not in splits:
        raise ValueError(f"data set {data.name} has the splits {', '.join(splits)}, got split={split}")
    return instantiate(data[split], _convert_="all")()


@main("val")
def val(cfg: DictConfig) -> None:
    """Score a detector by VOC, Darknet and COCO rules."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    model = with_preprocess(
        open_model(cfg.weights, cfg.cfg, cfg.download, device=cfg.device),
        **OmegaConf.to_container(cfg.preprocess),
    )
    annotated = read(cfg.data, cfg.split)
    began = time.perf_counter()
    report, found, records = evaluate(
        model,
        annotated,
        **cfg.metric,
        match=cfg.match,
        batch_size=cfg.batch_size,
        workers=cfg.workers,
        device=cfg.device,
        precision=cfg.precision,
    )
    seconds = time.perf_counter() - began
    report["settings"] |= {"weights": str(cfg.weights), "split": cfg.split}
    console = Console()
    console.width = max(console.width, 100)  # what the columns need; a log file has no width of its own
    console.print(*evaluation_tables(report), sep="\n")
    for note in report["notes"]:
        log.warning("%s", note)
    write_metrics(report, folder / "metrics.json")
    if cfg.save_results:
        write_results(found, records, model.classes, folder / "results.json", annotated.ids_by_name)
    draw_results(
        found, records, model.classes, folder / "pictures", count=cfg.draw, score_threshold=cfg.draw_threshold
    )
    log.info("written: %s", folder / "metrics.json")
    if cfg.report:
        with never_fatal("report"):
            started, split = Started.now(OmegaConf.to_yaml(cfg)), {cfg.split: annotated}
            path = evaluation_report(folder, report, found, records, model.classes, split, started, seconds)
            log.info("report: %s", path)


if __name__ == "__main__":
    val()
