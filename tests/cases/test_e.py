"""Kind E of the bug reports: evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cases.inputs import case as folder_of
from tests.cases.inputs import expected as wanted
from tests.metrics.sets import found, read_set, record, score, truth
from yolo.metrics import DetectionMetric, Report
from yolo.types import Found


def case(name: str) -> tuple[Path, dict[str, Any]]:
    return folder_of(name), wanted(name)


def scored(folder: Path, **options: Any) -> Report:
    return score(*read_set(folder / "gt.json", folder / "dt.json"), **options)


def test_e01_class_without_objects() -> None:
    folder, expected = case("E01")
    report = scored(folder)
    assert report["map"] == report["voc_map50"] == expected["AP"]
    assert report["per_class"]["c2"]["ap"] is None
    assert report["per_class"]["c2"]["voc_ap50"] is None
    assert report["per_class"]["c2"]["false_positives"] == 1
    everything = scored(folder, class_set="all")
    assert everything["map"] == everything["darknet_map50"] == 0.5


def test_e02_annotation_id_zero() -> None:
    folder, expected = case("E02")
    report = scored(folder)
    assert report["map"] == pytest.approx(expected["AP"])
    assert report["mar_max"] == pytest.approx(expected["AR"])


def test_e03_false_alarm_in_a_picture_without_objects() -> None:
    folder, expected = case("E03")
    classes, found, records = read_set(folder / "gt.json", folder / "dt.json")
    for order in ([0, 1], [1, 0]):
        report = score(classes, [found[i] for i in order], [records[i] for i in order])
        assert report["map50"] == report["voc_map50"] == pytest.approx(expected["AP50"])


def test_e04_picture_without_detections() -> None:
    folder, expected = case("E04")
    report = scored(folder)
    assert report["map50"] == pytest.approx(expected["AP50_101pt"], abs=1e-5)
    assert report["voc_map50"] == pytest.approx(expected["AP50_area"])
    assert report["per_class"]["c1"]["false_negatives"] == 1
    assert report["mar_max"] == pytest.approx(expected["recall"])


def test_e05_second_hit() -> None:
    folder, expected = case("E05")
    report = scored(folder)
    row = report["per_class"]["c1"]
    counts = (row["true_positives"], row["false_positives"], row["false_negatives"])
    assert counts == (expected["TP"], expected["FP"], expected["FN"])
    assert report["map50"] == report["voc_map50"] == expected["AP50"]


def test_e07_difficult() -> None:
    """VOC's corners are inclusive and start at 1: (51, 51, 150, 150) are the edges 50 to 150."""
    folder, expected = case("E07")
    rows = [line.split() for line in (folder / "dt.txt").read_text().splitlines()]
    corners = np.array([row[2:] for row in rows], float)
    corners[:, :2] -= 1
    objects = truth([[50, 50, 150, 150], [200, 200, 300, 300]], difficult=[False, True])
    report = score(["kite"], [found(corners, [float(row[1]) for row in rows])], [record("1", objects)])
    row = report["per_class"]["kite"]
    assert (row["truths"], row["true_positives"], row["false_positives"]) == (
        expected["npos"],
        expected["TP"],
        expected["FP"],
    )
    assert row["voc07_ap50"] == expected["AP_11pt"]
    assert row["voc_ap50"] == row["darknet_ap50"] == expected["AP_area"]


def test_e09_ignore_is_honoured_by_voc_and_not_by_coco() -> None:
    """The COCO numbers are pycocotools' own; readers hand on ``ignore`` as difficult, for VOC's rule."""
    folder, expected = case("E09")
    report = scored(folder)
    assert report["map50"] == pytest.approx(expected["pycocotools"], abs=1e-5)
    assert report["voc_map50"] == expected["AP50_if_ignore_is_honoured"]


def test_e10_crowd() -> None:
    folder, expected = case("E10")
    assert scored(folder)["map50"] == pytest.approx(expected["AP50"])
    classes, found, records = read_set(folder / "gt.json", folder / "dt.json")
    records[0].truth.crowd[:] = False
    plain = score(classes, found, records)
    assert plain["map50"] == pytest.approx(expected["if_crowd_treated_as_plain_box"], abs=1e-5)


def test_e11_ids_are_not_numbers() -> None:
    folder, _ = case("E11")
    names = (folder / "names.txt").read_text().split()
    objects = truth([[0, 0, 10, 10]])
    records = [record(Path(name).stem, objects) for name in names]
    report = score(["c"], [found([[0, 0, 10, 10]], [0.9])] * len(names), records)
    assert report["pictures"] == len(set(names)) == 4
    assert report["map"] == pytest.approx(1.0)


def test_e12_more_objects_than_detections_allowed() -> None:
    folder, expected = case("E12")
    few = scored(folder)
    assert few["map"] == pytest.approx(expected["maxDets_100"]["AP"], abs=1e-5)
    assert few["mar_max"] == pytest.approx(expected["maxDets_100"]["AR100"], abs=1e-5)
    assert few["settings"]["max_detections"] == 100
    assert any("150 objects" in note for note in few["notes"])
    many = scored(folder, max_detections=1000)
    assert many["map"] == pytest.approx(expected["maxDets_1000"]["AP"])
    assert many["mar_max"] == pytest.approx(expected["maxDets_1000"]["AR"])
    assert many["settings"]["max_detections"] == 1000


def test_e13_no_detections_is_not_no_labels() -> None:
    folder, expected = case("E13")
    report = scored(folder)
    assert report["map"] == report["voc_map50"] == report["mar_max"] == expected["AP"]
    assert any("no detections" in note for note in report["notes"])
    assert not any("no labels" in note for note in report["notes"])
    unlabelled = score(["c1"], [found([[0, 0, 5, 5]], [0.9])], [record("1", truth())])
    assert unlabelled["map"] is None
    assert unlabelled["voc07_map50"] is None
    assert any("no labels" in note for note in unlabelled["notes"])


def test_e14_padded_copies_count_once() -> None:
    folder, expected = case("E14")
    classes, found, records = read_set(folder / "gt.json", folder / "dt.json")
    padded = score(classes, [*found, found[0]], [*records, records[0]])
    assert padded["map50"] == pytest.approx(expected["AP50"], abs=1e-6)
    assert padded["pictures"] == 5
    row = padded["per_class"]["c1"]
    assert row["true_positives"] / row["truths"] == expected["recall50"]


@pytest.mark.parametrize("shape", [(0,), (0, 4)])
def test_e15_empty_arrays_of_any_shape(shape: tuple[int, ...]) -> None:
    nothing = Found(np.zeros(shape, np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    report = score(["c"], [nothing], [record("1", truth([[10, 20, 25, 45]]))])
    assert report["map"] == report["mar_max"] == 0.0


FILES = [f"E{number:02}" for number in (1, 2, 3, 4, 5, 9, 10, 12, 13, 14)]  # those with gt.json and dt.json


@pytest.mark.parametrize("name", FILES)
def test_e_batches_and_order_change_nothing(name: str) -> None:
    folder, _ = case(name)
    classes, found, records = read_set(folder / "gt.json", folder / "dt.json")
    whole = score(classes, found, records)
    for step in (1, 2, 3):
        metric = DetectionMetric(classes)
        for start in reversed(range(0, len(records), step)):
            metric.update(found[start : start + step], records[start : start + step])
        assert metric.compute() == whole


def _rank(index: int, world: int, address: str, reports: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=address, rank=index, world_size=world)
    mine = {}
    for name in FILES:
        folder, _ = case(name)
        classes, found, records = read_set(folder / "gt.json", folder / "dt.json")
        metric = DetectionMetric(classes)
        padded = -(-len(records) // world) * world
        for position in range(index, padded, world):  # filled up with copies, as samplers do
            one = position % len(records)
            metric.update([found[one]], [records[one]])
        mine[name] = metric.compute()
    reports[index] = mine
    torch.distributed.destroy_process_group()


def test_e_two_processes_change_nothing(tmp_path: Path) -> None:
    sets = {name: read_set(case(name)[0] / "gt.json", case(name)[0] / "dt.json") for name in FILES}
    whole = {name: score(*one) for name, one in sets.items()}
    with torch.multiprocessing.Manager() as manager:
        reports = manager.dict()
        torch.multiprocessing.spawn(_rank, (2, f"file://{tmp_path}/meet", reports), nprocs=2)
        assert dict(reports) == {0: whole, 1: whole}
