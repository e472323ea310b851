"""The first value of a fresh network's loss, on real pictures of every set: its biases start at the prior."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from tests.helpers.paths import shared
from yolo.data import to_float
from yolo.losses import build_loss
from yolo.models import build
from yolo.training import DetectionData
from yolo.types import Batch

CONFIGS = str(Path(__file__).parent.parent.parent / "configs")
MODELS = [f"yolov{name}" for name in ("1", "1_tiny", "2", "2_tiny", "3", "3_spp", "3_tiny", "4", "4_tiny")]
MODELS += ["centernet"]


def first_batch(name: str, cache: Path) -> tuple[int, Batch]:
    """The number of classes of a set, and four of its training pictures, unaugmented, at 320 pixels."""
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        cfg = compose("train", [f"data={name}", f"data.cache_dir={cache}", "preprocess.size=[320,320]"])
    reader = instantiate(cfg.data.train, _convert_="all")
    data = DetectionData(reader, reader, instantiate(cfg.preprocess), None, batch_size=4, workers=0)
    return cfg.data.num_classes, next(islice(data.train_dataloader(), 1))


@pytest.mark.parametrize("name", ["bccd", "cards", "chess", "deeppcb", "fod", "coco228"])
def test_it_is_under_ten(name: str, tmp_path: Path) -> None:
    shared("data", name)
    classes, batch = first_batch(name, tmp_path)
    images = to_float(batch.images)
    found = {}
    for model in MODELS:
        torch.manual_seed(0)
        size = {"image_size": 320} if "v1" in model else {}
        detector = build(model, {"num_classes": classes, "width": 0.125, **size}).train()
        with torch.no_grad():
            terms = build_loss(detector)(detector(images), batch.targets, (320, 320))
        found[model] = float(sum(terms.values()))
    assert {model: value for model, value in found.items() if not value < 10} == {}
