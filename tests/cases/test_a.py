"""Kind A of the bug reports: augmentation."""

from pathlib import Path

import albumentations
import numpy as np
import pytest

from tests.cases.inputs import copied, expected
from tests.data.making import picture
from tests.data.samples import COLOURS, flat, loader, spotted
from yolo.data import Annotated, Augment, DetectionDataset, Draw, Preprocess, Sample, read_yolo
from yolo.data.geometry import flip, mosaic

STRONG = Augment(flip=0.5, scale=0.1, translate=0.02, extra=[albumentations.GaussNoise(p=0.5)])


def read(name: str, folder: Path) -> Annotated:
    """The labels of a case beside a picture of 1000 x 1000."""
    home = copied(name, folder)
    picture(home / "images" / "a.png", 1000, 1000)
    return read_yolo(home / "images", ["kite", "boat"])


def test_a01_rounding_over_the_edge(tmp_path: Path) -> None:
    """Kept, cut to 0, without a word; and training does not stumble over it."""
    annotated = read("A01", tmp_path)
    (record,) = annotated.records
    assert annotated.problems == []
    assert record.truth.boxes[0, 0] == 0
    assert record.truth.labels.tolist() == [1]
    assert record.truth.labels.dtype == np.int64
    dataset = DetectionDataset(annotated.records, Preprocess((96, 96)), STRONG)
    for epoch in range(6):
        assert dataset[Draw(0, epoch)].labels.tolist() == [1]


def test_a02_overhang_is_clipped_and_counted(tmp_path: Path) -> None:
    annotated = read("A02", tmp_path)
    (record,) = annotated.records
    np.testing.assert_allclose(record.truth.boxes / 1000, [expected("A02")["clipped_xyxy"]], atol=1e-6)
    assert [(one.code, one.line, one.lost) for one in annotated.problems] == [("clipped", 1, False)]
    assert len(DetectionDataset(annotated.records, Preprocess((96, 96)), STRONG)[0].labels) == 1


def test_a03_zero_size_is_dropped_with_its_class(tmp_path: Path) -> None:
    want = expected("A03")
    annotated = read("A03", tmp_path)
    (record,) = annotated.records
    assert record.truth.labels.tolist() == want["kept_classes"]
    assert [one.line for one in annotated.lost] == [1]
    assert len(annotated.lost) == want["reported"]
    assert DetectionDataset(annotated.records, Preprocess((96, 96)), STRONG)[0].labels.tolist() == [1]


def test_a05_boxes_below_a_pixel_stay() -> None:
    want = expected("A05")
    width, height = want["image_wh"]
    image = np.zeros((height, width, 3), np.uint8)
    sample = Sample(image, np.array([want["box_xyxy"]], np.float32), np.array([0]))
    for least, kept in ((want["min_width"], want["kept"]), (1, 0)):
        augment = Augment(min_size=least)
        done = augment(loader([sample]), 0, 1, Preprocess((height, width)), np.random.default_rng(0))
        assert len(done.boxes) == kept


def test_a06_mosaic_keeps_boxes_on_their_own_pixels() -> None:
    preprocess, pictures = (
        Preprocess((32, 32), pad_value=7),
        [flat(colour, label) for label, colour in enumerate(COLOURS)],
    )
    for x in range(16, 49):
        for y in range(16, 49):
            done = mosaic(pictures, preprocess, (x, y), keep=(0.0, 0.0))
            assert len(done.boxes) == len(done.labels) <= 4
            for (x1, y1, x2, y2), label in zip(done.boxes, done.labels, strict=True):
                assert 0 <= x1 < x2 <= 32
                assert 0 <= y1 < y2 <= 32
                part = done.image[int(y1) : int(np.ceil(y2)), int(x1) : int(np.ceil(x2))]
                assert (part == COLOURS[label]).all()


@pytest.mark.parametrize("options", [{}, {"mosaic": 1e-9}, {"scale": 1e-9}])
def test_a07_without_mosaic_nothing_moves(options: dict[str, float]) -> None:
    """All ranges at zero give the picture itself, also where the machinery is switched on."""
    sample = spotted(1, 32, 32, 1)
    done = Augment(**options)(loader([sample]), 0, 1, Preprocess((32, 32)), np.random.default_rng(0))
    assert np.array_equal(done.image, sample.image)
    np.testing.assert_allclose(done.boxes, sample.boxes, atol=1e-5)


def test_a08_flips() -> None:
    want = expected("A08")
    image = np.zeros((want["H"], want["W"], 3), np.uint8)
    sample = Sample(image, np.array([want["box_xyxy"]], np.float32), np.array([0]))
    assert flip(sample, True, False).boxes.tolist() == [want["hflip"]]
    assert flip(sample, False, True).boxes.tolist() == [want["vflip"]]
    assert flip(flip(sample, True, False), True, False).boxes.tolist() == [want["twice"]]
