"""Every picture is decoded once; what is kept of it is small."""

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from yolo.data import check_image, image_size, load_image
from yolo.data.store import one_opencv_thread

SIDE = 32  # pixels of the small gray picture that is kept
LOW = 8  # frequencies along each axis that the hash looks at

_SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".mpo"),
    "PNG": (".png",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "WebP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "PNM": (".ppm", ".pgm", ".pbm", ".pnm"),
}


class Look(NamedTuple):
    """What one look at a picture gives."""

    size: tuple[int, int]  # height, width as shown; 0, 0 if it cannot be read
    orientation: int  # EXIF, 1 to 8
    kind: str  # the format by its first bytes; "" if unknown
    digest: bytes  # of the file
    hash: int  # 63 bits: perceptual, see phash
    small: NDArray[np.uint8] | None  # [SIDE, SIDE] gray; None if it cannot be decoded
    problem: str = ""  # why it cannot be decoded
    cut: bool = False  # it cannot be decoded although its header can be read


def look(path: str) -> Look:
    """Decode a picture and note what the checks need."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        return Look((0, 0), 1, "", b"", 0, None, f"cannot be read: {error.strerror}")
    digest, kind = hashlib.blake2b(data, digest_size=16).digest(), kind_of(data)
    try:
        image = load_image(path)
        orientation = check_image(path).orientation
    except (OSError, ValueError) as error:
        message = str(error).removeprefix(f"{path}:").strip()
        try:
            size = image_size(path)
        except (OSError, ValueError):
            return Look((0, 0), 1, kind, digest, 0, None, message)
        return Look(size, 1, kind, digest, 0, None, message, cut=True)
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    small = np.asarray(cv2.resize(gray, (SIDE, SIDE), interpolation=cv2.INTER_AREA), np.uint8)
    return Look((image.shape[0], image.shape[1]), orientation, kind, digest, phash(small), small)


def look_at_all(
    paths: Iterable[str], threads: int | None = None, advance: Callable[[], object] = lambda: None
) -> dict[str, Look]:
    """Look at pictures in parallel (decoders work outside Python's lock).

    Args:
        paths: Of the pictures.
        threads: None: as many as there are cores to run on.
        advance: Called after each.
    """
    one_opencv_thread()
    distinct = list(dict.fromkeys(paths))
    looks = {}
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for path, found in zip(distinct, pool.map(look, distinct), strict=True):
            looks[path] = found
            advance()
    return looks


def kind_of(data: bytes) -> str:
    """The format that the first bytes of a file tell."""
    for start, kind in (
        (b"\xff\xd8\xff", "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"GIF8", "GIF"),
        (b"BM", "BMP"),
        (b"II*\x00", "TIFF"),
        (b"MM\x00*", "TIFF"),
    ):
        if data.startswith(start):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    return "PNM" if data[:1] == b"P" and data[1:2] in b"123456" and data[2:3].isspace() else ""


def suffix_fits(path: str, kind: str) -> bool:
    """Whether a file's name ends as its format wants; formats that are not known here fit any name."""
    return kind not in _SUFFIXES or Path(path).suffix.lower() in _SUFFIXES[kind]


def phash(small: NDArray[np.uint8]) -> int:
    """A perceptual hash: which low frequencies of the cosine transform lie above their median.

    It stays within a few bits under scaling, compression, a little noise, and changes of brightness and contrast.

    Args:
        small: ``[SIDE, SIDE]`` uint8, gray.

    Returns:
        ``LOW * LOW - 1`` bits; the mean brightness is not among them.
    """
    low = cv2.dct(small.astype(np.float32))[:LOW, :LOW].ravel()[1:]
    bits = np.packbits(low > np.median(low))
    return int.from_bytes(bits.tobytes(), "big")
