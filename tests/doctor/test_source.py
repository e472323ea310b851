"""A path alone says what a data set is."""

from functools import partial
from pathlib import Path

import pytest

from tests.data.making import coco, picture, voc, voc_object, write
from tests.doctor.sets import ROW, diagnose, yolo_set
from tests.helpers.paths import shared
from yolo.data import read_coco, read_published, read_voc
from yolo.doctor import open_source, splits_of
from yolo.doctor.source import changed, innermost


def boxes(source: Path) -> dict[str, tuple[int, int]]:
    return {name: (tally.pictures, tally.boxes) for name, tally in diagnose(source).splits.items()}


def test_yolo_with_and_without_yaml(tmp_path: Path) -> None:
    source = yolo_set(
        tmp_path, {"train": {"a.png": ROW}, "valid": {"b.png": ROW + ROW.replace("0 ", "1 ", 1)}}
    )
    assert boxes(source) == boxes(tmp_path) == {"train": (1, 1), "val": (1, 2)}
    source.unlink()
    write(tmp_path / "names.txt", "cat\ndog\n")
    assert boxes(tmp_path) == {"train": (1, 1), "val": (1, 2)}


def test_darknet(tmp_path: Path) -> None:
    picture(tmp_path / "pictures/a.png")
    write(tmp_path / "pictures/a.txt", ROW)
    write(tmp_path / "train.txt", "pictures/a.png\n")
    write(tmp_path / "obj.names", "cat\n")
    data = write(
        tmp_path / "obj.data", "classes = 1\ntrain = train.txt\nvalid = train.txt\nnames = obj.names\n"
    )
    assert boxes(data) == boxes(tmp_path) == {"train": (1, 1), "val": (1, 1)}


def test_voc(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"JPEGImages/{name}.png", seed=ord(name))
        write(tmp_path / f"Annotations/{name}.xml", voc(voc_object("cat", (1, 2, 30, 40))))
    assert boxes(tmp_path) == {"all": (2, 2)}
    write(tmp_path / "ImageSets/Main/trainval.txt", "a\n")
    write(tmp_path / "ImageSets/Main/test.txt", "b\n")
    assert boxes(tmp_path) == {"train": (1, 1), "test": (1, 1)}


def test_coco_files_that_list_their_classes_in_another_order(tmp_path: Path) -> None:
    for split, categories in (("train", ["car", "bus"]), ("valid", ["bus", "cart", "car"])):
        picture(tmp_path / split / "a.jpg", seed=len(split))
        rows = [{"id": number, "name": name} for number, name in enumerate(categories)]
        coco(
            tmp_path / split / "_annotations.json",
            [{"category_id": 0, "bbox": [1, 2, 30, 40]}],
            categories=rows,
        )
    diagnosis = diagnose(tmp_path)
    assert list(diagnosis.usage) == ["car", "bus", "cart"]
    assert diagnosis.usage["car"].boxes == {"train": 1, "val": 0}
    assert diagnosis.usage["bus"].boxes == {"train": 0, "val": 1}


def test_what_is_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no data set is recognised in it"):
        open_source(tmp_path)
    with pytest.raises(ValueError, match=r"wanted a dataset\.yaml with train or val"):
        open_source(write(tmp_path / "a.yaml", "names: [cat]\n"))
    with pytest.raises(ValueError, match=r"the YAML tag .* is refused"):
        open_source(write(tmp_path / "b.yaml", "train: !!python/object/apply:os.system [ls]\n"))
    with pytest.raises(ValueError, match="no such file or folder"):
        open_source(tmp_path / "nowhere")


def test_paths_that_leave_the_set_are_findings(tmp_path: Path) -> None:
    yolo_set(tmp_path / "set", {"train": {"a.png": ROW}})
    away = write(tmp_path / "set/other/data.yaml", "path: ..\ntrain: images/train\nnames: [cat, dog]\n")
    (finding,) = diagnose(away).lost
    assert finding.code == "unreadable-split"
    assert "leads out of" in finding.message
    assert boxes_of(open_source(away, allow_outside=True)) == 1


def boxes_of(readers: dict[str, partial]) -> int:  # type: ignore[type-arg]
    return sum(len(record.truth.labels) for reader in readers.values() for record in reader().records)


def test_one_split_under_two_names_is_one() -> None:
    reader = partial(read_voc, root="x", split="test")
    parts = {
        "train": partial(read_voc, root="x", split="train"),
        "val": reader,
        "test": partial(read_voc, root="x", split="test"),
    }
    assert list(splits_of({**parts, "name": "x", "root": "x"})) == ["train", "val"]


def test_published_sets_keep_what_fetches_them() -> None:
    inner = partial(read_coco, annotations="a.json", classes=["cat"])
    reader = partial(read_published, name="coco", root="x", reader=inner)
    assert innermost(reader) is inner
    again = changed(reader, classes=None, no_such_option=1)
    assert again.func is read_published
    assert innermost(again).keywords == {"annotations": "a.json", "classes": None}


@pytest.mark.parametrize(
    ("name", "splits"), [("chess", ["train", "val", "test"]), ("deeppcb", ["train", "val"])]
)
def test_real_sets_are_recognised(name: str, splits: list[str]) -> None:
    assert list(open_source(shared("data", name))) == splits
