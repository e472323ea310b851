"""Kept annotations are used only while nothing they came from has changed."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data.making import coco, picture, voc, voc_object, write
from yolo.data.formats import Annotated, read_coco, read_darknet, read_voc, read_yolo
from yolo.data.formats import rows as rows_module


def equal(one: Annotated, other: Annotated) -> bool:
    if (one.classes, one.problems, one.category_ids) != (other.classes, other.problems, other.category_ids):
        return False
    for a, b in zip(one.records, other.records, strict=True):
        if (a.image_id, a.path, a.coco_id, a.size) != (b.image_id, b.path, b.coco_id, b.size):
            return False
        for name in ("boxes", "labels", "crowd", "difficult", "area"):
            first, second = getattr(a.truth, name), getattr(b.truth, name)
            if first.dtype != second.dtype or not np.array_equal(first, second):
                return False
    return True


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """One picture with labels in every format, and one without objects."""
    for name in ("a.jpg", "b.jpg"):
        picture(tmp_path / "images" / name)
    write(tmp_path / "labels" / "a.txt", "4 0.5 0.5 0.2 0.2\n0 0.5 0.5 2 -1\n")
    write(tmp_path / "labels" / "b.txt", "")
    write(tmp_path / "list.txt", "images/a.jpg\nimages/b.jpg\nimages/none.jpg\n")
    write(tmp_path / "images" / "a.xml", voc(voc_object("a", (1, 1, 9, 9)) + voc_object("b", (9, 9, 9, 9))))
    coco(tmp_path / "a.json", [{"category_id": 3, "bbox": [1, 1, 5, 5], "iscrowd": 1}])
    return tmp_path


READERS: dict[str, Callable[[Path, Path | None], Annotated]] = {
    "voc": lambda home, cache: read_voc(home / "images", cache_dir=cache),
    "coco": lambda home, cache: read_coco(home / "a.json", home / "images", cache_dir=cache),
    "yolo": lambda home, cache: read_yolo(home / "images", list("abcde"), cache_dir=cache),
    "darknet": lambda home, cache: read_darknet(home / "list.txt", list("abcde"), cache_dir=cache),
}


@pytest.mark.parametrize("name", READERS)
def test_second_start_gives_the_same(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the cache: equal in everything, and no picture is opened."""
    read, cache = READERS[name], home / "cache"
    fresh = read(home, None)
    assert not cache.exists()
    assert equal(read(home, cache), fresh)
    monkeypatch.setattr("yolo.data.formats.files.check_image", None)
    assert equal(read(home, cache), fresh)


def test_no_stale_result(home: Path) -> None:
    """Another class list, and a label of equal length with its time set back (ultralytics PR#26207)."""
    cache, images, label = home / "cache", home / "images", home / "labels" / "a.txt"
    assert read_yolo(images, list("abcde"), cache_dir=cache).records[0].truth.labels.tolist() == [4]
    found = read_yolo(images, ["a", "b"], cache_dir=cache)
    assert "class 4, valid ids are 0 to 1" in [problem.message for problem in found.problems]
    before = label.stat()
    label.write_bytes(label.read_bytes().replace(b"4", b"3"))
    os.utime(label, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read_yolo(images, list("abcde"), cache_dir=cache).records[0].truth.labels.tolist() == [3]
    label.unlink()
    assert read_yolo(images, list("abcde"), cache_dir=cache).records[0].truth.labels.tolist() == []
    write(images / "a.txt", "1 0.5 0.5 0.2 0.2\n")
    assert read_yolo(images, list("abcde"), cache_dir=cache).records[0].truth.labels.tolist() == [1]


def test_new_and_changed_pictures_are_noticed(home: Path) -> None:
    cache = home / "cache"
    for name in ("yolo", "darknet"):
        READERS[name](home, cache)
    picture(home / "images" / "none.jpg")
    assert len(READERS["yolo"](home, cache).records) == 3
    assert len(READERS["darknet"](home, cache).records) == 3
    picture(home / "images" / "a.jpg", 200, 160)
    assert READERS["yolo"](home, cache).records[0].truth.boxes.tolist() == [[80, 64, 120, 96]]


def test_splits_do_not_overwrite_each_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lists over one folder of labels."""
    write(home / "one.txt", "images/a.jpg")
    write(home / "two.txt", "images/b.jpg")
    cache = home / "cache"
    for _ in range(2):
        for name, count in (("one", 1), ("two", 0)):
            found = read_yolo(home / f"{name}.txt", list("abcde"), cache_dir=cache)
            assert [len(record.truth.labels) for record in found.records] == [count]
        monkeypatch.setattr(rows_module, "_read_row", None)  # the second round parses nothing


def test_damaged_cache_is_read_anew(home: Path) -> None:
    cache = home / "cache"
    fresh = READERS["yolo"](home, cache)
    (kept,) = (cache / "annotations").iterdir()
    for data in (b"", b"PK\x03\x04", kept.read_bytes()[:-100], os.urandom(2000)):
        kept.write_bytes(data)
        assert equal(READERS["yolo"](home, cache), fresh)
    assert [path.suffix for path in (cache / "annotations").iterdir()] == [".npz"]


def test_cache_that_cannot_be_written_is_no_error(home: Path) -> None:
    blocked = write(home / "file", "")
    assert len(READERS["yolo"](home, blocked).records) == 2
