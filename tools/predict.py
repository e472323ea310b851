"""Find objects, or name pictures: python tools/predict.py weights=best.ckpt source=pictures/ (configs/predict.yaml)."""

from yolo.cli import answer, main

if __name__ == "__main__":
    answer("predict", __doc__)

import logging
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from yolo.checkpoint import ClassifierModel
from yolo.classify import Namer, write_names
from yolo.deploy import open_any
from yolo.inference import with_preprocess
from yolo.predict import Predictor, shots
from yolo.report import write_predictions

log = logging.getLogger("yolo.predict")


@main("predict")
def predict(cfg: DictConfig) -> None:
    """Find objects in pictures, folders, globs, videos and cameras, or name them with a classifier."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    options = OmegaConf.to_container(cfg, resolve=True)
    model = with_preprocess(
        open_any(cfg.weights, cfg.cfg, cfg.download, device=cfg.device), **options["preprocess"]
    )
    source = shots(options["source"], cfg.frames, model.preprocess.rounding)
    common = {key: options[key] for key in ("batch_size", "device", "precision")}
    if isinstance(model, ClassifierModel):
        for line in write_names(Namer(model, top=cfg.top, **common).stream(source), folder / "classes.json"):
            sys.stdout.write(f"{line}\n")
        return
    predictor = Predictor(
        model,
        score_threshold=cfg.score_threshold,
        iou_threshold=cfg.nms,
        max_detections=cfg.max_detections,
        class_agnostic=cfg.class_agnostic,
        **common,
    )
    saves = {key: options[key] for key in ("save_images", "save_txt", "save_confidence", "save_crops")}
    done = write_predictions(predictor.stream(source), predictor.classes, folder, **saves)
    log.info(
        "detections: %d, in pictures: %d (unreadable: %d), in %s",
        done.detections,
        done.pictures,
        len(done.problems),
        folder,
    )
    if done.pictures and not done.detections:
        log.info(
            "nothing scores over score_threshold=%s: a lower one shows weaker detections", cfg.score_threshold
        )
    if done.pictures == 0:
        raise ValueError(f"not one picture could be read, the first: {done.problems[0]}")


if __name__ == "__main__":
    predict()
