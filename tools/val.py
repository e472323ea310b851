"""Score a detector: python tools/val.py weights=best.ckpt data=bccd split=test (configs/val.yaml)."""

import logging
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from yolo.checkpoint import load_model
from yolo.cli import main
from yolo.evaluate import evaluate
from yolo.inference import with_preprocess
from yolo.report import draw_results, evaluation_tables, write_metrics, write_results
from yolo.training import DetectionData

log = logging.getLogger("yolo.val")


@main("val")
def val(cfg: DictConfig) -> None:
    """Score a detector by VOC, Darknet and COCO rules."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    model = with_preprocess(load_model(cfg.weights, cfg.cfg), **OmegaConf.to_container(cfg.preprocess))
    data = DetectionData(preprocess=model.preprocess, augment=None, **instantiate(cfg.data, _convert_="all"))
    report, found, records = evaluate(
        model,
        data.annotated(cfg.split),
        **cfg.metric,
        match=cfg.match,
        batch_size=cfg.batch_size,
        workers=cfg.workers,
        device=cfg.device,
        precision=cfg.precision,
    )
    report["settings"] |= {"weights": str(cfg.weights), "split": cfg.split}
    for table in evaluation_tables(report):
        Console().print(table)
    for note in report["notes"]:
        log.warning("%s", note)
    write_metrics(report, folder / "metrics.json")
    if cfg.save_results:
        write_results(found, records, model.classes, folder / "results.json")
    draw_results(
        found, records, model.classes, folder / "pictures", count=cfg.draw, score_threshold=cfg.draw_threshold
    )
    log.info("written: %s", folder / "metrics.json")


if __name__ == "__main__":
    val()
