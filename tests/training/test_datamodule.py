"""What the loaders are given."""

from functools import partial
from pathlib import Path

import pytest
import torch

from tests.training.running import digits
from yolo.data import Augment, Preprocess
from yolo.training import DetectionData


@pytest.mark.parametrize("cache", ["ram", "disk"])
def test_pictures_are_the_same_kept_or_not(tmp_path: Path, cache: str) -> None:
    """Scenes of 96 pixels on a canvas of 32, zoomed: kept smaller they would be blurred, scored ones are not larger."""
    reader = digits(tmp_path / "scenes", (6, 3, 1), size=(96, 96))
    kept, fresh = (
        DetectionData(
            partial(reader, split="train"), partial(reader, split="val"), Preprocess((32, 32)), Augment(scale=0.5),
            cache=how, cache_dir=str(tmp_path),
        )
        for how in (cache, "none")
    )  # fmt: skip
    for split, size in (("train", 48), ("val", 32)):
        for index in range(3):
            one, other = kept.dataset(split)[index], fresh.dataset(split)[index]
            assert torch.equal(one.image, other.image)
            assert torch.equal(one.boxes, other.boxes)
            assert kept.dataset(split).sample(index).image.shape == (size, size, 3)
