"""Moved pixels and moved boxes stay together."""

import albumentations
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.data.samples import COLOURS, flat, loader, spotted
from yolo.data.augment import Augment
from yolo.data.geometry import Sample, flip, merge, mosaic, single
from yolo.data.preprocess import Preprocess


def assert_boxes_hold_the_white(sample: Sample, slack: float = 1.5) -> None:
    """Inside of a box all is white, and no white is outside of all boxes."""
    white = sample.image[:, :, 0] > 200
    covered = np.zeros_like(white)
    for x1, y1, x2, y2 in sample.boxes:
        rows, cols = (
            slice(int(y1 + slack), max(0, int(y2 - slack))),
            slice(int(x1 + slack), max(0, int(x2 - slack))),
        )
        assert white[rows, cols].all()
        covered[
            max(0, int(y1 - slack)) : int(y2 + slack) + 1, max(0, int(x1 - slack)) : int(x2 + slack) + 1
        ] = True
    assert not (white & ~covered).any()


@pytest.mark.parametrize("x", range(16, 49, 2))
def test_mosaic_of_flat_colours(x: int) -> None:
    """Whatever the middle, a box holds only pixels of its own picture (ultralytics/yolov5#1020)."""
    preprocess = Preprocess((32, 32), pad_value=7)
    for y in range(16, 49):
        pictures = [flat(colour, label) for label, colour in enumerate(COLOURS)]
        result = mosaic(pictures, preprocess, (x, y), keep=(0.0, 0.0))
        assert len(result.boxes) == len(result.labels) <= 4
        area = 0.0
        for (x1, y1, x2, y2), label in zip(result.boxes, result.labels, strict=True):
            assert 0 <= x1 < x2 <= 32
            assert 0 <= y1 < y2 <= 32
            part = result.image[int(y1) : int(np.ceil(y2)), int(x1) : int(np.ceil(x2))]
            assert (part == COLOURS[label]).all()
            area += (x2 - x1) * (y2 - y1)
        covered = sum(int((result.image == colour).all(axis=2).sum()) for colour in COLOURS)
        assert covered == area  # every pixel of a picture is in the box of that picture


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.floats(0.4, 1.6), st.floats(-0.2, 0.2), st.floats(0.5, 1.5), st.floats(0.5, 1.5)
)
def test_mosaic_keeps_boxes_on_their_objects(
    seed: int, zoom: float, shift: float, x: float, y: float
) -> None:
    samples = [spotted(seed + number, 80 + 11 * number, 150 - 13 * number) for number in range(4)]
    preprocess = Preprocess((128, 160), pad_value=0)
    keep = (0.0, 0.0)
    result = mosaic(samples, preprocess, (x * 160, y * 128), (zoom, zoom * 1.1), (shift, -shift), keep)
    assert result.image.shape == (128, 160, 3)
    assert (result.boxes[:, :2] >= 0).all()
    assert (result.boxes[:, 2:] <= (160, 128)).all()
    assert_boxes_hold_the_white(result, 2.5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.4, 1.6), st.floats(-0.3, 0.3), st.booleans(), st.booleans())
def test_single_keeps_boxes_on_their_objects(
    seed: int, zoom: float, shift: float, left: bool, up: bool
) -> None:
    preprocess = Preprocess((128, 160), pad_value=0)
    moved = single(spotted(seed), preprocess, (zoom, zoom / 1.2), (shift, -shift / 2), (0.0, 0.0))
    assert_boxes_hold_the_white(flip(moved, left, up), 2.5)


def test_flip_by_hand() -> None:
    """(0, 0, 100, 100) in 640 x 480: edges are continuous, so W and not W - 1."""
    sample = Sample(
        np.zeros((480, 640, 3), np.uint8), np.array([[0, 0, 100, 100]], np.float32), np.array([3])
    )
    assert flip(sample, True, False).boxes.tolist() == [[540, 0, 640, 100]]
    assert flip(sample, False, True).boxes.tolist() == [[0, 380, 100, 480]]
    assert sample.boxes.tolist() == [[0, 0, 100, 100]]  # what was given is left as it was


@settings(deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_flip_twice_is_nothing(seed: int, horizontal: bool, vertical: bool) -> None:
    sample = spotted(seed)
    twice = flip(flip(sample, horizontal, vertical), horizontal, vertical)
    assert np.array_equal(twice.image, sample.image)
    assert np.array_equal(twice.boxes, sample.boxes)


def test_default_changes_nothing() -> None:
    """No mosaic and no range: picture and box as they went in (ultralytics PR#640)."""
    assert not Augment().active
    sample = spotted(1, 32, 32, 1)
    result = Augment()(loader([sample]), 0, 1, Preprocess((32, 32)), np.random.default_rng(0))
    assert np.array_equal(result.image, sample.image)
    assert np.array_equal(result.boxes, sample.boxes)


def test_thin_boxes_stay() -> None:
    """Half a pixel is kept unless min_size says otherwise (albumentations#1928)."""
    image = np.zeros((480, 640, 3), np.uint8)
    sample = Sample(image, np.array([[10, 10, 10.5, 30]], np.float32), np.array([0]))
    preprocess = Preprocess((480, 640))
    rng = np.random.default_rng(0)
    assert len(Augment()(loader([sample]), 0, 1, preprocess, rng).boxes) == 1
    assert len(Augment(min_size=1)(loader([sample]), 0, 1, preprocess, rng).boxes) == 0


def test_mostly_hidden_objects_are_dropped_with_their_labels() -> None:
    image = np.zeros((100, 100, 3), np.uint8)
    sample = Sample(image, np.array([[0, 0, 20, 20], [60, 60, 90, 90]], np.float32), np.array([5, 6]))
    moved = single(sample, Preprocess((100, 100)), shift=(-0.19, 0.0))
    assert moved.labels.tolist() == [6]  # 5 % of the first is left
    assert moved.boxes.tolist() == [[41, 60, 71, 90]]


def test_mixup_has_the_objects_of_both() -> None:
    one, other = flat((200, 0, 0), 1), flat((0, 100, 0), 2)
    result = merge(one, other, 0.25)
    assert result.image[0, 0].tolist() == [50, 75, 0]
    assert result.labels.tolist() == [1, 2]


def test_many_boxes_survive_mosaic_and_mixup() -> None:
    """Nothing caps the count: four pictures of 150 boxes each can give 600 (pjreddie/darknet#600)."""
    grid = np.stack(np.meshgrid(np.arange(15) * 8, np.arange(10) * 8), axis=-1).reshape(-1, 2)
    boxes = np.concatenate([grid, grid + 6], axis=1).astype(np.float32)
    sample = Sample(np.zeros((80, 120, 3), np.uint8), boxes, np.zeros(150, np.int64))
    result = mosaic([sample] * 4, Preprocess((240, 240)), (240, 240), (0.5, 0.5))
    assert len(result.boxes) == 600


def test_extra_transforms_are_seeded() -> None:
    """albumentations follows the generator that is handed in."""
    augment = Augment(extra=[albumentations.GaussNoise(p=1.0)])
    sample = spotted(0)
    results = [
        augment(loader([sample]), 0, 1, Preprocess((96, 128)), np.random.default_rng(seed)).image
        for seed in (1, 1, 2)
    ]
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])
    with pytest.raises(ValueError, match="pixels alone, got HorizontalFlip"):
        Augment(extra=[albumentations.HorizontalFlip()])


@settings(max_examples=40, deadline=None)
@example(281)  # a box clipped to 1e-6 pixels, which mirroring rounded away
@given(st.integers(0, 10**6))
def test_strong_augmentation_gives_valid_samples(seed: int) -> None:
    augment = Augment(0.5, 0.5, 0.5, 3.0, 3.0, 0.9, 0.5, 1.0, 0.7, 0.5, min_visible=0.0)
    samples = [spotted(number, 40 + 30 * number, 200 - 40 * number) for number in range(4)]
    result = augment(loader(samples), seed % 4, 4, Preprocess((96, 64)), np.random.default_rng(seed))
    assert result.image.shape == (96, 64, 3)
    assert result.image.dtype == np.uint8
    assert result.boxes.dtype == np.float32
    assert len(result.boxes) == len(result.labels)
    assert (result.boxes[:, 2:] > result.boxes[:, :2]).all()
    assert (result.boxes >= 0).all()
    assert (result.boxes <= (64, 96, 64, 96)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flip": 1.5}, r"augment.flip must be 0 to 1, got 1.5"),
        ({"scale": 1.0}, "augment.scale must be 0 or more and less than 1, got 1.0"),
        ({"hue": 0.7}, "augment.hue must be 0 to 0.5"),
        ({"saturation": -1.0}, "augment.saturation must not be negative"),
        ({"mixup_alpha": 0.0}, "augment.mixup_alpha must be positive"),
    ],
)
def test_wrong_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augment(**options)
