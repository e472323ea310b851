"""Kind D of the bug reports: data sets and annotations."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cases.inputs import case, copied, counts, expected, rows
from yolo.data import (
    Annotated,
    DetectionDataset,
    Preprocess,
    collate,
    read_coco,
    read_darknet,
    read_voc,
    read_yolo,
)
from yolo.data.geometry import mosaic
from yolo.data.writers.convert import convert
from yolo.evaluate import aligned
from yolo.losses import build_loss
from yolo.metrics import DetectionMetric
from yolo.models import yolov3_tiny
from yolo.report import write_results
from yolo.types import Found, Record, Targets


def only(annotated: Annotated) -> Record:
    (record,) = annotated.records
    return record


def said(annotated: Annotated, code: str) -> list[tuple[str, int, str]]:
    """File name, line and message of the problems of one kind."""
    return [(Path(one.file).name, one.line, one.message) for one in annotated.problems if one.code == code]


def test_d01_difficult_is_optional() -> None:
    annotated = read_voc(case("D01"))
    assert annotated.classes == [one["name"] for one in expected("D01")["objects"]]
    assert only(annotated).truth.difficult.tolist() == [False]
    assert annotated.problems == []


def test_d02_fractional_corners() -> None:
    want = expected("D02")
    got = only(read_voc(case("D02"))).truth.boxes
    np.testing.assert_allclose(got, [want["xyxy_as_written"]], atol=want["tolerance"])


def test_d03_corners_by_name() -> None:
    assert only(read_voc(case("D03"))).truth.boxes.tolist() == [expected("D03")["xyxy_as_written"]]


def test_d05_three_boxes_in_one_object() -> None:
    assert counts(read_voc(case("D05"))) == (1, 3)


def test_d06_size_from_the_picture(tmp_path: Path) -> None:
    want = expected("D06")
    for name in ("a.xml", "nosize.xml"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.png").write_bytes((case("D06") / "a.png").read_bytes())
        (folder / "a.xml").write_bytes((case("D06") / name).read_bytes())
        annotated = read_voc(folder)
        assert counts(annotated) == (1, want[name]["kept"])
        degenerate = said(annotated, "degenerate")
        assert len(degenerate) == want[name].get("dropped_degenerate", 0)
        assert all(file == "a.xml" and line > 0 for file, line, _ in degenerate)
        item = DetectionDataset(annotated.records, Preprocess((80, 100)))[0]
        assert [item.meta.placement.width, item.meta.placement.height] == want["image_wh"]
    # as they stand, the two annotate one picture: both are kept and that is said
    both = read_voc(case("D06"))
    assert counts(both) == (2, 2)
    assert len(said(both, "duplicate-image")) == 1


def test_d07_lists_made_on_windows(tmp_path: Path) -> None:
    want = expected("D07")
    for read in (read_yolo, read_darknet):
        annotated = read(case("D07") / "train_crlf.txt", ["kite"])
        assert counts(annotated) == (want["images"], want["labels"])
        assert annotated.problems == []
    folder = copied("D07", tmp_path)  # a name that really ends in a blank
    (folder / "images" / "b.png").rename(folder / "images" / "b.png  ")
    assert counts(read_yolo(folder / "train_crlf.txt", ["kite"]))[0] == want["images"]


def test_d08_byte_order_marks(tmp_path: Path) -> None:
    folder = copied("D08", tmp_path)
    for text in ("list_utf8_bom.txt", "list_utf16le.txt"):
        annotated = read_darknet(folder / text, folder / "names_utf8_bom.names")
        assert annotated.classes == ["kite", "boat"]
        assert counts(annotated) == (1, 1)
    label = (folder / "label_utf8_bom.txt").read_bytes()
    (folder / "labels" / "a.txt").write_bytes(label)
    assert rows(read_darknet(folder / "list_utf8_bom.txt", ["kite", "boat"])) == [[0]]
    (folder / "labels" / "a.txt").write_bytes(label.decode("utf-8-sig").encode("utf-16"))
    assert rows(read_darknet(folder / "list_utf8_bom.txt", ["kite", "boat"])) == [[0]]


@pytest.mark.parametrize("name", ["D09", "D10", "D11"])
def test_d09_d10_d11_where_labels_lie(name: str) -> None:
    """d09: only a whole folder name is swapped; d10: the last one; d11: only the last suffix, in any case."""
    want = expected(name)
    for annotated in (read_yolo(case(name), ["kite"]), read_yolo(case(name) / "images", ["kite"])):
        assert counts(annotated) == (len(want), len(want))
        assert annotated.problems == []


def test_d12_label_beside_a_picture_below_images() -> None:
    assert counts(read_darknet(case("D12") / "train.txt", ["kite"]))[1] == expected("D12")["boxes"]


def test_d13_backslashes() -> None:
    want = expected("D13")
    assert counts(read_yolo(case("D13") / "train.txt", ["kite"])) == (want["images"], want["boxes"])


def test_d14_repeated_rows() -> None:
    want = expected("D14")
    annotated = read_yolo(case("D14") / "images", ["kite", "boat"])
    assert rows(annotated) == [want["classes"]]
    assert len(said(annotated, "duplicate")) == want["duplicates_reported"]
    assert annotated.lost == []


def test_d15_separators_and_names() -> None:
    annotated = read_yolo(case("D15") / "images", ["kite"])
    labels = {Path(record.path).stem: record.truth.labels.tolist() for record in annotated.records}
    assert labels == {"a": [], "named": [], "tabs": [0], "floatcls": [0]}
    (commas, named) = said(annotated, "row")
    assert commas[:2] == ("a.txt", 1)
    assert "'0,0.5,0.5,0.25,0.25'" in commas[2]
    assert "commas" in commas[2]
    assert named[:2] == ("named.txt", 1)
    assert "'kite'" in named[2]
    with pytest.raises(ValueError, match=r"named\.txt:1: 'kite' is not a number"):
        read_yolo(case("D15") / "images", ["kite"], on_error="raise")


def test_d16_every_bad_row_is_named() -> None:
    want = expected("D16")
    annotated = read_yolo(case("D16") / "images", ["kite"])
    lost = [one.line for one in annotated.lost]
    assert sorted(lost) == sorted([*want["invalid_rows"], 3])  # 3: Darknet's own rule, 0 < centre
    assert {Path(one.file).name for one in annotated.problems} == {"a.txt"}
    assert [line for _, line, _ in said(annotated, "clipped")] == want["darknet_clamps_to_1"]
    boxes = only(annotated).truth.boxes
    assert len(boxes) == len(want["valid_rows"]) + len(want["darknet_clamps_to_1"])
    assert np.isfinite(boxes).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_d17_polygons_among_boxes() -> None:
    want = expected("D17")["either"]
    annotated = read_yolo(case("D17") / "images", ["kite"])
    item = DetectionDataset(annotated.records, Preprocess((96, 96), "stretch"))[0]
    x1, y1, x2, y2 = (item.boxes / 96).T
    got = torch.stack([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1], 1)
    torch.testing.assert_close(
        got, torch.tensor([want["row1_as_box_cxcywh"], want["row2"]]), atol=1e-5, rtol=0
    )


def test_d18_ids_outside_the_list() -> None:
    names = case("D18") / "obj.names"
    annotated = read_yolo(case("D18") / "images", names)
    labels = {Path(record.path).stem: record.truth.labels.tolist() for record in annotated.records}
    assert labels == {"ok": [0, 2], "bad": [], "neg": []}
    messages = {file: message for file, _, message in said(annotated, "class")}
    assert messages == {
        "bad.txt": "class 3, valid ids are 0 to 2",
        "neg.txt": "class -1, valid ids are 0 to 2",
    }
    with pytest.raises(ValueError, match=r"bad\.txt:1: class 3, valid ids are 0 to 2"):
        read_yolo(case("D18") / "images", names, on_error="raise")


def test_d19_category_ids_with_gaps(tmp_path: Path) -> None:
    want = expected("D19")
    annotated = read_coco(case("D19") / "ann.json")
    record = only(annotated)
    order = record.truth.boxes[:, 0].argsort()
    labels = record.truth.labels[order]
    assert [annotated.classes[label] for label in labels] == want["names_of_boxes_left_to_right"]
    assert sorted(labels.tolist()) == [0, 1, 2]
    # scored by a model that numbers the classes its own way, the results still carry the ids of the file
    model = ["toothbrush", "train", "car"]
    (mine,) = aligned(annotated.records, annotated.classes, model)
    found = Found(mine.truth.boxes[order], np.ones(3, np.float32), mine.truth.labels[order])
    write_results([found], [mine], model, tmp_path / "results.json", annotated.ids_by_name)
    written = json.loads((tmp_path / "results.json").read_text())
    assert [row["category_id"] for row in written] == want["category_id_written_in_results"]
    assert [row["image_id"] for row in written] == [7, 7, 7]


def test_d21_categories_in_another_order() -> None:
    want = expected("D21")["perfect_prediction_of_train_box_scored_on_val"]
    train, val = (read_coco(case("D21") / f"{split}.json") for split in ("train", "val"))
    (wanted,) = aligned(val.records, val.classes, train.classes)
    mine = only(train).truth
    metric = DetectionMetric(train.classes)
    metric.update([Found(mine.boxes, np.ones(1, np.float32), mine.labels)], [wanted])
    report = metric.compute()
    assert report["map"] == pytest.approx(want["AP"])
    assert [name for name, row in report["per_class"].items() if row["truths"]] == [want["class"]]


def test_d22_crowds(tmp_path: Path) -> None:
    want = expected("D22")
    annotated = read_coco(case("D22") / "ann.json")
    record = only(annotated)
    item = DetectionDataset([record], Preprocess((96, 96)))[0]
    assert len(item.labels) == want["training_positives"]
    assert int((~record.truth.crowd).sum()) == want["eval_gt"]
    assert int(record.truth.crowd.sum()) == want["eval_ignore_regions"]
    everything = Found(record.truth.boxes, np.array([0.5, 0.9], np.float32), record.truth.labels)
    metric = DetectionMetric(["kite"])
    metric.update([everything], [record])
    report = metric.compute()
    assert report["map"] == report["voc_map50"] == pytest.approx(1.0)  # a hit in the crowd is no false alarm
    assert report["truths"] == want["eval_gt"]
    done = convert({"train": annotated}, "yolo", tmp_path / "out")
    (label,) = (tmp_path / "out" / "labels" / "train").iterdir()
    assert len(label.read_text().splitlines()) == done.boxes == 1
    assert [words for words in done.losses if "1" in words and "crowd" in words]


def test_d23_no_cap_on_boxes() -> None:
    want = expected("D23")["boxes_reaching_the_loss"]
    annotated = read_yolo(case("D23") / "images", ["kite"])
    preprocess = Preprocess((416, 416))
    batch = collate([DetectionDataset(annotated.records, preprocess)[0]])
    assert len(batch.targets.labels) == want
    detector = yolov3_tiny(num_classes=1, width=0.1)
    loss = build_loss(detector, "darknet")
    logits, size = detector(batch.images.float() / 255), preprocess.size
    with torch.no_grad():
        whole = loss(logits, batch.targets, size)
        fewer = loss(logits, Targets(*(part[:-1] for part in batch.targets)), size)
    assert sum(map(float, whole.values())) != sum(map(float, fewer.values()))  # the last one counts too
    four = [DetectionDataset(annotated.records, preprocess).sample(0)] * 4
    assert len(mosaic(four, preprocess, (416, 416), (0.5, 0.5)).labels) == 4 * want


def test_d24_a_cache_that_is_never_stale(tmp_path: Path) -> None:
    home, cache = copied("D24", tmp_path), tmp_path / "cache"

    def read(names: str, split: str = "train") -> Annotated:
        return read_yolo(home / "images" / split, home / names, cache_dir=cache)

    assert rows(read("names5.yaml")) == [[4]]
    assert rows(read("names5.yaml")) == [[4]]  # this one from the cache
    (message,) = said(read("names2.yaml"), "class")
    assert message == ("a.txt", 1, "class 4, valid ids are 0 to 1")
    label = home / "labels" / "train" / "a.txt"
    before = label.stat()
    label.write_text("3 0.5 0.5 0.2 0.2\n")
    os.utime(label, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert label.stat().st_size == before.st_size
    assert rows(read("names5.yaml")) == [[3]]
    flat = tmp_path / "flat"
    for split, name in (("train", "a"), ("val", "b")):
        for kind, suffix in (("images", "png"), ("labels", "txt")):
            (flat / kind).mkdir(parents=True, exist_ok=True)
            source = home / kind / split / f"{name}.{suffix}"
            (flat / kind / source.name).write_bytes(source.read_bytes())
        (flat / f"{split}.txt").write_text(f"images/{name}.png\n")
    for _ in range(2):
        for split, wanted in (("train", [[3]]), ("val", [[0]])):
            assert rows(read_yolo(flat / f"{split}.txt", list("abcde"), cache_dir=cache)) == wanted
