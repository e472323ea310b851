"""The scenes that ship."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from yolo.data import load_image, read_digits
from yolo.data.formats.digits import CLASSES

SMALL = {"counts": (6, 2, 3), "size": (96, 128), "digits": (2, 4), "scale": (16, 30)}


def test_scenes(tmp_path: Path) -> None:
    """Counts, sizes and boxes are as asked for; digits do not touch; all is found in one folder."""
    for split, count in (("train", 6), ("val", 2), ("test", 3)):
        found = read_digits(tmp_path, split, **SMALL)  # type: ignore[arg-type]
        assert found.classes == list(CLASSES)
        assert found.problems == []
        assert len(found.records) == count
        for record in found.records:
            assert load_image(record.path).shape == (96, 128, 3)
            boxes = record.truth.boxes
            assert 1 <= len(boxes) <= 4
            assert (boxes >= 0).all()
            assert (boxes <= (128, 96, 128, 96)).all()
            heights = boxes[:, 3] - boxes[:, 1]
            assert ((heights >= 16) & (heights <= 30)).all()
            for index, box in enumerate(boxes):
                others = np.delete(boxes, index, axis=0)
                apart = (others[:, 0] >= box[2]) | (others[:, 2] <= box[0])
                assert (apart | (others[:, 1] >= box[3]) | (others[:, 3] <= box[1])).all()
    assert len(list(tmp_path.iterdir())) == 1


def test_seed_decides(tmp_path: Path) -> None:
    """The same seed gives the same files anywhere; another one others, in another folder."""
    first = read_digits(tmp_path / "a", **SMALL)  # type: ignore[arg-type]
    again = read_digits(tmp_path / "b", **SMALL)  # type: ignore[arg-type]
    other = read_digits(tmp_path / "a", seed=1, **SMALL)  # type: ignore[arg-type]
    for one, two, three in zip(first.records, again.records, other.records, strict=True):
        assert Path(one.path).read_bytes() == Path(two.path).read_bytes()
        assert Path(one.path).read_bytes() != Path(three.path).read_bytes()
        assert np.array_equal(one.truth.boxes, two.truth.boxes)
    assert len(list((tmp_path / "a").iterdir())) == 2


def test_digits_stand_out(tmp_path: Path) -> None:
    """Inside of a box pixels vary much more than a few pixels around it."""
    found = read_digits(tmp_path, **SMALL)  # type: ignore[arg-type]
    for record in found.records:
        image = load_image(record.path).astype(float).mean(axis=2)
        for x1, y1, x2, y2 in record.truth.boxes.astype(int):
            inside = image[y1:y2, x1:x2]
            assert np.ptp(inside) > 50


def _read(folder: str) -> int:
    return len(read_digits(folder, **SMALL).records)  # type: ignore[arg-type]


def test_two_processes_at_once(tmp_path: Path) -> None:
    """Both get the scenes, nothing half-made stays."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_read, [str(tmp_path)] * 2) == [6, 6]
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["digits"]


def test_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="splits train, val, test, got 'valid'"):
        read_digits(tmp_path, "valid")
    with pytest.raises(ValueError, match="10 classes, got 1 names"):
        read_digits(tmp_path, classes=["a"])
    with pytest.raises(ValueError, match="do not fit a scene of 160x50"):
        read_digits(tmp_path, size=(50, 160))
    assert list(tmp_path.iterdir()) == []
