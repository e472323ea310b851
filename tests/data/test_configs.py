"""What configs/data and configs/augment say can be built."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from hydra.utils import instantiate

from tests.helpers.paths import shared
from yolo.data import Augment, DetectionDataset, Preprocess, collate

CONFIGS = Path(__file__).parents[2] / "configs"
OWN = ("voc_folder", "coco_json", "yolo_txt", "darknet", "imagefolder")
COUNTS = {
    "bccd": (292, 72, 72),
    "cards": (296, 67, 67),
    "chess": (202, 87, 29),
    "coco228": (128, 50, 50),
    "deeppcb": (1000, 500, 500),
    "fod": (2820, 940, 940),
}


def build(overrides: list[str]) -> dict[str, Any]:
    """The data and augment parts of configs/train.yaml."""
    with initialize_config_module("yolo.configs", version_base="1.3"):
        cfg = compose("train", overrides=overrides)
    return {name: instantiate(cfg[name], _convert_="all") for name in ("data", "augment")}


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "data").glob("*.yaml")))
def test_data(name: str, tmp_path: Path) -> None:
    """Three splits that read; as many names as classes; the counts that the sets' descriptions give."""
    if name == "base":
        return
    overrides = [f"data={name}", f"data.cache_dir={tmp_path}"]
    if name in OWN:
        overrides += [f"data.root={tmp_path / 'none'}", "data.num_classes=3"]
    elif name == "digits":
        overrides += ["data.counts=[3,2,2]"]
    elif name in COUNTS:
        overrides += [f"data.root={shared('data', name)}"]
    data = build(overrides)["data"]
    assert data["name"] == name
    assert data["classes"] is None or len(data["classes"]) == data["num_classes"]
    if name in ("voc", "coco", *OWN):
        for split in ("train", "val", "test"):
            with pytest.raises(ValueError, match=r"data\.root|cannot be read"):
                data[split]()
        return
    found = {split: data[split]() for split in ("train", "val", "test")}
    assert tuple(len(one.records) for one in found.values()) == COUNTS.get(name, (3, 2, 2))
    for one in found.values():
        assert one.classes == data["classes"]
        assert len({record.image_id for record in one.records}) == len(one.records)


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "augment").glob("*.yaml")))
def test_augment(name: str, tmp_path: Path) -> None:
    """Each gives batches of the same shape; only none varies nothing."""
    parts = build([f"augment={name}", "data=digits", f"data.cache_dir={tmp_path}", "data.counts=[6,1,1]"])
    augment = parts["augment"]
    assert isinstance(augment, Augment)
    assert augment.active == (name != "none")
    records = parts["data"]["train"]().records
    dataset = DetectionDataset(records, Preprocess((64, 96)), augment)
    batch = collate([dataset[index] for index in range(6)])
    assert batch.images.shape == (6, 3, 64, 96)
    assert len(batch.meta) == (6 if name == "none" else 0)
    again = collate([dataset[index] for index in range(6)])
    assert np.array_equal(batch.images, again.images)
