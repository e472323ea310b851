"""Find objects: python tools/predict.py weights=best.ckpt source=pictures/ (configs/predict.yaml)."""

import logging
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from yolo.cli import main
from yolo.deploy import open_model
from yolo.inference import with_preprocess
from yolo.predict import Predictor, shots
from yolo.report import write_predictions

log = logging.getLogger("yolo.predict")


@main("predict")
def predict(cfg: DictConfig) -> None:
    """Find objects in pictures, folders, globs, videos and cameras, and write them down."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    options = OmegaConf.to_container(cfg, resolve=True)
    source = shots(options["source"], cfg.frames)
    predictor = Predictor(
        with_preprocess(
            open_model(cfg.weights, cfg.cfg, cfg.download, device=cfg.device), **options["preprocess"]
        ),
        batch_size=cfg.batch_size,
        score_threshold=cfg.score_threshold,
        iou_threshold=cfg.nms,
        max_detections=cfg.max_detections,
        class_agnostic=cfg.class_agnostic,
        device=cfg.device,
        precision=cfg.precision,
    )
    saves = {key: options[key] for key in ("save_images", "save_txt", "save_confidence", "save_crops")}
    done = write_predictions(predictor.stream(source), predictor.classes, folder, **saves)
    log.info(
        "%d detections in %d pictures, %d unreadable: %s",
        done.detections,
        done.pictures,
        len(done.problems),
        folder,
    )
    if done.pictures == 0:
        raise ValueError(f"not one picture could be read, the first: {done.problems[0]}")


if __name__ == "__main__":
    predict()
