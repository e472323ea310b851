"""VOC XML: what the files of the world look like."""

import time
from pathlib import Path

import numpy as np
import pytest

from tests.data.making import picture, voc, voc_object, write
from tests.helpers.paths import shared
from yolo.data.formats import Annotated, read_voc


def read(tmp_path: Path, text: str | bytes, **options: object) -> Annotated:
    """A set of one picture and one file."""
    if not (tmp_path / "a.jpg").exists():
        picture(tmp_path / "a.jpg")
    write(tmp_path / "a.xml", text)
    return read_voc(tmp_path, **options)  # type: ignore[arg-type]


def codes(found: Annotated) -> list[tuple[str, int]]:
    return [(problem.code, problem.line) for problem in found.problems]


def test_by_hand(tmp_path: Path) -> None:
    """Tags in any order, optional ones missing, corners with fractions."""
    box = "<bndbox><xmax>60</xmax><xmin>10</xmin><ymax>70</ymax><ymin>20.25</ymin></bndbox>"
    other = f"<object>{box}<name>b</name></object>"
    found = read(tmp_path, voc(voc_object("a", (1, 2, 30, 40), "<difficult>1</difficult>") + other))
    assert found.classes == ["a", "b"]
    assert found.problems == []
    record = found.records[0]
    assert record.image_id == "a.jpg"
    assert record.truth.boxes.tolist() == [[1, 2, 30, 40], [10, 20.25, 60, 70]]
    assert record.truth.boxes.dtype == np.float32
    assert record.truth.labels.tolist() == [0, 1]
    assert record.truth.difficult.tolist() == [True, False]
    assert record.truth.area.tolist() == [29 * 38, 50 * 49.75]


def test_one_based_corners(tmp_path: Path) -> None:
    """VOC proper: the first pixel is 1 and the last one is included, so a full picture is 1 1 W H."""
    found = read(tmp_path, voc(voc_object("a", (1, 1, 100, 80))), one_based=True)
    assert found.records[0].truth.boxes.tolist() == [[0, 0, 100, 80]]
    found = read(tmp_path, voc(voc_object("a", (5, 5, 5, 5))), one_based=True)
    assert found.records[0].truth.boxes.tolist() == [[4, 4, 5, 5]]  # one pixel


def test_several_boxes_in_one_object(tmp_path: Path) -> None:
    box = "<bndbox><xmin>{0}</xmin><ymin>5</ymin><xmax>{1}</xmax><ymax>9</ymax></bndbox>"
    boxes = "".join(box.format(x, x + 10) for x in (1, 20, 50))
    found = read(tmp_path, voc(f"<object><name>a</name>{boxes}</object>"))
    assert found.records[0].truth.boxes[:, 0].tolist() == [1, 20, 50]


def test_parts_and_attributes_are_not_objects(tmp_path: Path) -> None:
    """A person's head has a name and a bndbox of its own, below the object."""
    part = voc_object("head", (1, 1, 4, 4)).replace("object>", "part>")
    found = read(tmp_path, voc(voc_object("person", (1, 1, 50, 50), part)))
    assert found.classes == ["person"]
    assert len(found.records[0].truth.labels) == 1


@pytest.mark.parametrize(
    ("corners", "code"),
    [
        ((60, 20, 60, 40), "degenerate"),
        ((60, 20, 50, 40), "degenerate"),
        (("nan", 20, 50, 40), "degenerate"),
        ((1, 1, "inf", 9), "degenerate"),
        ((101, 20, 150, 40), "outside"),
        (("x", 20, 50, 40), "row"),
        (("", 20, 50, 40), "row"),
        (("1_0", 20, 50, 40), "row"),
    ],
)
def test_bad_boxes_are_reported_and_the_good_one_stays(
    tmp_path: Path, corners: tuple[object, ...], code: str
) -> None:
    text = voc(voc_object("a", (1, 2, 30, 40)) + "\n" + voc_object("b", corners))
    found = read(tmp_path, text, classes=["a", "b"])
    assert found.records[0].truth.labels.tolist() == [0]
    assert codes(found) == [(code, 5)]
    assert found.lost == found.problems
    with pytest.raises(ValueError, match=r"(?s)1 problems in the data.*a\.xml:5: "):
        read(tmp_path, text, classes=["a", "b"], on_error="raise")


def test_overhang_is_clipped_and_reported(tmp_path: Path) -> None:
    found = read(tmp_path, voc(voc_object("a", (-3, 2, 104, 40))), on_error="raise")
    assert found.records[0].truth.boxes.tolist() == [[0, 2, 100, 40]]
    assert codes(found) == [("clipped", 4)]


def test_size_comes_from_the_picture(tmp_path: Path) -> None:
    """The size tag may be zero, missing or wrong (HCIILAB/SCUT-HEAD-Dataset-Release#4)."""
    for size, problems in [((0, 0), []), (None, []), ((50, 40), [("size", 3)])]:
        found = read(tmp_path, voc(voc_object("a", (60, 50, 90, 70)), size))
        assert found.records[0].truth.boxes.tolist() == [[60, 50, 90, 70]]
        assert codes(found) == problems


def test_boxes_drawn_before_the_exif_turn(tmp_path: Path) -> None:
    """Stored 100x80, shown 80x100: a file that says 100x80 means the stored frame."""
    picture(tmp_path / "a.jpg", 100, 80, orientation=6)
    found = read(tmp_path, voc(voc_object("a", (0, 0, 20, 10)), (100, 80)))
    assert found.records[0].truth.boxes.tolist() == [[70, 0, 80, 20]]  # top left becomes top right
    assert codes(found) == [("turned", 3)]
    found = read(tmp_path, voc(voc_object("a", (0, 0, 20, 10)), (80, 100)))
    assert found.records[0].truth.boxes.tolist() == [[0, 0, 20, 10]]


def test_class_outside_the_list(tmp_path: Path) -> None:
    text = voc(voc_object("a", (1, 2, 30, 40)) + "\n" + voc_object("c", (1, 2, 30, 41)))
    found = read(tmp_path, text, classes=["b", "a"])
    assert found.records[0].truth.labels.tolist() == [1]
    assert found.problems[0].message == "class 'c' is not one of the 2 classes ['b', 'a']"
    with pytest.raises(ValueError, match="2 class names, but the number of classes is 3"):
        read(tmp_path, text, num_classes=3)


def test_document_types_are_refused(tmp_path: Path) -> None:
    """Entities that grow by ten per line, and one that reads a file."""
    lines = ['<!ENTITY e0 "k">'] + [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10)]
    write(tmp_path / "secret.txt", "LEAK")
    for body in ("".join(lines), '<!ENTITY e9 SYSTEM "secret.txt">', ""):
        text = f"<!DOCTYPE annotation [{body}]>\n" + voc(voc_object("&e9;" if body else "k", (1, 1, 9, 9)))
        for data in (text.encode(), text.encode("utf-16")):
            start = time.monotonic()
            with pytest.raises(
                ValueError, match=r"a\.xml:1: document type definitions \(<!DOCTYPE\) are refused"
            ):
                read(tmp_path, data)
            assert time.monotonic() - start < 1


def test_encodings(tmp_path: Path) -> None:
    text = voc(voc_object("крот", (1, 1, 9, 9)))
    for data in (b"\xef\xbb\xbf" + text.encode(), text.encode("utf-16"), text.replace("\n", "\r\n").encode()):
        assert read(tmp_path, data).classes == ["крот"]
    latin = '<?xml version="1.0" encoding="iso-8859-1"?>' + voc(voc_object("é", (1, 1, 9, 9)))
    assert read(tmp_path, latin.encode("latin-1")).classes == ["é"]
    unknown = latin.replace("iso-8859-1", "none-such")
    with pytest.raises(ValueError, match=r"a\.xml.*unreadable|unreadable-label"):
        read(tmp_path, unknown)


def test_lists_and_missing_files(tmp_path: Path) -> None:
    """ImageSets with CR and blanks; what is not there is reported at its line."""
    for name in ("one", "two"):
        picture(tmp_path / "JPEGImages" / f"{name}.jpg")
        write(
            tmp_path / "Annotations" / f"{name}.xml",
            voc(voc_object("a", (1, 1, 9, 9)), filename=f"{name}.jpg"),
        )
    write(tmp_path / "Annotations" / "bare.xml", voc(voc_object("a", (1, 1, 9, 9)), filename="bare.jpg"))
    listing = write(
        tmp_path / "ImageSets" / "Main" / "train.txt",
        b"\xef\xbb\xbfone  \r\n\r\ntwo -1\r\nnone\r\nbare\r\n../x\r\n",
    )
    found = read_voc(tmp_path, "train")
    assert [record.image_id for record in found.records] == ["JPEGImages/one.jpg", "JPEGImages/two.jpg"]
    assert [(p.file, p.line, p.code) for p in found.problems] == [
        (str(listing), 4, "missing-label"),
        (str(listing), 5, "missing-image"),
        (str(listing), 6, "outside-root"),
    ]
    with pytest.raises(ValueError, match=r"split 'vall' is neither .* nor the folder"):
        read_voc(tmp_path, "vall")
    with pytest.raises(ValueError, match=r"no such folder .data\.root says"):
        read_voc(tmp_path / "nowhere", "train")
    parts = [tmp_path.name + "/train"] * 1
    assert len(read_voc(tmp_path.parent, parts).records) == 2  # one list of several sets


def test_two_files_for_one_picture_are_both_kept(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg")
    write(tmp_path / "a.xml", voc(voc_object("a", (1, 1, 9, 9))))
    write(tmp_path / "b.xml", voc(voc_object("a", (1, 1, 19, 9))))
    found = read_voc(tmp_path)
    assert len({record.image_id for record in found.records}) == 2
    assert codes(found) == [("duplicate-image", 0)]


def test_unreadable_picture_is_found_while_reading(tmp_path: Path) -> None:
    picture(tmp_path / "b.jpg")
    write(tmp_path / "b.xml", voc(voc_object("a", (1, 1, 9, 9))))
    path = picture(tmp_path / "a.jpg")
    path.write_bytes(path.read_bytes()[:-7])
    found = read(tmp_path, voc(voc_object("a", (1, 1, 9, 9))))
    assert [(p.file, p.code) for p in found.problems] == [(str(path), "unreadable-image")]
    assert len(found.records) == 1


def test_bccd() -> None:
    """The counts of the set's description; its two boxes without area are found."""
    root = shared("data", "bccd")
    for split, pictures, boxes, lost in [
        ("train", 205, 2713, 0),
        ("trainval", 292, 3941, 2),
        ("test", 72, 945, 0),
    ]:
        found = read_voc(root, split, ["Platelets", "RBC", "WBC"])
        assert len(found.records) == pictures
        if split != "train":
            assert sum(len(record.truth.labels) for record in found.records) == boxes
            assert [Path(problem.file).stem for problem in found.lost] == [
                "BloodImage_00338",
                "BloodImage_00343",
            ][:lost]


@pytest.mark.parametrize(("name", "splits", "classes"), [("cards", (296, 67), 6), ("fod", (2820, 940), 31)])
def test_other_sets(name: str, splits: tuple[int, int], classes: int) -> None:
    root = shared("data", name)
    for split, pictures in zip(("train", "test" if name == "cards" else "val"), splits, strict=True):
        found = read_voc(root, split)
        assert len(found.records) == pictures
        assert found.lost == []
        assert len(found.classes) == classes
