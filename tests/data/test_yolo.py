"""YOLO txt and Darknet lists."""

from pathlib import Path

import pytest

from tests.data.making import picture, write
from tests.helpers.paths import shared
from yolo.data.formats import Annotated, read_darknet, read_yolo
from yolo.data.formats.plain_yaml import names_of, read_plain_yaml
from yolo.data.formats.text import label_candidates, read_names

ROW = "0 0.5 0.5 0.25 0.25\n"


def rows(tmp_path: Path, text: str | bytes, classes: int = 3) -> Annotated:
    """One picture of 100x80 with that label file."""
    picture(tmp_path / "images" / "a.jpg")
    write(tmp_path / "labels" / "a.txt", text)
    return read_yolo(tmp_path / "images", ["kite", "boat", "dog"][:classes])


def codes(found: Annotated) -> list[tuple[str, int]]:
    return [(problem.code, problem.line) for problem in found.problems]


def test_by_hand(tmp_path: Path) -> None:
    """Centre and size become edges in pixels; tabs, 0.0 as a class, comments, CR and a BOM are all right."""
    text = b"\xef\xbb\xbf# drawn by hand\r\n0\t0.5 0.5 0.25 0.25\r\n2.0 0.1 0.2 0.2 0.4\r\n\r\n"
    found = rows(tmp_path, text)
    assert found.problems == []
    assert found.classes == ["kite", "boat", "dog"]
    truth = found.records[0].truth
    assert truth.boxes.tolist() == [[37.5, 30, 62.5, 50], [0, 0, 20, 32]]
    assert truth.labels.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("row", "code", "message"),
    [
        ("0 0.088 0.4398 -0.109 0.124", "row", "width and height must be positive, got -0.109 and 0.124"),
        ("0 0.5 0.5 0.0 0.2", "row", "width and height must be positive, got 0 and 0.2"),
        ("0 0.0 0.5 0.2 0.2", "outside", r"centre \(0, 0.5\) is not within 0 to 1"),
        ("0 0.67 1.287 0.05 0.25", "outside", r"centre \(0.67, 1.287\)"),
        ("0 93 100 60 70", "outside", "the values look like pixels"),
        ("0 nan 0.5 0.2 0.2", "row", "'nan' is not a finite number"),
        ("0 0.5 0.5 0.2", "row", "4 columns, wanted class cx cy width height"),
        ("0 0.5 0.5 0.2 0.2 0.9", "row", "6 columns"),
        (
            "0,0.5,0.5,0.25,0.25",
            "row",
            r"'0,0.5,0.5,0.25,0.25' is not a number \(columns are separated by blanks",
        ),
        ("kite 0.5 0.5 0.25 0.25", "row", "'kite' is not a number"),
        ("1.5 0.5 0.5 0.25 0.25", "row", "the class must be a whole number from 0 to 2, got '1.5'"),
        ("3 0.5 0.5 0.2 0.2", "class", "class 3, valid ids are 0 to 2"),
        ("-1 0.5 0.5 0.2 0.2", "class", "class -1, valid ids are 0 to 2"),
        ("1e9 0.5 0.5 0.2 0.2", "class", "class 1e9, valid ids are 0 to 2"),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3 0.1", "row", "8 columns"),
        ("0 0.1 0.1 0.2 0.1 0.3 0.1", "row", "the polygon of 3 points has no area"),
    ],
)
def test_bad_rows(tmp_path: Path, row: str, code: str, message: str) -> None:
    """Each bad row is reported with its line, and costs only itself."""
    found = rows(tmp_path, f"{ROW}{row}\n2 0.5 0.5 0.2 0.2\n")
    assert codes(found) == [(code, 2)]
    assert found.problems[0].file == str(tmp_path / "labels" / "a.txt")
    assert found.records[0].truth.labels.tolist() == [0, 2]
    with pytest.raises(ValueError, match=message):
        read_yolo(tmp_path / "images", found.classes, on_error="raise")


def test_rows_that_are_mended(tmp_path: Path) -> None:
    """Sizes over 1 are cut; a rounding error over the edge is not worth a word; duplicates are named."""
    found = rows(
        tmp_path,
        "0 0.5 0.5 1.2 0.5\n1 0.119291 0.659694 0.238583 0.302352\n0 0.97344 0.6074 0.059375 0.0597\n",
    )
    assert codes(found) == [("clipped", 1), ("clipped", 3)]
    assert found.lost == []
    assert found.records[0].truth.boxes[0].tolist() == [0, 20, 100, 60]
    assert found.records[0].truth.boxes[1, 0] == 0
    assert found.records[0].truth.boxes[2, 2] == 100
    found = rows(tmp_path, f"{ROW}{ROW}1 0.5 0.5 0.25 0.25\n0 0.5000000 0.5 0.25 0.25\n")
    assert codes(found) == [("duplicate", 2), ("duplicate", 4)]
    assert found.records[0].truth.labels.tolist() == [0, 1]


def test_polygons_become_boxes(tmp_path: Path) -> None:
    found = rows(tmp_path, "0 0.10 0.20 0.50 0.20 0.50 0.60 0.10 0.60\n")
    assert found.records[0].truth.boxes[0].tolist() == pytest.approx([10, 16, 50, 48])


def test_rows_follow_the_shown_picture(tmp_path: Path) -> None:
    """EXIF: stored 40x20, shown 20x40."""
    picture(tmp_path / "images" / "a.jpg", 40, 20, orientation=6)
    write(tmp_path / "labels" / "a.txt", "0 0.75 0.125 0.5 0.25")
    found = read_yolo(tmp_path / "images", ["red"])
    assert found.records[0].truth.boxes.tolist() == [[10, 0, 20, 10]]


def test_where_labels_lie() -> None:
    """Only the last whole folder name is swapped, only the last suffix is replaced."""
    for image, label in [
        ("images/image.png", "labels/image.txt"),
        ("images/imagesA.png", "labels/imagesA.txt"),
        ("x/images/set1/images/a.png", "x/images/set1/labels/a.txt"),
        ("images/sub/a.png.png", "labels/sub/a.png.txt"),
        ("JPEGImages/v1.2.final.PNG", "labels/v1.2.final.txt"),
        ("my_images/a.jpg", "my_images/a.txt"),
        ("images.jpg", "images.txt"),
    ]:
        assert label_candidates(Path(image))[0] == Path(label)
    assert label_candidates(Path("images/b.png"))[1] == Path("images/b.txt")


def test_lists(tmp_path: Path) -> None:
    """Blanks, CR, BOM, UTF-16, back slashes, comments, a name that ends in a blank, and what is not there."""
    for name in ("a.jpg", "sub/b.jpg", "c .jpg", "é.png"):
        picture(tmp_path / "images" / name)
        write((tmp_path / "labels" / name).with_suffix(".txt"), ROW)
    entries = ["images/a.jpg  ", "", "# more", "images\\sub\\b.jpg", "images/c .jpg", "images/e\u0301.png"]
    text = "\r\n".join([*entries, "images/none.jpg", "images/a.jpg", ""])
    for data in (text.encode(), b"\xef\xbb\xbf" + text.encode(), text.encode("utf-16")):
        listing = write(tmp_path / "train.txt", data)
        for found in (read_yolo(listing, ["kite"]), read_darknet(listing, ["kite"])):
            names = ["images/a.jpg", "images/sub/b.jpg", "images/c .jpg", "images/é.png"]
            assert [record.image_id for record in found.records] == names
            assert [len(record.truth.labels) for record in found.records] == [1, 1, 1, 1]
            assert codes(found) == [("missing-image", 7), ("duplicate-image", 8)]


def test_nothing_outside_is_read(tmp_path: Path) -> None:
    picture(tmp_path / "out" / "secret.jpg")
    picture(tmp_path / "data" / "images" / "a.jpg")
    entries = ["../out/secret.jpg", "images/../../out/secret.jpg", str(tmp_path / "out" / "secret.jpg")]
    listing = write(tmp_path / "data" / "train.txt", "\n".join(["images/a.jpg", *entries]))
    found = read_yolo(listing, ["kite"])
    assert len(found.records) == 1
    assert [code for code in codes(found) if code[0] != "no-label"] == [
        ("outside-root", n) for n in (2, 3, 4)
    ]
    assert len(read_yolo(listing, ["kite"], allow_outside=True).records) == 2


def test_pictures_without_labels_are_counted(tmp_path: Path) -> None:
    """No file: a picture without objects, named; an empty file: the same without a word."""
    picture(tmp_path / "a.jpg")
    picture(tmp_path / "b.jpg")
    write(tmp_path / "b.txt", "")
    found = read_yolo(tmp_path, ["kite"])
    assert [(Path(p.file).name, p.code, p.lost) for p in found.problems] == [("a.jpg", "no-label", False)]
    assert [len(record.truth.labels) for record in found.records] == [0, 0]


def test_names(tmp_path: Path) -> None:
    path = write(
        tmp_path / "obj.names", b"\xef\xbb\xbftraffic light \r\n0 zero\r\n# one\r\n\xe7\x8a\xac\r\n\r\n\r\n"
    )
    assert read_names(path) == ["traffic light", "0 zero", "# one", "犬"]
    for content, message in [
        ("a\n\nb\n", "obj.names:2: a blank line"),
        ("", "no class names"),
        ("\n \n", "no class"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_names(write(path, content))
    with pytest.raises(ValueError, match=r"none\.names: cannot be read"):
        read_names(tmp_path / "none.names")
    picture(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match="2 class names, but the number of classes is 3"):
        read_yolo(tmp_path, ["a", "b"], num_classes=3)
    with pytest.raises(ValueError, match="class name 'a' stands twice, as 0 and as 1"):
        read_yolo(tmp_path, ["a", "a"])


def test_data_file(tmp_path: Path) -> None:
    """A Darknet .data file; errors name the file, or both numbers."""
    picture(tmp_path / "images" / "a.jpg")
    write(tmp_path / "labels" / "a.txt", ROW)
    write(tmp_path / "train.txt", "images/a.jpg")
    write(tmp_path / "obj.names", "kite\nboat\n\n\n")
    data = write(
        tmp_path / "obj.data",
        "; my set\nclasses= 2\ntrain  = train.txt\nvalid=train.txt\nnames = obj.names\nbackup = b/\n",
    )
    for split in ("train", "valid", "val", "test"):
        found = read_darknet(data, split=split)
        assert found.classes == ["kite", "boat"]
        assert len(found.records) == 1
    with pytest.raises(ValueError, match=r"2 class names, but the number of classes is 3"):
        read_darknet(write(data, "classes=3\ntrain=train.txt\nnames=obj.names"))
    with pytest.raises(ValueError, match=r"it names nosuch\.names"):
        read_darknet(write(data, "classes=2\ntrain=train.txt\nnames=nosuch.names"))
    with pytest.raises(
        ValueError,
        match=r"obj.data:1: wanted key = value of a Darknet .data file, found '\[net\]'.*looks like a Darknet cfg",
    ):
        read_darknet(write(data, "[net]\nbatch=1\n"))
    with pytest.raises(ValueError, match=r"leads out of"):
        read_darknet(write(data, "names=../../etc/passwd\ntrain=train.txt"))


def test_yaml_is_text(tmp_path: Path) -> None:
    """YAML's own ideas of yes, null, 007 and 12:30:45 do not reach class names (rbgirshick/yacs#48)."""
    path = write(tmp_path / "data.yaml", "names: [yes, no, on, null, 007, 12:30:45, 1_000, y, '']\n")
    assert names_of(read_plain_yaml(path)["names"], path)[:8] == [
        "yes",
        "no",
        "on",
        "null",
        "007",
        "12:30:45",
        "1_000",
        "y",
    ]
    path = write(tmp_path / "map.yaml", "names:\n  1: kite\n  0: no\n  2: 3\n")
    assert names_of(read_plain_yaml(path)["names"], path) == ["no", "kite", "3"]
    for text, message in [
        ("names: {0: a, 2: b}", r"class ids must be 0 to 1, got \[0, 2\]"),
        ("names: {a: b}", "must be class ids"),
        ("names: []", "names must list the classes"),
        ("names: [[a]]", "names must be text"),
        ("names: [a\n", "not YAML"),
        ("- a", "wanted a mapping"),
        ("names: a\nnames: b", "the key 'names' stands there twice"),
        ('names: !!python/object/apply:os.mkdir ["x"]', "data.yaml:1: the YAML tag .* is refused"),
        ("names: !include x", "the YAML tag '!include' is refused"),
    ]:
        with pytest.raises(ValueError, match=message):
            names_of(read_plain_yaml(write(tmp_path / "data.yaml", text)).get("names"), "data.yaml")


def test_yaml_aliases_do_not_grow(tmp_path: Path) -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12))
    value = read_plain_yaml(write(tmp_path / "bomb.yaml", f"l0: &l0 [a]\n{levels}\n"))
    assert value["l1"][0] is value["l1"][1]  # type: ignore[index]


def test_dataset_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the YOLO world; the script in it never runs."""
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "set" / "images" / "train" / "a.jpg")
    write(tmp_path / "set" / "labels" / "train" / "a.txt", "1 0.5 0.5 0.25 0.25\n")
    script = "download: |\n  open('RAN', 'w')\n"
    path = write(
        tmp_path / "data.yaml",
        f"path: set\ntrain: images/train\nval: [images/train]\nnc: 2\nnames: [no, yes]\n{script}",
    )
    for split in ("train", "val"):
        found = read_yolo(path, split=split)
        assert found.classes == ["no", "yes"]
        assert found.records[0].truth.labels.tolist() == [1]
        assert [problem.code for problem in found.problems] == ["download"]
    with pytest.raises(ValueError, match=r"no split 'test' in it, it has \['train', 'val'\]"):
        read_yolo(path, split="test")
    with pytest.raises(ValueError, match="2 class names, but nc is 3"):
        read_yolo(write(path, "train: set\nnc: 3\nnames: [a, b]\n"), split="train")
    with pytest.raises(ValueError, match=r"nowhere.*does not exist, the pictures are missing"):
        read_yolo(write(path, f"path: nowhere\ntrain: images\nnames: [a]\n{script}"), split="train")
    with pytest.raises(ValueError, match="leads out of"):
        read_yolo(write(path, "train: ../../etc\nnames: [a]\n"), split="train")
    assert not Path("RAN").exists()


def test_deeppcb() -> None:
    root = shared("data", "deeppcb")
    counts = []
    for split in ("train", "val"):
        found = read_yolo(root / f"{split}.txt", root / "names.txt")
        assert found.problems == []
        counts.append((len(found.records), sum(len(record.truth.labels) for record in found.records)))
    assert counts == [(1000, 6873), (500, 3140)]
