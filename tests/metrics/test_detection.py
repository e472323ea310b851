import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.paths import shared
from tests.metrics.sets import found, read_set, record, score, truth
from yolo.metrics import DetectionMetric, pool, scalars
from yolo.metrics.detection import COCO_NAMES
from yolo.types import Found, Record

FAKE = [
    *(0.5045806987249628, 0.6969727247299577, 0.5729816669904824, 0.5856257209410443, 0.5193996948036719),
    *(0.5013978986347466, 0.38681277964578054, 0.5936795762842003, 0.595352982877607, 0.6398109626113442),
    *(0.5664205978994309, 0.5642905982905982),
]
DARKNET = [
    "yolov3-tiny_coco128_train",
    "yolov3-tiny_tiny_val",
    "yolo-fastest-1.1_coco128_train",
    "yolo-fastest-1.1_tiny_val",
]


def twelve(report: Any) -> list[float | None]:
    return [report[name] for name in COCO_NAMES]


def test_equals_pycocotools_on_its_own_example() -> None:
    folder = shared("evalref", "coco_fakebbox100")
    data = read_set(
        folder / "instances_val2014_100.json", folder / "instances_val2014_fakebbox100_results.json"
    )
    assert twelve(score(*data)) == pytest.approx(FAKE, abs=1e-12)


@pytest.mark.parametrize("name", DARKNET)
def test_equals_pycocotools_on_detections_of_darknet(name: str) -> None:
    folder = shared("evalref", "darknet_detections")
    split = name.split("_", 1)[1]
    annotations = next(shared("data", "coco228").rglob(f"instances_{split}.json"))
    expected = json.loads((folder / "expected_pycocotools.json").read_text())[f"{name}.json"][
        "pycocotools_12"
    ]
    report = score(*read_set(annotations, folder / f"{name}.json"))
    assert twelve(report) == pytest.approx(expected, abs=1e-6)


def test_voc_numbers_of_cartucho() -> None:
    """30 classes, 85 pictures; the published 0.3105 adds a pixel to every side, these do not."""
    folder = shared("evalref", "cartucho")
    names = sorted(
        {
            line.split()[0]
            for file in folder.glob("ground-truth/*.txt")
            for line in file.read_text().splitlines()
        }
    )
    founds, records = [], []
    for file in sorted(folder.glob("ground-truth/*.txt")):
        objects = [line.split() for line in file.read_text().splitlines()]
        hits = [line.split() for line in (folder / "detection-results" / file.name).read_text().splitlines()]
        hits = [row for row in hits if row[0] in names]
        labels = [names.index(row[0]) for row in objects]
        difficult = [row[-1] == "difficult" for row in objects]
        records.append(
            record(
                file.stem,
                truth([[float(v) for v in row[1:5]] for row in objects], labels, difficult=difficult),
            )
        )
        boxes, scores = [[float(v) for v in row[2:6]] for row in hits], [float(row[1]) for row in hits]
        founds.append(found(boxes, scores, [names.index(row[0]) for row in hits]))
    report = score(names, founds, records)
    assert (report["pictures"], report["truths"], len(names)) == (85, 686, 30)
    assert report["voc_map50"] == pytest.approx(0.310297, abs=5e-7)
    assert report["voc07_map50"] == pytest.approx(0.316965, abs=5e-7)


def scene(
    seed: int, pictures: int = 12, classes: int = 3, most: int = 8, grid: float = 0.0
) -> tuple[list[str], list[Found], list[Record]]:
    """Random pictures: objects, some of them crowds, near hits with many equal scores, false alarms.

    On a grid, of so many pixels, boxes coincide and overlaps are equal or exactly at a threshold.
    """
    rng = np.random.default_rng(seed)
    founds, records = [], []
    for index in range(pictures):
        count = int(rng.integers(0, most))
        corner, size = rng.uniform(0, 200, (count, 2)), rng.uniform(5, 120, (count, 2))
        boxes, labels = np.concatenate([corner, corner + size], 1), rng.integers(0, classes, count)
        near = boxes + rng.normal(0, 6, boxes.shape)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        strays = rng.uniform(0, 150, (3, 2))
        every = np.concatenate([near, near, np.concatenate([strays, strays + 40], 1)])
        kinds = np.concatenate([labels, labels, rng.integers(0, classes, 3)])
        if grid:
            boxes, every = np.round(boxes / grid) * grid, np.round(every / grid) * grid
        scores = np.round(rng.uniform(0.05, 1, len(every)), 1)  # rounding makes ties
        chosen = rng.permutation(len(every))[: int(rng.integers(0, len(every) + 1))]
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
        founds.append(found(every[chosen], scores[chosen], kinds[chosen]))
        records.append(
            record(f"{index:03d}", truth(boxes, labels, crowd=rng.random(count) < 0.15), coco_id=index + 1)
        )
    return [f"c{label}" for label in range(classes)], founds, records


@given(st.integers(0, 10**6), st.sampled_from([1, 5, 100, 300]), st.sampled_from([0.0, 10.0]))
@settings(max_examples=40, deadline=None)
def test_equals_pycocotools_on_random_pictures(seed: int, max_detections: int, grid: float) -> None:
    pycocotools = pytest.importorskip("pycocotools.coco")
    evaluator = pytest.importorskip("pycocotools.cocoeval")
    classes, founds, records = scene(seed, grid=grid)
    reference = pycocotools.COCO()
    reference.dataset = {
        "images": [],
        "categories": [{"id": i + 1} for i in range(len(classes))],
        "annotations": [],
    }
    results = []
    for one, of in zip(founds, records, strict=True):
        reference.dataset["images"].append({"id": of.coco_id})
        for box, label, crowd, area in zip(
            of.truth.boxes.astype(float), of.truth.labels, of.truth.crowd, of.truth.area, strict=True
        ):
            reference.dataset["annotations"].append(
                {
                    "id": len(reference.dataset["annotations"]) + 1,
                    "image_id": of.coco_id,
                    "category_id": int(label) + 1,
                }
                | {"bbox": [*box[:2], *(box[2:] - box[:2])], "iscrowd": int(crowd), "area": float(area)}
            )
        for box, value, label in zip(one.boxes.astype(float), one.scores, one.labels, strict=True):
            row = {"image_id": of.coco_id, "category_id": int(label) + 1, "score": float(value)}
            results.append(row | {"bbox": [*box[:2], *(box[2:] - box[:2])]})
    reference.createIndex()
    if not results or not reference.dataset["annotations"]:
        return
    theirs = evaluator.COCOeval(reference, reference.loadRes(results), "bbox")
    limits = [min(limit, max_detections) for limit in (1, 10, max_detections)]
    theirs.params.maxDets = sorted(set(limits))
    theirs.evaluate()
    theirs.accumulate()
    precision, recall = theirs.eval["precision"], theirs.eval["recall"]
    means = [
        precision[..., 0, -1],
        precision[0, ..., 0, -1],
        precision[5, ..., 0, -1],
        *(precision[..., a, -1] for a in (1, 2, 3)),
    ]
    means += [recall[..., 0, theirs.params.maxDets.index(limit)] for limit in limits] + [
        recall[..., a, -1] for a in (1, 2, 3)
    ]
    want = [float(mean[mean > -1].mean()) if (mean > -1).any() else None for mean in means]
    assert twelve(score(classes, founds, records, max_detections=max_detections)) == pytest.approx(
        want, abs=1e-12
    )


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_batches_order_and_copies_change_nothing(seed: int) -> None:
    classes, founds, records = scene(seed, pictures=9)
    whole = score(classes, founds, records)
    draw = random.Random(seed)
    order = draw.sample(range(9), 9) + draw.choices(range(9), k=4)
    metric = DetectionMetric(classes)
    while order:
        size = draw.randint(1, 4)
        batch, order = order[:size], order[size:]
        metric.update([founds[i] for i in batch], [records[i] for i in batch])
    for index in range(9):
        metric.update([founds[index]], [records[index]])
    assert metric.compute() == whole


def test_the_pairs_looked_at_in_one_go_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = score(*scene(4))
    monkeypatch.setattr(pool, "PAIRS", 7)
    assert score(*scene(4)) == whole


def test_reset_forgets() -> None:
    classes, founds, records = scene(1)
    metric = DetectionMetric(classes)
    metric.update(founds, records)
    first = metric.compute()
    metric.reset()
    metric.update(founds, records)
    assert metric.compute() == first
    metric.reset()
    assert metric.compute()["pictures"] == 0


def test_nothing_at_all_is_defined() -> None:
    report = DetectionMetric(["a", "b"]).compute()
    assert report["map"] is None
    assert report["pictures"] == 0
    assert json.loads(json.dumps(report, allow_nan=False))["per_class"]["a"]["ap"] is None
    assert scalars(report)["map50"] == 0.0


def test_score_threshold_is_strict() -> None:
    objects = record("1", truth([[0, 0, 10, 10]]))
    hits = found([[0, 0, 10, 10]], [0.5])
    assert score(["a"], [hits], [objects], score_threshold=0.5)["map"] == 0.0
    assert score(["a"], [hits], [objects], score_threshold=0.49)["map"] == pytest.approx(1.0)


def test_numbers_that_are_none_are_left_out_and_noted() -> None:
    hits = found([[0, 0, np.nan, 10], [0, 0, 10, 10], [0, 0, 10, 10]], [0.9, 0.8, np.nan])
    report = score(["a"], [hits], [record("1", truth([[0, 0, 10, 10]]))])
    assert report["map"] == pytest.approx(1.0)
    assert any("2 detections left out" in note for note in report["notes"])


def test_all_classes_counts_absent_ones_as_zero() -> None:
    objects, hits = record("1", truth([[0, 0, 10, 10]])), found([[0, 0, 10, 10]], [0.9])
    report = score(["a", "b", "c", "d"], [hits], [objects], class_set="all")
    for name in ("map", "map50", "voc07_map50", "voc_map50", "darknet_map50", "mar_max"):
        assert report[name] == pytest.approx(0.25), name


@pytest.mark.parametrize("points", ["area", 11, 101])
def test_points_choose_darknets_average(points: Any) -> None:
    classes, founds, records = scene(3)
    report = score(classes, founds, records, points=points)
    want = {"area": "voc_map50", 11: "voc07_map50"}.get(points)
    if want:  # random boxes never meet the threshold exactly, so the rules agree where there is no crowd
        plain = [Record(r.image_id, r.path, truth(r.truth.boxes, r.truth.labels)) for r in records]
        report = score(classes, founds, plain, points=points)
        assert report["darknet_map50"] == pytest.approx(report[want])
    assert report["settings"]["points"] == points


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 1}, "points must be"),
        ({"points": "11"}, "points must be"),
        ({"class_set": "some"}, "class_set must be present or all, got 'some'"),
        ({"max_detections": 0}, "max_detections must be at least 1, got 0"),
        ({"score_threshold": 1.0}, "score_threshold must be"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DetectionMetric(["a"], **options)


def test_wrong_input_is_refused() -> None:
    metric = DetectionMetric(["a", "b"])
    with pytest.raises(ValueError, match="class 2, classes are 0 to 1"):
        metric.update([found([[0, 0, 1, 1]], [0.5], [2])], [record("x", truth())])
    with pytest.raises(ValueError, match="got 0 for 1 pictures"):
        metric.update([], [record("x", truth())])
    with pytest.raises(ValueError, match="distinct names"):
        DetectionMetric(["a", "a"])
    metric.update([found(), found()], [record("x", truth()), Record("x", "elsewhere/x.png", truth())])
    with pytest.raises(ValueError, match=r"two pictures have the id 'x': x\.png and elsewhere/x\.png"):
        metric.compute()


def _rank(index: int, world: int, address: str, results: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=address, rank=index, world_size=world)
    classes, founds, records = scene(11, pictures=7)
    metric = DetectionMetric(classes)
    mine = [i % 7 for i in range(index, 8, world)]  # padded to 8: picture 0 comes twice
    for i in mine:
        metric.update([founds[i]], [records[i]])
    results[index] = metric.compute()
    assert len(metric.pictures) == len(mine)  # unsynced again
    torch.distributed.destroy_process_group()


def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    with torch.multiprocessing.Manager() as manager:
        results = manager.dict()
        torch.multiprocessing.spawn(_rank, (2, f"file://{tmp_path}/meet", results), nprocs=2)
        whole = score(*scene(11, pictures=7))
        assert dict(results) == {0: whole, 1: whole}


def test_moves_with_a_module_and_merges() -> None:
    classes, founds, records = scene(5)
    one, two = DetectionMetric(classes), DetectionMetric(classes)
    one.update(founds[:5], records[:5])
    two.update(founds[5:], records[5:])
    torch.nn.ModuleList([one, two]).to(torch.float64).to("cpu")
    one.merge_state(two)
    assert one.compute() == score(classes, founds, records)


def test_five_hundred_pictures_do_not_hold_up_an_epoch() -> None:
    """A tenth of a second on a free core; the limit leaves room for a busy one."""
    classes, founds, records = scene(2, pictures=500, classes=20, most=14)
    start = time.process_time()
    score(classes, founds, records)
    assert time.process_time() - start < 0.5


@pytest.mark.slow
def test_five_thousand_pictures_with_a_hundred_detections_each() -> None:
    classes, founds, records = scene(2, pictures=5000, classes=80, most=60)
    assert sum(len(one.labels) for one in founds) > 150_000
    start = time.process_time()
    score(classes, founds, records)
    assert time.process_time() - start < 5
