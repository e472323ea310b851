"""One way from a file to RGB pixels: EXIF turn applied, every mode handled, damaged files refused by name.

Rules that the file formats leave open:

* transparency is ignored: the colour that the file stores under it is taken (as Darknet's loader does);
* 16-bit samples keep their high byte;
* a file with several frames gives its first;
* JPEG pixels are libjpeg's, or with ``rounding="stb"`` those of stb_image (:mod:`yolo.data.stb`), where the file
  is plain: whole, 8 bits, gray or YCbCr. What can be read and what is refused does not depend on it.
"""

import io
import struct
from pathlib import Path
from typing import Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from yolo.data import header
from yolo.data.stb import decode_stb

Rounding = Literal["libjpeg", "stb"]
MAX_PIXELS = 1 << 27  # 134 million: 16 times a 4K frame. Anything above is taken for a decompression bomb

_PLAIN = ("L", "RGB", "RGBA", "LA", "P", "1", "PA", "La", "CMYK", "YCbCr", "HSV", "RGBX")
_ORIENTATION = 0x0112
_FAST = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION


class ImageInfo(NamedTuple):
    """What the first bytes of a picture say."""

    height: int  # as stored, pixels
    width: int
    orientation: int  # EXIF, 1 to 8

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as shown, that is with the EXIF turn applied."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def load_image(path: str | Path, rounding: Rounding = "libjpeg") -> NDArray[np.uint8]:
    """Decode a picture as it is meant to be seen.

    Args:
        path: JPEG, PNG, WebP, BMP, TIFF, GIF, PNM: whatever Pillow reads.
        rounding: Whose arithmetic JPEG files are decoded with.

    Returns:
        ``[H, W, 3]`` uint8, RGB, with the EXIF turn applied.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, cut short, not a picture, or larger than ``MAX_PIXELS``.
    """
    return decode_image(Path(path).read_bytes(), path, rounding)


def decode_image(
    data: bytes, name: str | Path = "picture", rounding: Rounding = "libjpeg"
) -> NDArray[np.uint8]:
    """:func:`load_image` for a file that is in memory already; errors call it ``name``.

    Raises:
        ValueError: As there.
    """
    info = header.parse(data)
    if info is not None:
        _check_pixels(name, info.height, info.width)
        if info.plain and header.ends_properly(data):
            image = _decode_fast(data)
            if image is not None and image.shape[:2] == (info.height, info.width):
                exact = decode_stb(data) if rounding == "stb" and header.is_jpeg(data) else None
                return turn(image if exact is None else exact, info.orientation)
    return _decode_any(name, data)


def image_info(path: str | Path) -> ImageInfo:
    """Stored size and EXIF orientation, from the header alone where that is possible.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not a picture, or larger than ``MAX_PIXELS``.
    """
    with Path(path).open("rb") as file:
        data = file.read(header.ENOUGH)
        info = header.parse(data)
        if info is None and len(data) == header.ENOUGH:  # long metadata before the size
            data += file.read()
            info = header.parse(data)
    if info is None:
        return _info_any(path)
    _check_pixels(path, info.height, info.width)
    return ImageInfo(info.height, info.width, info.orientation)


def info_of(data: bytes, name: str | Path = "picture") -> ImageInfo:
    """:func:`image_info` for a file that is in memory already; nothing is decoded.

    Raises:
        ValueError: As there.
    """
    info = header.parse(data)
    if info is not None:
        _check_pixels(name, info.height, info.width)
        return ImageInfo(info.height, info.width, info.orientation)
    with _open(name, io.BytesIO(data)) as image:
        return ImageInfo(image.height, image.width, _orientation(image))


def image_size(path: str | Path) -> tuple[int, int]:
    """Height and width of the picture as :func:`load_image` returns it; reads only the header.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not a picture, or larger than ``MAX_PIXELS``.
    """
    return image_info(path).size


def check_image(path: str | Path) -> ImageInfo:
    """Like :func:`image_info`, and refuse a file that is cut short: cheap where the format has an end mark.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, cut short, not a picture, or larger than ``MAX_PIXELS``.
    """
    info = image_info(path)
    if not header.file_ends_properly(Path(path)):
        load_image(path)  # perhaps only something appended: the full decoder decides
    return info


def turn(image: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Apply an EXIF orientation (CIPA DC-008, table 5) to ``[H, W, 3]``."""
    if orientation in (5, 6, 7, 8):
        image = cv2.transpose(image)
    if orientation in (2, 3, 6, 7):
        image = cv2.flip(image, 1)
    if orientation in (3, 4, 7, 8):
        image = cv2.flip(image, 0)
    return image


def turn_boxes(boxes: NDArray[np.float64], info: ImageInfo) -> NDArray[np.float64]:
    """Take ``[T, 4]`` boxes from the stored frame of a picture to the one it is shown in."""
    x1, y1, x2, y2 = boxes.T
    width, height = info.width, info.height
    if info.orientation >= 5:
        x1, y1, x2, y2 = y1, x1, y2, x2
        width, height = height, width
    if info.orientation in (2, 3, 6, 7):
        x1, x2 = width - x2, width - x1
    if info.orientation in (3, 4, 7, 8):
        y1, y2 = height - y2, height - y1
    return np.stack([x1, y1, x2, y2], axis=1)


def _check_pixels(path: str | Path, height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise ValueError(f"{path}: a picture of {width}x{height} pixels has nothing to show")
    if height * width > MAX_PIXELS:
        raise ValueError(f"{path}: {width}x{height} pixels, more than the {MAX_PIXELS} that are allowed")


def _decode_fast(data: bytes) -> NDArray[np.uint8] | None:
    """OpenCV's decoder, three times as fast as Pillow; None where it gives up."""
    try:
        image: NDArray[np.uint8] | None = cv2.imdecode(np.frombuffer(data, np.uint8), _FAST)
    except cv2.error:
        return None
    return image


def _open(path: str | Path, source: io.BytesIO | Path) -> Image.Image:
    try:
        image = Image.open(source)
        _check_pixels(path, image.height, image.width)
    except FileNotFoundError:
        raise
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path}: more pixels than the {MAX_PIXELS} that are allowed ({error})") from error
    except UnidentifiedImageError as error:
        raise ValueError(
            f"{path}: not a picture in a format that is known, or its header is damaged"
        ) from error
    except (
        OSError,
        SyntaxError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        struct.error,
        EOFError,
    ) as error:
        raise ValueError(f"{path}: cannot be opened as a picture: {error}") from error
    return image


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, struct.error):
        return 1  # metadata that cannot be read turns nothing
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _info_any(path: str | Path) -> ImageInfo:
    with _open(path, Path(path)) as image:
        return ImageInfo(image.height, image.width, _orientation(image))


def _decode_any(path: str | Path, data: bytes) -> NDArray[np.uint8]:
    """Pillow's decoder, for every mode and for the verdict on files that look cut."""
    if not data:
        raise ValueError(f"{path}: the file is empty")
    with _open(path, io.BytesIO(data)) as image:
        try:
            image.load()
            orientation = _orientation(image)
            pixels = _rgb(path, image)
        except (OSError, SyntaxError, TypeError, KeyError, IndexError, struct.error, EOFError) as error:
            raise ValueError(f"{path}: damaged or cut short: {error}") from error
        except Image.DecompressionBombError as error:
            raise ValueError(
                f"{path}: more pixels than the {MAX_PIXELS} that are allowed ({error})"
            ) from error
    return turn(pixels, orientation)


def _rgb(path: str | Path, image: Image.Image) -> NDArray[np.uint8]:
    if image.mode in _PLAIN:
        return np.array(image.convert("RGB"))
    if image.mode == "RGBa":  # premultiplied: undone first
        return np.array(image.convert("RGBA").convert("RGB"))
    if image.mode == "I" or image.mode.startswith("I;16"):
        samples = np.asarray(image).astype(np.int64)
        if samples.min() < 0 or samples.max() > 0xFFFF:
            raise ValueError(
                f"{path}: {image.mode} samples from {samples.min()} to {samples.max()}, wanted 16 bits"
            )
        return np.repeat((samples >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "LAB":
        raise ValueError(f"{path}: Lab pixels are not supported, convert the file to RGB")
    raise ValueError(f"{path}: pixels of mode {image.mode} have no known range, convert the file to 8 bits")
