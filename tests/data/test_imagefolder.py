"""A folder of pictures per class."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from yolo.data import Augment, DetectionDataset, Draw, Preprocess, collate, read_imagefolder


def fill(root: Path, split: str, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        folder = root / split / name
        folder.mkdir(parents=True)
        for index in range(count):
            cv2.imwrite(str(folder / f"{index}.png"), np.full((20, 30 + index, 3), index, np.uint8))


def test_folders_are_classes_by_name(tmp_path: Path) -> None:
    fill(tmp_path, "train", {"dog": 2, "cat": 1, ".hidden": 1})
    fill(tmp_path, "val", {"dog": 1})
    (tmp_path / "train" / "dog" / "notes.txt").write_text("not a picture")
    (tmp_path / "train" / "dog" / "more").mkdir()
    cv2.imwrite(str(tmp_path / "train" / "dog" / "more" / "0.png"), np.zeros((5, 5, 3), np.uint8))
    train, val = read_imagefolder(tmp_path), read_imagefolder(tmp_path, "val", cache_dir=tmp_path / "cache")
    assert train.classes == val.classes == ["cat", "dog"]
    assert [record.image_id for record in train.records] == [
        *("cat/0.png", "dog/0.png", "dog/1.png", "dog/more/0.png")
    ]
    assert [record.truth.labels.tolist() for record in train.records] == [[0], [1], [1], [1]]
    assert train.records[2].truth.boxes.tolist() == [[0, 0, 31, 20]]
    assert [problem.message for problem in val.problems] == ["no picture of this class"]
    kept = read_imagefolder(tmp_path, "val", cache_dir=tmp_path / "cache")
    assert [record.path for record in kept.records] == [record.path for record in val.records]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    fill(tmp_path, "train", {"dog": 1, "cat": 1})
    fill(tmp_path, "val", {"dog": 1, "emu": 1})
    with pytest.raises(ValueError, match="the folder emu is none of the classes cat, dog"):
        read_imagefolder(tmp_path, "val")
    with pytest.raises(ValueError, match=r"2 classes \(cat, dog ...\), expected 3"):
        read_imagefolder(tmp_path, num_classes=3)
    with pytest.raises(ValueError, match=r"no such folder \(data.root/split/class/picture.jpg"):
        read_imagefolder(tmp_path, "test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no folder in it, one for each class"):
        read_imagefolder(tmp_path, "empty", classes_of="empty")
    (tmp_path / "train" / "dog" / "0.png").write_bytes(b"no picture")
    assert len(read_imagefolder(tmp_path).records) == 1
    with pytest.raises(ValueError, match="1 problems in the data"):
        read_imagefolder(tmp_path, on_error="raise")


def test_a_label_survives_any_augmentation(tmp_path: Path) -> None:
    fill(tmp_path, "train", {"a": 3, "b": 3})
    augment = Augment(flip=0.5, scale=0.5, translate=0.3, aspect=0.3, hue=0.1, min_visible=0.0)
    dataset = DetectionDataset(read_imagefolder(tmp_path).records, Preprocess((16, 16), "cover"), augment)
    for epoch in range(5):
        targets = collate([dataset[Draw(index, epoch)] for index in range(6)]).targets
        assert targets.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert targets.image.tolist() == list(range(6))
