"""Labels, boxes and classes: everything that is wrong is found, with the place to look at."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.data.making import coco, picture, voc, voc_object, write
from tests.doctor.sets import ROW, diagnose, of, yolo_set
from yolo.data import read_coco, read_voc
from yolo.doctor import KINDS
from yolo.doctor.classes import alike, same_word

BOTH = ROW + ROW.replace("0 ", "1 ", 1).replace("0.5 0.5", "0.2 0.2")


def one(tmp_path: Path, text: str | None) -> Path:
    return yolo_set(tmp_path, {"train": {"a.png": text, "b.png": BOTH}})


@pytest.mark.parametrize(
    ("rows", "code", "lost"),
    [
        ("0 0.5 0.5 0.25 0", "row", True),
        ("0 1.5 0.5 0.25 0.25", "outside", True),
        ("0 0.9 0.5 0.5 0.25", "clipped", False),
        (ROW + ROW, "duplicate", False),
        (ROW + "0 0.5 0.5 0.251 0.25", "doubled", False),
        (ROW + "1 0.5 0.5 0.251 0.25", "contradiction", False),
        ("7 0.5 0.5 0.25 0.25", "class", True),
        ("", "empty", False),
        (None, "no-label", False),
    ],
)
def test_rows(tmp_path: Path, rows: str | None, code: str, lost: bool) -> None:
    diagnosis = diagnose(one(tmp_path, rows))
    (finding,) = of(diagnosis, code)
    assert (finding.split, finding.lost) == ("train", lost)
    assert "train/a." in finding.file
    assert bool(diagnosis.lost) == lost
    assert code in KINDS


def test_tiny_and_crowded_go_by_the_limits(tmp_path: Path) -> None:
    """On a canvas of 64 a picture of 100x80 is shrunk by 0.64."""
    source = one(tmp_path, ROW + "1 0.2 0.2 0.05 0.05")
    (tiny,) = of(diagnose(source, tiny=3), "tiny")
    assert "the smallest is 2.5 pixels across" in tiny.message
    assert tiny.box is not None
    assert tiny.box == pytest.approx((17.5, 14, 22.5, 18))
    assert of(diagnose(source, tiny=2.5), "tiny") == []
    crowded = of(diagnose(source, crowded=1), "crowded")
    assert [finding.message for finding in crowded] == ["2 objects", "2 objects"]


def test_label_files_without_picture_cost_data(tmp_path: Path) -> None:
    source = one(tmp_path, ROW)
    write(tmp_path / "labels/train/gone.txt", ROW)
    write(tmp_path / "labels/train/classes.txt", "cat\ndog\n")
    (finding,) = of(diagnose(source), "orphan-label")
    assert (finding.file, finding.lost) == (str(tmp_path / "labels/train/gone.txt"), True)


def test_pictures_in_no_list(tmp_path: Path) -> None:
    one(tmp_path, ROW)
    write(tmp_path / "train.txt", "images/train/a.png\nimages/train/missing.png\n")
    source = write(tmp_path / "data.yaml", "train: train.txt\nnames: [cat, dog]\n")
    diagnosis = diagnose(source)
    assert [Path(finding.file).name for finding in of(diagnosis, "unlisted")] == ["b.png"]
    (missing,) = of(diagnosis, "missing-image")
    assert (missing.file, missing.line, missing.lost) == (str(tmp_path / "train.txt"), 2, True)


def test_voc_pictures_without_xml_and_the_reverse(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        picture(tmp_path / f"{name}.png", seed=ord(name))
    write(tmp_path / "a.xml", voc(voc_object("cat", (1, 2, 30, 40))))
    write(tmp_path / "b.xml", "<annotation><object>")
    write(tmp_path / "gone.xml", voc(voc_object("cat", (1, 2, 30, 40))))
    diagnosis = diagnose(tmp_path)
    assert [Path(finding.file).name for finding in of(diagnosis, "unlabelled")] == ["c.png"]
    assert [Path(finding.file).name for finding in of(diagnosis, "unlisted")] == ["b.png"]
    assert [Path(finding.file).name for finding in of(diagnosis, "unreadable-label")] == ["b.xml"]
    assert [Path(finding.file).name for finding in of(diagnosis, "missing-image")] == ["gone.xml"]
    assert len(diagnosis.lost) >= 2


def test_voc_boxes_are_shown_with_their_picture(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png")
    write(tmp_path / "a.xml", voc(voc_object("cat", (5, 6, 5, 6)) + voc_object("cat", (5, 6, 25, 26))))
    (finding,) = of(diagnose(tmp_path), "degenerate")
    assert (finding.picture, finding.box, finding.lost) == (str(path), (5, 6, 5, 6), True)


def test_coco_stray_misspelt_and_unused(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg")
    path = coco(
        tmp_path / "train.json",
        [
            {"category_id": 3, "bbox": [10, 20, 30, 40]},
            {"category_id": 5, "bbox": [60, 20, 30, 40]},
            {"category_id": 3, "bbox": [10, 20, 0, 40]},
        ],
        categories=[
            {"id": number, "name": name} for number, name in ((0, "things"), (3, "car"), (5, "Cars"))
        ],
    )
    diagnosis = diagnose({"train": partial(read_coco, annotations=path, classes=["car", "bus"])})
    (stray,) = of(diagnosis, "class")
    assert "'Cars'" in stray.message
    (degenerate,) = of(diagnosis, "degenerate")
    assert (degenerate.picture, degenerate.box) == (str(tmp_path / "a.jpg"), (10, 20, 10, 60))
    assert str(tmp_path / "a.jpg") in str(degenerate), "a JSON file has no lines: the picture is the place"
    assert [f.message for f in of(diagnosis, "misspelt")] == [
        "'Cars' (1 boxes) is not in the class list; the nearest is car"
    ]
    assert [f.message for f in of(diagnosis, "unused-category")] == [
        "'things' is in the files and used by no box"
    ]
    assert [f.message for f in of(diagnosis, "unused-class")] == ["1 of 2 classes have no box: bus"]


def test_coco_picture_that_the_file_does_not_know(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg")
    picture(tmp_path / "b.jpg", seed=1)
    path = coco(tmp_path / "train.json", [{"category_id": 3, "bbox": [10, 20, 30, 40], "image_id": 1}])
    data = json.loads(path.read_text())
    data["annotations"].append({"id": 9, "image_id": 77, "category_id": 3, "bbox": [1, 1, 5, 5]})
    path.write_text(json.dumps(data))
    diagnosis = diagnose(tmp_path)
    assert [Path(finding.file).name for finding in of(diagnosis, "unlabelled")] == ["b.jpg"]
    assert len(of(diagnosis, "no-image")) == 1


def test_voc_class_outside_the_list(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    write(
        tmp_path / "a.xml", voc(voc_object("helmet", (5, 6, 25, 26)) + voc_object("helmt", (50, 6, 75, 26)))
    )
    diagnosis = diagnose({"train": partial(read_voc, root=tmp_path, classes=["helmet"])})
    assert len(of(diagnosis, "class")) == 1
    assert "the nearest is helmet" in of(diagnosis, "misspelt")[0].message


def test_two_spellings_in_one_list(tmp_path: Path) -> None:
    diagnosis = diagnose(yolo_set(tmp_path, {"train": {"a.png": BOTH}}, names="[stop sign, Stop-Sign]"))
    assert [f.message for f in of(diagnosis, "misspelt")] == [
        "'stop sign' (1 boxes) and 'Stop-Sign' (1 boxes)"
    ]


def test_balance_between_splits(tmp_path: Path) -> None:
    dog = ROW.replace("0 ", "1 ", 1)
    names = "[cat, dog, cow]"
    source = yolo_set(tmp_path, {"train": {"a.png": ROW}, "val": {"b.png": dog}}, names)
    diagnosis = diagnose(source, rare=5)
    assert [f.message for f in of(diagnosis, "untrained")] == ["'dog': no box in train, 1 in val"]
    assert [f.message for f in of(diagnosis, "unscored")] == ["'cat': 1 boxes in train, none held out"]
    assert [f.message for f in of(diagnosis, "rare")] == ["'cat': 1 boxes in train"]
    assert [f.message for f in of(diagnosis, "unused-class")] == ["1 of 3 classes have no box: cow"]


def test_a_split_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    source = yolo_set(tmp_path, {"train": {"a.png": BOTH}})
    source.write_text(source.read_text() + "val: images/nowhere\n")
    diagnosis = diagnose(source)
    (finding,) = of(diagnosis, "unreadable-split")
    assert (finding.split, finding.lost) == ("val", True)
    assert diagnosis.splits["train"].pictures == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("person", "Person", True),
        ("pin-hole", "pin hole", True),
        ("car", "cars", True),
        ("helmet", "helmt", True),
        ("truck1", "truck2", False),
        ("cat", "car", False),
        ("black-king", "black-knight", False),
        ("Screw", "Screwdriver", False),
        ("LuggagePart", "LuggageTag", False),
    ],
)
def test_same_word(one: str, other: str, same: bool) -> None:
    assert same_word(one, other) is same


def test_alike_finds_what_a_stray_name_may_stand_for() -> None:
    assert alike("bishop", ["black-bishop", "white-bishop", "black-king"]) == ["black-bishop", "white-bishop"]
    assert alike("zebra", ["cat", "dog"]) == []
