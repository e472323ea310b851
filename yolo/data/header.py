"""The first bytes of JPEG and PNG files: size, EXIF turn, and whether the quick decoder may have them."""

import re
import struct
from pathlib import Path
from typing import NamedTuple

ENOUGH = 1 << 16  # bytes in which nearly every file has said its size

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_XMP = b"http://ns.adobe.com/xap/1.0/\x00"
_XMP_ORIENTATION = re.compile(rb"tiff:Orientation(?:=[\"']|>)([1-8])")
_SOF = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})


class Header(NamedTuple):
    """What is known before decoding."""

    height: int  # as stored
    width: int
    orientation: int  # EXIF, 1 to 8
    plain: bool  # 8 bits, gray or colour, nothing special: OpenCV and Pillow agree on it


def parse(data: bytes) -> Header | None:
    """Read the header of a JPEG or PNG file; None for other formats and for what is damaged or incomplete."""
    try:
        if is_jpeg(data):
            return _jpeg(data)
        if data.startswith(_PNG):
            return _png(data)
    except (struct.error, IndexError):
        return None
    return None


def is_jpeg(data: bytes) -> bool:
    """Whether a file begins as a JPEG file does."""
    return data.startswith(b"\xff\xd8")


def ends_properly(data: bytes) -> bool:
    """Whether a JPEG or PNG file ends with its end mark (zero padding after it is common and harmless)."""
    if data.startswith(_PNG):
        return data.endswith(_PNG_END)
    return data.endswith(b"\xff\xd9") or data.rstrip(b"\x00").endswith(b"\xff\xd9")


def file_ends_properly(path: Path) -> bool:
    """Whether the file is whole by its end mark or by the length it declares; False: decode to know."""
    with path.open("rb") as file:
        head = file.read(16)
        length = file.seek(0, 2)
        file.seek(max(0, length - 64))
        tail = file.read()
    if head.startswith((b"\xff\xd8", _PNG)):
        return ends_properly(head[:8] + tail)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return length >= struct.unpack("<I", head[4:8])[0] + 8
    if head[:2] == b"BM":
        return length >= struct.unpack("<I", head[2:6])[0] > 0
    return False


def _jpeg(data: bytes) -> Header | None:
    """Walk the marker segments (ITU-T T.81, annex B) up to the frame header."""
    position, orientation, xmp_orientation = 2, 0, 0
    while True:
        if data[position] != 0xFF:
            return None
        while data[position] == 0xFF:
            position += 1
        marker = data[position]
        position += 1
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:
            continue
        if marker in (0xD9, 0xDA):
            return None
        (length,) = struct.unpack_from(">H", data, position)
        if marker in _SOF:
            bits, height, width, components = struct.unpack_from(">BHHB", data, position + 2)
            plain = marker in (0xC0, 0xC1, 0xC2) and bits == 8 and components in (1, 3)
            return Header(height, width, orientation or xmp_orientation or 1, plain)
        if marker == 0xE1:
            body = data[position + 2 : position + length]
            if body.startswith(b"Exif\x00\x00") and not orientation:
                orientation = _exif_orientation(body[6:])
            elif body.startswith(_XMP) and (match := _XMP_ORIENTATION.search(body)):
                xmp_orientation = int(match[1])
        position += length


def _exif_orientation(tiff: bytes) -> int:
    """Tag 0x0112 of the first directory; 0 when it is missing or makes no sense."""
    order = {b"II*\x00": "<", b"MM\x00*": ">"}.get(tiff[:4])
    if order is None:
        return 0
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", tiff, entry)
            if tag == 0x0112:
                value = struct.unpack_from(order + ("H" if kind == 3 else "I"), tiff, entry + 8)[0]
                return value if 1 <= value <= 8 else 0
    except struct.error:
        return 0
    return 0


def _png(data: bytes) -> Header | None:
    """Walk the chunks (ISO/IEC 15948) up to the pixels; what may turn the picture is left to Pillow."""
    if data[12:16] != b"IHDR":
        return None
    width, height, bits, colour, compression, filtering, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    if compression or filtering or interlace > 1:
        return None  # no decoder knows them: Pillow has the words for it
    plain = bits == 8 and colour in (0, 2, 3)
    position = 8
    while True:
        (length,) = struct.unpack_from(">I", data, position)
        kind = data[position + 4 : position + 8]
        if kind == b"IDAT":
            return Header(height, width, 1, plain)
        if kind in (b"eXIf", b"iTXt", b"zTXt", b"acTL") or len(kind) < 4:
            return None
        if kind == b"iCCP" and data[position + 8 : position + 8 + length].partition(b"\0")[2][:1] != b"\0":
            return None  # a compression that does not exist
        if kind == b"tRNS":
            plain = False
        position += length + 12
