"""COCO JSON: ids are ids, names are names."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.making import coco, picture, write
from tests.helpers.paths import shared
from yolo.data.formats import Annotated, read_coco, read_darknet

CAR = {"category_id": 3, "bbox": [10, 20, 30.5, 40]}
TRAIN = {"category_id": 7, "bbox": [1, 2, 3, 4], "area": 5.5}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    picture(tmp_path / "a.jpg")
    return tmp_path


def codes(found: Annotated) -> list[str]:
    return [problem.code for problem in found.problems]


def test_by_hand(home: Path) -> None:
    """Ids with gaps in any order; x y w h become edges; the stated area is kept."""
    found = read_coco(coco(home / "a.json", [TRAIN, CAR]))
    assert found.classes == ["car", "train"]
    assert found.category_ids == (3, 7)
    record = found.records[0]
    assert (record.image_id, record.coco_id) == ("a.jpg", 1)
    assert record.truth.boxes.tolist() == [[1, 2, 4, 6], [10, 20, 40.5, 60]]
    assert record.truth.labels.tolist() == [1, 0]
    assert record.truth.area.tolist() == [5.5, 30.5 * 40]


def test_names_decide_not_positions(home: Path) -> None:
    """Train and val list the same categories in another order and with other ids (mmdetection#1732)."""
    other = [{"id": 1, "name": "car"}, {"id": 2, "name": "train"}]
    val = coco(home / "val.json", [{"category_id": 1, "bbox": [1, 1, 9, 9]}], categories=other)
    classes = read_coco(coco(home / "train.json", [CAR, TRAIN])).classes
    assert read_coco(val, classes=classes).records[0].truth.labels.tolist() == [classes.index("car")]


def test_crowd_and_ignore(home: Path) -> None:
    found = read_coco(
        coco(home / "a.json", [CAR, {**TRAIN, "iscrowd": 1}, {**TRAIN, "bbox": [9, 9, 9, 9], "ignore": 1}])
    )
    assert found.records[0].truth.crowd.tolist() == [False, True, False]
    assert found.records[0].truth.difficult.tolist() == [False, False, True]
    assert codes(found) == ["ignore"]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"category_id": 4, "bbox": [1, 1, 5, 5]}, "class"),
        ({"category_id": None, "bbox": [1, 1, 5, 5]}, "class"),
        ({"category_id": 3, "bbox": [1, 1, 0, 5]}, "degenerate"),
        ({"category_id": 3, "bbox": [1, 1, -4, 5]}, "degenerate"),
        ({"category_id": 3, "bbox": [101, 1, 4, 5]}, "outside"),
        ({"category_id": 3, "bbox": [1, 1, 4]}, "row"),
        ({"category_id": 3, "bbox": [1, "1", 4, 5]}, "row"),
        ({"category_id": 3}, "row"),
        ({"category_id": 3, "bbox": [1, 1, 4, 5], "image_id": 9}, "no-image"),
    ],
)
def test_bad_annotations(home: Path, row: dict[str, object], code: str) -> None:
    path = coco(home / "a.json", [CAR, row])
    found = read_coco(path)
    assert codes(found) == [code]
    assert len(found.records[0].truth.labels) == 1
    with pytest.raises(ValueError, match="1 problems in the data"):
        read_coco(path, on_error="raise")


def test_the_same_box_twice(home: Path) -> None:
    found = read_coco(coco(home / "a.json", [CAR, TRAIN, CAR]))
    assert [(p.code, p.lost, p.message) for p in found.problems] == [
        ("duplicate", False, "box (10, 20, 40.5, 60) is the same as in object 1")
    ]
    assert found.records[0].truth.labels.tolist() == [0, 1]


def test_names_outside_the_list(home: Path) -> None:
    found = read_coco(coco(home / "a.json", [CAR, TRAIN]), classes=["train"])
    assert found.problems[0].message == "annotation 0: category 3 'car' is not one of the 1 classes"
    assert found.category_ids == (7,)
    with pytest.raises(ValueError, match="2 class names, but the number of classes is 5"):
        read_coco(coco(home / "a.json", [CAR]), num_classes=5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2", "not JSON"),
        ("[]", "has no list of objects 'images'"),
        ('{"images": [], "annotations": 3, "categories": []}', "has no list of objects 'annotations'"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1}]}', "a category needs an id and a name"),
        (b"\xff\xd8\xff\xe0", "wanted text, this looks like a picture"),
    ],
)
def test_files_that_are_something_else(home: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_coco(write(home / "a.json", content))
    assert str(home / "a.json") in str(caught.value)


def test_two_categories_of_one_name_are_refused(home: Path) -> None:
    with pytest.raises(ValueError, match="category 4 'car' stands there twice"):
        read_coco(coco(home / "a.json", [], categories=[{"id": 3, "name": "car"}, {"id": 4, "name": "car"}]))


def test_pictures_that_cannot_be_used(home: Path) -> None:
    """Missing, leading outside, double, nameless: each is reported, the good one is read."""
    images = [
        {"id": 1, "file_name": "a.jpg"},
        {"id": 2, "file_name": "none.jpg"},
        {"id": 3, "file_name": "../secret.jpg"},
        {"id": 4, "file_name": "a.jpg"},
        {"id": 5},
        {"id": 6, "file_name": "sub\\b.jpg"},
    ]
    picture(home.parent / "secret.jpg")
    picture(home / "sub" / "b.jpg")
    found = read_coco(coco(home / "a.json", [CAR], images=images))
    assert [record.coco_id for record in found.records] == [1, 6]
    assert sorted(codes(found)) == ["duplicate-image", "missing-image", "outside-root", "row"]


def test_several_files(home: Path) -> None:
    """Ids may repeat; the folder tells pictures of the same name apart."""
    for part in ("one", "two"):
        picture(home / part / "a.jpg")
        coco(home / part / "a.json", [CAR])
    found = read_coco([home / "one" / "a.json", home / "two" / "a.json"])
    assert [(record.image_id, record.coco_id) for record in found.records] == [
        ("one/a.jpg", None),
        ("two/a.jpg", None),
    ]


def test_size_in_the_stored_frame(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg", 100, 80, orientation=8)
    found = read_coco(coco(tmp_path / "a.json", [{"category_id": 3, "bbox": [0, 0, 20, 10]}]))
    assert found.records[0].truth.boxes.tolist() == [[0, 80, 10, 100]]  # top left becomes bottom left
    assert codes(found) == ["turned"]


def test_chess() -> None:
    """The stray class, the unused category, the duplicate and the empty picture."""
    root = shared("data", "chess")
    path = root / "train" / "_annotations.coco.json"
    everything = read_coco(path)
    assert len(everything.classes) == 14
    assert len(everything.records) == 202
    names = [name for name in everything.classes if name not in ("pieces", "bishop")]
    found = read_coco(path, classes=names)
    assert [problem.code for problem in found.problems] == ["class", "duplicate"]
    assert sum(len(record.truth.labels) for record in found.records) == 2106
    both = [root / split / "_annotations.coco.json" for split in ("valid", "test")]
    held_out = read_coco(both, classes=names)
    assert len({record.image_id for record in held_out.records}) == 87


def test_coco228_is_the_same_in_both_formats() -> None:
    """Darknet's six digits of a coordinate and the JSON agree; crowds are left out there."""
    root = shared("data", "coco228")
    for split in ("coco128_train", "tiny_train", "tiny_val"):
        lists = read_darknet(root / f"{split}.txt", root / "coco.names")
        file = read_coco(root / "annotations" / f"instances_{split}.json", root / "images")
        by_name = {Path(record.path).name: record.truth for record in file.records}
        assert len(by_name) == len(lists.records)
        assert file.category_ids[0] == 1
        assert file.category_ids[-1] == 90
        for record in lists.records:
            truth = by_name[Path(record.path).name]
            plain = ~truth.crowd
            order = np.lexsort(truth.boxes[plain].round(0).T)
            other = np.lexsort(record.truth.boxes.round(0).T)
            assert sorted(truth.labels[plain]) == sorted(record.truth.labels)
            if len(order) == 1:
                np.testing.assert_allclose(record.truth.boxes[other], truth.boxes[plain][order], atol=0.02)
    assert json.loads((root / "annotations" / "instances_tiny_val.json").read_text())["images"]
