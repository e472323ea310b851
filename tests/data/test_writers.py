"""Any format from any other: what was read is read again, and what a format cannot hold is said."""

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.data.making import coco, picture, voc, voc_object, write
from tests.helpers.paths import shared
from yolo.data import Annotated, read_coco, read_darknet, read_voc, read_yolo
from yolo.data.writers import Options, convert
from yolo.data.writers.plan import Format, unique_names
from yolo.types import Record, Truth

FORMATS: tuple[Format, ...] = ("yolo", "coco", "voc", "darknet")


def made_up(folder: Path, seed: int = 0, flagged: bool = False) -> dict[str, Annotated]:
    """Two splits with boxes anywhere, fractions and edges among them, and a picture without objects."""
    rng = np.random.default_rng(seed)
    parts = {}
    for split in ("train", "val"):
        records = []
        for number in range(3):
            width, height = (int(side) for side in rng.integers(50, 120, 2))
            path = picture(
                folder / split / f"{number} ä.jpg", width, height, 1 + 5 * (number == 1), seed=number
            )
            if number == 1:  # the EXIF turn swaps the sides
                width, height = height, width
            count = 0 if number == 2 else 5
            low = rng.uniform(0, 0.6, (count, 2)) * (width, height)
            high = low + rng.uniform(0.05, 0.4, (count, 2)) * (width, height)
            boxes = np.concatenate([low, high], 1).astype(np.float32)
            boxes[:1, :2] = 0
            boxes[1:2, 2:] = width, height
            none = np.zeros(count, np.bool_)
            crowd, difficult = none.copy(), none.copy()
            if flagged:
                crowd[:1], difficult[1:2] = True, True
            area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
            truth = Truth(boxes, rng.integers(0, 3, count), crowd, difficult, area)
            records.append(Record(path.name, str(path), truth, number * 7 + 1))
        parts[split] = Annotated(records, ["zebra crossing", "<ä & 'b'>", "no"])
    return parts


@pytest.mark.parametrize("form", FORMATS)
def test_boxes_and_names_survive_in_every_format(tmp_path: Path, form: Format) -> None:
    parts = made_up(tmp_path / "from")
    done = convert(parts, form, tmp_path / "to")
    assert (done.pictures, done.boxes) == (6, 20)
    assert done.shift < 1e-5
    renamed = ["3 file names changed, so that all differ"]
    assert done.losses == ([] if form == "coco" else ["6 image ids"]) + renamed
    assert all(Path(record.path).is_file() for part in parts.values() for record in part.records)


@pytest.mark.parametrize(("first", "second"), list(product(FORMATS, FORMATS)))
def test_from_any_format_to_any_other(tmp_path: Path, first: Format, second: Format) -> None:
    parts = made_up(tmp_path / "from", seed=5)
    convert(parts, first, tmp_path / "first")
    between = {split: reader(tmp_path / "first", first, split) for split in parts}
    done = convert(between, second, tmp_path / "second")
    again = {split: reader(tmp_path / "second", second, split) for split in parts}
    assert done.boxes == 20
    for split, part in parts.items():
        assert again[split].classes == part.classes
        np.testing.assert_allclose(rows(again[split]), rows(part), atol=1e-4)


def rows(part: Annotated) -> list[list[float]]:
    """Boxes and labels of all pictures, these by name."""
    records = sorted(part.records, key=lambda record: Path(record.path).name)
    return [row for one in records for row in np.column_stack([one.truth.boxes, one.truth.labels]).tolist()]


def reader(root: Path, form: Format, split: str) -> Annotated:
    classes = ["zebra crossing", "<ä & 'b'>", "no"]
    if form == "voc":
        return read_voc(root, split, classes)
    if form == "coco":
        return read_coco(root / "annotations" / f"{split}.json", root / split)
    if form == "yolo":
        return read_yolo(root / "data.yaml", split=split)
    return read_darknet(root / "obj.data", split=split)


def test_what_a_format_cannot_hold_is_said(tmp_path: Path) -> None:
    parts = made_up(tmp_path / "from", flagged=True)
    assert convert(parts, "coco", tmp_path / "coco").losses == ["3 file names changed, so that all differ"]
    assert "4 crowds written as difficult objects" in convert(parts, "voc", tmp_path / "voc").losses
    left = convert(parts, "yolo", tmp_path / "yolo")
    assert (left.boxes, left.losses[0][:36]) == (12, "8 difficult objects and crowds left ")
    plain = convert(parts, "darknet", tmp_path / "darknet", Options(keep_flagged=True))
    assert (plain.boxes, plain.losses[0]) == (20, "8 difficult objects and crowds written as plain objects")


def test_voc_whole_pixels_and_corners_from_one(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.jpg")
    boxes = np.array([[10.4, 20.4, 30.6, 40.6], [10.2, 20.3, 30.9, 41.2], [5.1, 5.1, 5.3, 9.0]], np.float32)
    flags = np.zeros(3, np.bool_)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    truth = Truth(boxes, np.zeros(3, np.int64), flags, flags, area)
    parts = {"train": Annotated([Record("a.jpg", str(path), truth)], ["cat"])}
    done = convert(parts, "voc", tmp_path / "to", Options(round_corners=True, one_based=True))
    assert done.losses[-2:] == [
        "3 boxes rounded to whole pixels",
        "1 boxes that are the same as another once rounded",
    ]
    text = (tmp_path / "to/Annotations/a.xml").read_text()
    assert "<xmin>11</xmin><ymin>21</ymin><xmax>31</xmax><ymax>41</ymax>" in text
    assert "<xmin>6</xmin><ymin>6</ymin><xmax>6</xmax><ymax>9</ymax>" in text, "one pixel wide, not none"


def test_pictures_of_one_name_get_different_ones() -> None:
    names = unique_names(["/x/a/1.jpg", "/x/b/1.jpg", "/x/b/1.png", "/x/c/A.jpg", "/x/c/a.png", "/x/a/1.jpg"])
    assert list(names.values()) == ["1.jpg", "b_1.jpg", "x_b_1.png", "A.jpg", "c_a.png"]


def test_links_take_no_space(tmp_path: Path) -> None:
    parts = made_up(tmp_path / "from")
    convert(parts, "yolo", tmp_path / "to", Options(link=True))
    source = Path(parts["train"].records[0].path)
    assert (tmp_path / "to/images/train" / source.name).samefile(source)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    kept = write(tmp_path / "to/kept.txt", "mine")
    with pytest.raises(ValueError, match="is not an empty folder: nothing is written over"):
        convert(made_up(tmp_path / "from"), "yolo", tmp_path / "to")
    assert kept.read_text() == "mine"
    with pytest.raises(ValueError, match="format is yolo, coco, voc, darknet, got 'tf'"):
        convert({}, "tf", tmp_path / "new")  # type: ignore[arg-type]


def test_a_picture_with_two_different_annotations_is_refused_in_voc(tmp_path: Path) -> None:
    """Both splits would share one XML file: one of them could not read as it was."""
    path = picture(tmp_path / "from/a.jpg")
    first = coco(path.parent / "one.json", [{"category_id": 3, "bbox": [10, 20, 30, 40]}])
    second = coco(path.parent / "two.json", [{"category_id": 3, "bbox": [11, 20, 30, 40]}])
    parts = {"train": read_coco(first), "val": read_coco(second)}
    with pytest.raises(ValueError, match=r"a\.jpg of train does not read as it was"):
        convert(parts, "voc", tmp_path / "to")
    assert convert(parts, "yolo", tmp_path / "yolo").boxes == 2


def test_category_ids_with_gaps_are_kept(tmp_path: Path) -> None:
    picture(tmp_path / "from/a.jpg")
    part = read_coco(
        coco(tmp_path / "from/train.json", [{"category_id": 7, "bbox": [10, 20, 30, 40], "area": 9}])
    )
    assert convert({"train": part}, "coco", tmp_path / "to").losses == []
    again = read_coco(tmp_path / "to/annotations/train.json", tmp_path / "to/train")
    assert (again.classes, again.category_ids, again.records[0].coco_id) == (["car", "train"], (3, 7), 1)
    assert again.records[0].truth.area.tolist() == [9]
    assert (
        "1 areas that are not those of the boxes" in convert({"train": part}, "yolo", tmp_path / "y").losses
    )


def test_difficult_survives_between_voc_and_coco(tmp_path: Path) -> None:
    picture(tmp_path / "from/a.png")
    hard = voc_object("cat", (1, 2, 30.25, 40), "<difficult>1</difficult>")
    write(tmp_path / "from/a.xml", voc(hard + voc_object("cat", (5, 6, 25, 26))))
    convert({"train": read_voc(tmp_path / "from")}, "coco", tmp_path / "coco")
    part = read_coco(tmp_path / "coco/annotations/train.json", tmp_path / "coco/train")
    convert({"train": part}, "voc", tmp_path / "voc")
    truth = read_voc(tmp_path / "voc", "train").records[0].truth
    assert truth.difficult.tolist() == [True, False]
    assert truth.boxes[0].tolist() == [1, 2, 30.25, 40]


@pytest.mark.parametrize("form", FORMATS)
def test_real_sets(tmp_path: Path, form: Format) -> None:
    root = shared("data")
    sets = {
        "bccd": partial(read_voc, root=root / "bccd", split="test"),
        "chess": partial(read_coco, annotations=root / "chess/test/_annotations.coco.json"),
        "coco228": partial(
            read_coco, root / "coco228/annotations/instances_tiny_val.json", root / "coco228/images"
        ),
    }
    for name, read in sets.items():
        part = read()
        done = convert({"val": part}, form, tmp_path / name, Options(link=True))
        flagged = sum(int((record.truth.crowd | record.truth.difficult).sum()) for record in part.records)
        boxes = sum(len(record.truth.labels) for record in part.records)
        assert done.boxes == boxes - (flagged if form in ("yolo", "darknet") else 0)
        assert done.shift < 1e-4
