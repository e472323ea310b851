"""Every kind of file loads to the right pixels or is refused by name."""

import csv
import io
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.helpers.paths import shared
from yolo.data.image import MAX_PIXELS, ImageInfo, check_image, image_size, load_image, turn, turn_boxes

REFUSED = {
    "broken.png",
    "kangaroo_00090_truncated20.jpg",
    "made_bomb_30000x30000_1bit.png",
    "made_html_error.jpg",
    "made_zero_byte.jpg",
    "png_decompression_dos.png",
    "truncated_image.png",
    "truncated_jpeg.jpg",
    "ultrahdr.jpg",  # cut inside its second picture, and the first cannot be told to be whole
    "unknown_compression_method.png",
    "zero_width.gif",
}


def quarters() -> Image.Image:
    """Red, green, blue and white quarters, 40 wide and 24 high."""
    pixels = np.zeros((24, 40, 3), np.uint8)
    pixels[:12, :20] = (255, 0, 0)
    pixels[:12, 20:] = (0, 255, 0)
    pixels[12:, :20] = (0, 0, 255)
    pixels[12:, 20:] = (255, 255, 255)
    return Image.fromarray(pixels)


def test_awkward_files() -> None:
    """All 56: refused where Pillow gives up, otherwise its pixels, and the header gives the same size."""
    folder = shared("awkward")
    rows = list(csv.DictReader((folder / "manifest.csv").open(encoding="utf-8")))
    assert len(rows) == 56
    assert {row["file"] for row in rows if row["pillow_result"] != "loads"} == REFUSED
    for row in rows:
        path = folder / "images" / row["file"]
        if row["file"] in REFUSED:
            with pytest.raises(ValueError, match="^" + str(path).replace(".", r"\.").replace("(", r"\(")):
                load_image(path)
            with pytest.raises(ValueError, match="^" + str(path).replace(".", r"\.")):
                check_image(path)
            continue
        image = load_image(path)
        with Image.open(path) as opened:
            upright = ImageOps.exif_transpose(opened)
            if upright.mode.startswith("I"):
                wanted = np.repeat((np.asarray(upright).astype(np.int64) >> 8)[:, :, None], 3, axis=2)
            else:
                wanted = np.asarray(upright.convert("RGB"))
        assert image.dtype == np.uint8
        assert np.array_equal(image, wanted), row["file"]
        assert image_size(path) == image.shape[:2], row["file"]
        stored = sorted(map(int, row["size"].split("x")))
        assert sorted(image.shape[:2]) == stored, row["file"]
        check_image(path)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_exif_orientation(tmp_path: Path, orientation: int, suffix: str) -> None:
    """The first pixel of the upright picture is red whichever way the camera was held."""
    inverse = {6: 8, 8: 6}.get(orientation, orientation)
    stored = Image.fromarray(turn(np.asarray(quarters()), inverse))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a{suffix}"
    stored.save(path, exif=exif, quality=100, **({"lossless": True} if suffix == ".webp" else {}))
    image = load_image(path)
    assert image.shape == (24, 40, 3)
    assert image_size(path) == (24, 40)
    for at, colour in [((2, 2), (255, 0, 0)), ((2, 37), (0, 255, 0)), ((21, 2), (0, 0, 255))]:
        assert np.abs(image[at].astype(int) - colour).max() < 12


def test_boxes_turn_with_the_picture() -> None:
    """The box of the red quarter in the stored frame is the red quarter of the upright one."""
    for orientation in range(1, 9):
        stored = np.zeros((24, 40, 3), np.uint8)
        stored[3:9, 5:15] = 255
        box = turn_boxes(np.array([[5.0, 3.0, 15.0, 9.0]]), ImageInfo(24, 40, orientation))[0].astype(int)
        upright = turn(stored, orientation)
        assert upright[box[1] : box[3], box[0] : box[2]].min() == 255
        assert upright.sum() == upright[box[1] : box[3], box[0] : box[2]].sum()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_modes(tmp_path: Path, mode: str) -> None:
    """Always three channels; transparency does not change the colour that is stored."""
    colour = (200, 10, 20)
    image = Image.new("RGB", (9, 7), colour)
    if mode == "RGBA":
        image = Image.new("RGBA", (9, 7), (*colour, 3))
    elif mode == "I;16":
        image = Image.fromarray(np.full((7, 9), 0x4DFF, np.uint16))
    elif mode == "1":
        image = Image.new("1", (9, 7), 1)
    elif mode != "RGB":
        image = (
            image.convert("L").convert(mode)
            if mode == "LA"
            else image.convert(mode, palette=Image.Palette.ADAPTIVE)
        )
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    image.save(path)
    wanted = {"1": (255,) * 3, "L": (68,) * 3, "LA": (68,) * 3, "I;16": (0x4D,) * 3}.get(mode, colour)
    loaded = load_image(path)
    assert loaded.shape == (7, 9, 3)
    assert np.abs(loaded.astype(int) - wanted).max() <= (8 if mode == "CMYK" else 0)


def test_16_bit_colour_keeps_the_high_byte(tmp_path: Path) -> None:
    """RGB of 16 bits: a PNG by hand, 1 x 1, samples 0x12ff 0x3400 0x56ab."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" + bytes.fromhex("12ff340056ab"))
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
    assert load_image(tmp_path / "a.png").tolist() == [[[0x12, 0x34, 0x56]]]


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".gif"])
def test_cut_files_are_refused(tmp_path: Path, suffix: str) -> None:
    """A file cut anywhere is refused by name, by the loader and by the quick check."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, {".jpg": "jpeg"}.get(suffix, suffix[1:]))
    data = buffer.getvalue()
    path = tmp_path / f"cut{suffix}"
    last = 30 if suffix == ".png" else 7  # a PNG without its last bytes, checksums, has all pixels
    for keep in (0, 1, 9, len(data) // 3, len(data) // 2, len(data) - 40, len(data) - last):
        path.write_bytes(data[:keep])
        for function in (load_image, check_image):
            with pytest.raises(ValueError, match=f"cut\\{suffix}"):
                function(path)
    path.write_bytes(data)
    assert load_image(path).shape == (60, 80, 3)
    check_image(path)


def test_something_after_the_end_is_harmless(tmp_path: Path) -> None:
    """Cameras and editors append; the pixels are whole."""
    for suffix in ("jpg", "png"):
        path = tmp_path / f"a.{suffix}"
        quarters().save(path)
        plain = load_image(path)
        for tail in (b"\0" * 10, b"appended by a phone"):
            path.write_bytes(path.read_bytes() + tail)
            assert np.array_equal(load_image(path), plain)
            check_image(path)


def test_bomb_is_refused_quickly(tmp_path: Path) -> None:
    """A header that promises more pixels than allowed is refused before memory is taken."""
    path = tmp_path / "bomb.png"
    side = int(MAX_PIXELS**0.5) + 1
    Image.new("1", (side, side)).save(path)
    start = time.monotonic()
    with pytest.raises(ValueError, match=rf"bomb\.png: {side}x{side} pixels, more than the {MAX_PIXELS}"):
        load_image(path)
    with pytest.raises(ValueError, match=r"bomb\.png"):
        image_size(path)
    assert time.monotonic() - start < 1


def test_names_and_colour_order(tmp_path: Path) -> None:
    """Any name works, and red is the first channel."""
    for name in ("지단.png", "子 犬.png", "é.png", "a (1) [x] & b.png"):
        Image.new("RGB", (4, 3), (255, 0, 0)).save(tmp_path / name)
        assert load_image(tmp_path / name)[0, 0].tolist() == [255, 0, 0]
        assert image_size(str(tmp_path / name)) == (3, 4)
    with pytest.raises(FileNotFoundError):
        load_image(tmp_path / "none.png")
