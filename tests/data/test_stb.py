"""JPEG files decoded as stb_image decodes them; what is no plain JPEG file goes the ordinary way."""

import io
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.helpers.paths import shared
from yolo.data.image import decode_image, load_image
from yolo.data.jpeg import MOST_SCANS, read_jpeg
from yolo.data.stb import decode_stb

DIGESTS = {  # CRC-32 of the RGB bytes that stb_image itself gives
    "data/coco228/images/000000000009.jpg": 0x2C68C182,  # colour in full resolution, as nearly all of COCO
    "data/coco228/images/000000000086.jpg": 0x9AFED593,  # gray
    "data/bccd/JPEGImages/BloodImage_00067.jpg": 0xDF328EBA,  # half of it down and across
    "data/fod/JPEGImages/004248.jpg": 0x3F246D59,  # the same, filled up to whole units
    "awkward/images/sugarshack_bad_mpo_header.jpg": 0xF767B206,  # half of it across
    "darknet/images/dog.jpg": 0x1AF14761,  # half of it down
    "awkward/images/made_progressive.jpg": 0x524F4881,
    "awkward/images/app13-multiple.jpg": 0xAE34DD3B,  # progressive
    "awkward/images/hopper_16bit_qtables.jpg": 0xACB26E76,
    "awkward/images/made_4000x3.jpg": 0xAEF65C8F,
}


def blobs(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Soft coloured shapes and some noise: every coefficient occurs."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 6), max(2, width // 6), 3)).astype(np.float32)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)


def encoded(image: NDArray[np.uint8], **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def stb(data: bytes) -> NDArray[np.uint8]:
    pixels = decode_stb(data)
    assert pixels is not None
    return pixels


@pytest.mark.parametrize("name", DIGESTS)
def test_pixels_are_those_of_stb_image(name: str) -> None:
    pixels = stb(shared(*name.split("/")).read_bytes())
    assert zlib.crc32(np.ascontiguousarray(pixels).tobytes()) == DIGESTS[name]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 50), st.integers(1, 50), st.integers(1, 98), st.sampled_from([0, 1, 2]), st.booleans(),
    st.integers(0, 3), st.integers(0, 999),
)  # fmt: skip
def test_the_same_coefficients_give_the_same_pixels(
    height: int, width: int, quality: int, subsampling: int, gray: bool, restart: int, seed: int
) -> None:
    """However a file orders and codes them: baseline, with restarts, with its own codes, progressive."""
    image = blobs(height, width, seed)
    image = np.ascontiguousarray(image[:, :, 0]) if gray else image
    same = {"quality": quality, "subsampling": subsampling}
    plain = stb(encoded(image, **same))
    assert plain.shape == (height, width, 3)
    for other in ({"restart_marker_blocks": restart}, {"optimize": True}, {"progressive": True}):
        assert np.array_equal(stb(encoded(image, **same, **other)), plain), other


@pytest.mark.parametrize("factor", ["444", "422", "420", "440", "411"])
@pytest.mark.parametrize("progressive", [0, 1])
def test_close_to_libjpeg(factor: str, progressive: int) -> None:
    """It rounds elsewhere by a few steps; between colour samples the two draw nearly the same line."""
    flags = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{factor}")]
    flags += [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive, cv2.IMWRITE_JPEG_QUALITY, 90]
    data = cv2.imencode(".jpg", blobs(67, 93), flags)[1].tobytes()
    difference = np.abs(stb(data).astype(int) - decode_image(data))
    assert difference[:, 2:-2].max() <= (3 if factor == "444" else 8)
    assert 0 < difference.mean() < 1
    assert np.array_equal(decode_image(data, rounding="stb"), stb(data))


def test_turned_by_exif() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = blobs(20, 33)
    turned = decode_image(encoded(image, exif=exif), rounding="stb")
    assert np.array_equal(turned, np.rot90(stb(encoded(image)), -1))


def cmyk() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(blobs(20, 30)).convert("CMYK").save(buffer, "JPEG")
    return buffer.getvalue()


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(blobs(20, 30)).save(buffer, "PNG")
    return buffer.getvalue()


OTHERS: dict[str, Callable[[], bytes]] = {
    "cmyk": cmyk,
    "png": png,
    "rgb": lambda: encoded(blobs(20, 30), keep_rgb=True, subsampling=0),
    "appended": lambda: encoded(blobs(20, 30)) + b"garbage",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_everything_else_goes_the_ordinary_way(kind: str) -> None:
    data = OTHERS[kind]()
    assert np.array_equal(decode_image(data, rounding="stb"), decode_image(data))


def test_files_that_are_awkward_are_refused_alike() -> None:
    for path in sorted(shared("awkward", "images").iterdir()):
        assert outcome(path.read_bytes(), "stb") == outcome(path.read_bytes(), "libjpeg"), path


def outcome(data: bytes, rounding: str) -> object:
    """The shape, or the message."""
    try:
        return decode_image(data, rounding=rounding).shape  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)


SMALL = [
    encoded(blobs(24, 40), subsampling=2),
    encoded(blobs(24, 40), subsampling=1, progressive=True),
    encoded(blobs(24, 40), subsampling=0, restart_marker_blocks=2),
]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SMALL), st.data())
def test_damaged_files_are_read_or_refused_as_ever(data: bytes, draw: st.DataObject) -> None:
    broken = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        broken[draw.draw(st.integers(2, len(broken) - 1))] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.one_of(st.just(len(broken)), st.integers(2, len(broken))))
    assert outcome(bytes(broken[:cut]), "stb") == outcome(bytes(broken[:cut]), "libjpeg")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\xff\xda\x00\x0c\x03\x01", b"\xff\xda\x00\x0c\x03\x09"),  # a component that is not there
        (b"\xff\xda\x00\x0c\x03\x01\x00", b"\xff\xda\x00\x0c\x03\x01\x02"),  # a table that is not there
        (b"\xff\xda\x00\x0c\x03\x01\x00\x02", b"\xff\xda\x00\x0c\x03\x01\x00\x01"),  # one twice
        (b"\xff\xdb\x00\x43\x00", b"\xff\xfe\x00\x43\x00"),  # no divisors
        (b"\xff\xc0", b"\xff\xc3"),  # lossless
        (b"\xff\xd9", b""),  # no end
    ],
)
def test_a_header_that_does_not_fit_is_left_alone(old: bytes, new: bytes) -> None:
    data = encoded(blobs(24, 40), subsampling=0)
    assert data.count(old) == 1
    assert read_jpeg(data) is not None
    assert read_jpeg(data.replace(old, new)) is None


def test_a_file_of_endless_scans_is_left_alone() -> None:
    data = encoded(blobs(24, 40), progressive=True)
    last = data.rindex(b"\xff\xda")
    assert read_jpeg(data) is not None
    assert read_jpeg(data[:-2] + data[last:-2] * MOST_SCANS + data[-2:]) is None


def test_load_image_asks_for_it(tmp_path: Path) -> None:
    data = encoded(blobs(60, 80))
    (tmp_path / "a.jpg").write_bytes(data)
    assert np.array_equal(load_image(tmp_path / "a.jpg", "stb"), stb(data))
    assert not np.array_equal(load_image(tmp_path / "a.jpg"), stb(data))
