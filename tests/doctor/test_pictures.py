"""Pictures: damaged, turned, misnamed, doubled, leaking from one split into another."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.data.making import picture, write
from tests.doctor.sets import ROW, diagnose, of, yolo_set
from yolo.data import load_image
from yolo.doctor.pictures import kind_of, look, look_at_all, phash, suffix_fits


def test_a_sound_set_has_no_findings(tmp_path: Path) -> None:
    rows = {"a.png": ROW, "b.png": ROW.replace("0 0.5", "1 0.2")}
    diagnosis = diagnose(yolo_set(tmp_path, {"train": rows, "val": {"c.png": ROW + rows["b.png"]}}))
    assert diagnosis.findings == []
    assert diagnosis.splits["train"].boxes == 2
    assert diagnosis.usage["dog"].boxes == {"train": 1, "val": 1}


def test_cut_and_broken_pictures_cost_data_and_are_told_apart(tmp_path: Path) -> None:
    source = yolo_set(tmp_path, {"train": {"a.jpg": ROW, "b.jpg": ROW, "c.png": ROW, "d.jpg": ROW}})
    cut = tmp_path / "images/train/a.jpg"
    cut.write_bytes(cut.read_bytes()[:-500])
    broken = tmp_path / "images/train/b.jpg"
    broken.write_bytes(b"no picture at all")
    (tmp_path / "images/train/c.png").write_bytes(b"")
    diagnosis = diagnose(source)
    assert [finding.file for finding in of(diagnosis, "truncated")] == [str(cut)]
    assert [Path(finding.file).name for finding in of(diagnosis, "unreadable")] == ["b.jpg", "c.png"]
    assert len(diagnosis.lost) == 3
    assert diagnosis.splits["train"].pictures == 1


def test_damage_inside_a_file_that_ends_well_is_found_by_decoding(tmp_path: Path) -> None:
    """The readers look at headers and end marks; only decoding shows this."""
    source = yolo_set(tmp_path, {"train": {"a.png": ROW, "b.png": ROW}})
    path = tmp_path / "images/train/a.png"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    path.write_bytes(bytes(data))
    diagnosis = diagnose(source)
    (finding,) = of(diagnosis, "truncated")
    assert (finding.file, finding.lost) == (str(path), True)


def test_exif_turn_and_wrong_extension_cost_nothing(tmp_path: Path) -> None:
    source = yolo_set(tmp_path, {"train": {"a.jpg": ROW, "b.jpg": ROW}})
    picture(tmp_path / "images/train/a.jpg", orientation=6)
    Image.fromarray(np.random.default_rng(9).integers(0, 256, (80, 100, 3), np.uint8)).save(
        tmp_path / "images/train/b.jpg", "PNG"
    )
    diagnosis = diagnose(source)
    assert [finding.message for finding in of(diagnosis, "exif")] == ["EXIF orientation 6"]
    assert [finding.message for finding in of(diagnosis, "extension")] == ["the file is PNG"]
    assert diagnosis.lost == []


def test_copies_within_a_split_and_leaks_between_splits(tmp_path: Path) -> None:
    splits = {"train": {"a.png": ROW, "b.png": ROW}, "val": {"c.png": ROW, "d.png": ROW, "e.png": ROW}}
    source = yolo_set(tmp_path, splits)
    train, val = tmp_path / "images/train", tmp_path / "images/val"
    smooth = np.random.default_rng(1).integers(0, 256, (8, 10, 3), np.uint8)
    image = cv2.resize(smooth, (200, 160), interpolation=cv2.INTER_CUBIC)
    Image.fromarray(image).save(train / "a.png")
    shutil.copy(train / "a.png", train / "b.png")
    shutil.copy(train / "a.png", val / "c.png")
    smaller = cv2.convertScaleAbs(
        cv2.resize(image, (120, 96), interpolation=cv2.INTER_AREA), alpha=0.9, beta=12
    )
    Image.fromarray(smaller).save(val / "d.png")
    diagnosis = diagnose(source)
    assert [finding.file for finding in of(diagnosis, "copy")] == [str(train / "b.png")]
    leaks = {Path(finding.file).name: finding for finding in of(diagnosis, "leak")}
    assert sorted(leaks) == ["c.png", "d.png"]
    assert leaks["c.png"].other == leaks["d.png"].other == str(train / "a.png")
    assert "a copy of" in leaks["c.png"].message
    assert "nearly" in leaks["d.png"].message


def test_one_picture_in_two_splits(tmp_path: Path) -> None:
    yolo_set(tmp_path, {"train": {"a.png": ROW, "b.png": ROW}, "val": {"c.png": ROW}})
    write(tmp_path / "val.txt", "images/train/a.png\nimages/val/c.png\n")
    source = write(
        tmp_path / "data.yaml", "train: images/train\nval: val.txt\ntest: images/val\nnames: [cat, dog]\n"
    )
    diagnosis = diagnose(source)
    (overlap,) = of(diagnosis, "overlap")
    assert (overlap.split, Path(overlap.file).name, overlap.level) == ("val", "a.png", "warning")
    (shared,) = of(diagnosis, "shared")
    assert (shared.message, shared.level) == ("1 of the 1 pictures of test are in val too", "note")
    assert of(diagnosis, "leak") == []


@pytest.mark.parametrize("quality", [95, 50])
def test_the_hash_survives_scaling_compression_and_brightness(tmp_path: Path, quality: int) -> None:
    smooth = np.random.default_rng(3).integers(0, 256, (12, 12, 3), np.uint8)
    image = cv2.resize(smooth, (240, 240), interpolation=cv2.INTER_CUBIC)
    Image.fromarray(image).save(tmp_path / "a.png")
    changed = cv2.convertScaleAbs(cv2.resize(image, (170, 170)), alpha=0.8, beta=20)
    Image.fromarray(changed).save(tmp_path / "b.jpg", quality=quality)
    Image.fromarray(np.ascontiguousarray(image[:, ::-1])).save(tmp_path / "c.png")
    a, b, c = (look(str(tmp_path / name)).hash for name in ("a.png", "b.jpg", "c.png"))
    assert (a ^ b).bit_count() <= 5
    assert (a ^ c).bit_count() > 16
    assert 0 <= a < 1 << 64


def test_flat_pictures_are_not_taken_for_each_other(tmp_path: Path) -> None:
    source = yolo_set(tmp_path, {"train": {"a.png": ROW}, "val": {"b.png": ROW}})
    for path, value in (("images/train/a.png", 20), ("images/val/b.png", 230)):
        Image.fromarray(np.full((80, 100, 3), value, np.uint8)).save(tmp_path / path)
    assert phash(np.full((32, 32), 20, np.uint8)) == phash(np.full((32, 32), 230, np.uint8))
    assert of(diagnose(source), "leak") == []


def test_looks_are_the_same_on_any_number_of_threads(tmp_path: Path) -> None:
    paths = [str(picture(tmp_path / f"{number}.jpg", seed=number)) for number in range(6)]
    calls: list[int] = []
    one, four = look_at_all(paths, 1), look_at_all([*paths, paths[0]], 4, lambda: calls.append(1))
    assert [found.hash for found in one.values()] == [found.hash for found in four.values()]
    assert list(four) == paths
    assert len(calls) == 6


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp", "a.tif", "a.gif", "a.ppm"])
def test_kinds_are_told_by_the_first_bytes(tmp_path: Path, name: str) -> None:
    path = picture(tmp_path / name)
    kind = kind_of(path.read_bytes())
    assert kind
    assert suffix_fits(str(path), kind)
    assert not suffix_fits(str(path.with_suffix(".xyz")), kind)
    assert load_image(path).shape == (80, 100, 3)


def test_unknown_bytes_fit_any_name() -> None:
    assert kind_of(b"PK\x03\x04") == ""
    assert suffix_fits("a.jpg", "")
