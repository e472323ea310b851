"""Sizes, padding and pixels as Darknet has them; boxes there and back."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.paths import shared
from yolo.data.preprocess import Preprocess, place, resize_aligned, undo

SIDES = st.integers(1, 5000)
RESIZES = st.sampled_from(["letterbox", "stretch"])  # cover: the picture is larger than the canvas


def test_letterbox_by_hand() -> None:
    """1270 x 780 into 416: 255.496 rows become 255, 80 above and 81 below (opencv/opencv#14414)."""
    image = np.full((780, 1270, 3), 9, np.uint8)
    canvas, placement = Preprocess((416, 416))(image)
    assert canvas.shape == (416, 416, 3)
    rows = np.flatnonzero((canvas == 9).all(axis=(1, 2)))
    assert (rows[0], rows[-1] + 1) == (80, 335)
    assert (canvas[:80] == 128).all()
    assert (canvas[335:] == 128).all()
    assert placement == (416 / 1270, 255 / 780, 0, 80, 1270, 780)


def test_stretch_by_hand() -> None:
    canvas, placement = Preprocess((416, 320), "stretch")(np.zeros((780, 1270, 3), np.uint8))
    assert canvas.shape == (416, 320, 3)
    assert placement == (320 / 1270, 416 / 780, 0, 0, 1270, 780)


@pytest.mark.parametrize(
    ("height", "width", "inner", "first"),
    [(40, 100, (20, 50), 15), (60, 20, (60, 20), 0), (21, 21, (20, 20), 0)],
)
def test_cover_cuts_the_middle_out(height: int, width: int, inner: tuple[int, int], first: int) -> None:
    """Darknet's resize_min and crop: integer sides, the odd pixel cut at the right and below."""
    preprocess = Preprocess((20, 20), "cover")
    assert preprocess.inner_size(height, width) == inner
    image = np.zeros((height, width, 3), np.uint8)
    image[:, :, 0] = np.arange(width)
    canvas, placement = preprocess(image)
    assert canvas.shape == (20, 20, 3)
    assert canvas[0, 0, 0] == pytest.approx((first + 0.5) * width / inner[1] - 0.5, abs=1)
    box = np.array([[width / 4, height / 4, width / 2, height / 2]], np.float32)
    assert placement.pad_x == -first
    np.testing.assert_allclose(undo(place(box, placement), placement), box, atol=1e-4)


def test_the_same_size_changes_nothing() -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 64, 3), np.uint8)
    for resize in ("letterbox", "stretch"):
        for interpolation in ("linear", "darknet"):
            canvas, placement = Preprocess((32, 64), resize, interpolation=interpolation).in_bytes(image)
            assert np.array_equal(canvas, image)
            assert placement[:4] == (1, 1, 0, 0)
        floats, _ = Preprocess((32, 64), resize, interpolation="darknet")(image)
        assert floats.dtype == np.float32
        assert np.array_equal(floats, (image / 255.0).astype(np.float32))  # C divides in double precision


def test_pixels_are_darknets() -> None:
    """Resize and letterbox against the C code."""
    golden = np.load(shared("golden", "layers", "images_resize_letterbox_distort_crop_place.npz"))
    image = golden["image"].transpose(1, 2, 0)
    compared = 0
    for name in golden.files:
        kind, _, size = name.partition("_")
        if kind not in ("resize", "letterbox"):
            continue
        height, width = map(int, size.split("x"))
        wanted = golden[name].transpose(1, 2, 0)
        if kind == "resize":
            np.testing.assert_allclose(resize_aligned(image, height, width), wanted, atol=1e-6)
        else:
            preprocess = Preprocess((height, width), pad_value=128)
            rows, cols = preprocess.inner_size(7, 11)
            placement = preprocess.placement(7, 11)
            canvas = np.full((height, width, 3), 0.5, np.float32)
            top, left = int(placement.pad_y), int(placement.pad_x)
            canvas[top : top + rows, left : left + cols] = resize_aligned(image, rows, cols)
            np.testing.assert_allclose(canvas, wanted, atol=1e-6)
        compared += 1
    assert compared == 8


def test_darknet_interpolation_of_bytes_rounds() -> None:
    """Two pixels to three: the middle is the mean, the corners stay."""
    image = np.array([[[0, 0, 0], [9, 100, 255]]], np.uint8)
    preprocess = Preprocess((1, 3), "stretch", interpolation="darknet")
    canvas, _ = preprocess.in_bytes(image)
    assert canvas[0, 0].tolist() == [0, 0, 0]
    assert canvas[0, 2].tolist() == [9, 100, 255]
    assert np.abs(canvas[0, 1].astype(float) - [4.5, 50, 127.5]).max() <= 0.5
    floats, _ = preprocess(image)
    np.testing.assert_allclose(floats[0, 1] * 255, [4.5, 50, 127.5], atol=1e-4)


def test_the_grey_of_darknet_is_one_half() -> None:
    image = np.zeros((10, 20, 3), np.uint8)
    for interpolation, pad_value, wanted in (
        ("linear", 128, 128),
        ("darknet", 128, 0.5),
        ("darknet", 51, 0.2),
    ):
        preprocess = Preprocess((20, 20), pad_value=pad_value, interpolation=interpolation)  # type: ignore[arg-type]
        canvas, _ = preprocess(image)
        assert np.unique(canvas[:5]).tolist() == [np.asarray(wanted, canvas.dtype)]
        assert np.unique(canvas[5:15]).tolist() == [0]


@pytest.mark.parametrize(("height", "dark"), [(239, False), (240, True), (241, True), (360, False)])
def test_the_last_row_is_dark_where_darknets_is(height: int, dark: bool) -> None:
    """In float32 415 * (239 / 415) is 238.99998: nearly all weight is on a row that Darknet does not add."""
    white = np.ones((height, 4, 3), np.float32)
    resized = resize_aligned(white, 416, 4)
    np.testing.assert_allclose(resized[:-1], 1, atol=1e-4)
    np.testing.assert_allclose(resized[-1], 0 if dark else 1, atol=1e-4)
    assert np.array_equal(resize_aligned(white.transpose(1, 0, 2), 4, 416), np.ones((4, 416, 3), np.float32))


@settings(deadline=None)
@given(SIDES, SIDES, st.integers(1, 1300), st.integers(1, 1300), RESIZES)
def test_picture_lies_inside_the_canvas(height: int, width: int, rows: int, cols: int, resize: str) -> None:
    preprocess = Preprocess((rows, cols), resize)  # type: ignore[arg-type]
    inner_rows, inner_cols = preprocess.inner_size(height, width)
    assert 1 <= inner_rows <= rows
    assert 1 <= inner_cols <= cols
    assert inner_rows == rows or inner_cols == cols
    placement = preprocess.placement(height, width)
    box = place(np.array([[0, 0, width, height]], np.float64), placement)[0]
    wanted = (
        placement.pad_x, placement.pad_y, placement.pad_x + inner_cols, placement.pad_y + inner_rows,
    )  # fmt: skip
    np.testing.assert_allclose(box, wanted, atol=1e-6)


@settings(deadline=None)
@given(SIDES, SIDES, RESIZES, st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_there_and_back(height: int, width: int, resize: str, corners: list[float]) -> None:
    placement = Preprocess((416, 608), resize).placement(height, width)  # type: ignore[arg-type]
    box = np.array([corners], np.float64) * [width, height, width, height]
    np.testing.assert_allclose(undo(place(box, placement), placement), box, atol=1e-6 * max(width, height))
    tensor = torch.tensor(box, dtype=torch.float32)
    back = undo(place(tensor, placement), placement)
    assert back.dtype == torch.float32
    torch.testing.assert_close(back, tensor, atol=2e-5 * max(width, height), rtol=1e-4)


def test_dict_round_trip() -> None:
    preprocess = Preprocess((320, 480), "stretch", 0, "darknet")
    assert Preprocess.from_dict(preprocess.to_dict()) == preprocess
    assert preprocess.to_dict() == {
        "size": [320, 480], "resize": "stretch", "pad_value": 0, "interpolation": "darknet",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"unknown preprocess options \['sizes'\]"):
        Preprocess.from_dict({"sizes": [1, 2]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (0, 416)}, r"height and width in pixels, got \(0, 416\)"),
        ({"resize": "crop"}, "resize must be one of .* got 'crop'"),
        ({"interpolation": "cubic"}, "interpolation must be one of .* got 'cubic'"),
        ({"pad_value": 300}, "pad_value must be 0 to 255, got 300"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preprocess(**options)  # type: ignore[arg-type]
