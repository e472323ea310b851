"""What a file looks like, for messages about files given in the wrong place."""

import re
import struct
from pathlib import Path

_ENOUGH = 4096
_PICTURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"II*\x00", b"MM\x00*", b"BM")
_MARKUP = {
    b"version https://git-lfs": "a Git LFS pointer instead of the file (git lfs pull fetches it)",
    b"<!doctype html": "a web page",
    b"<html": "a web page",
    b"<?xml": "an XML file",
    b"<annotation": "an XML file",
}
_DARKNET_VERSIONS = ((0, 1), (0, 2))
CFG = "a Darknet cfg"
DATA = "a Darknet .data file"
YAML = "a YAML file"
JSON = "a JSON file"
LIST = "a list of pictures"
PLAIN = "a text file"
EMPTY = "an empty file"
TORCH = "a PyTorch file"


def looks_like(path: str | Path) -> str:
    """A few words for the kind of a file, told from its first bytes; never an error."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_ENOUGH)
    except OSError:
        return "no readable file"
    return kind_of(data)


def kind_of(data: bytes) -> str:
    """:func:`looks_like` for the first bytes of a file."""
    if not data:
        return EMPTY
    head = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:64].lower()
    for start, kind in _MARKUP.items():
        if head.startswith(start):
            return kind
    if data.startswith(_PICTURES) or data[8:12] == b"WEBP":
        return "a picture"
    if data.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")):
        return TORCH
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        versions = len(data) >= 16 and struct.unpack_from("<2i", data) in _DARKNET_VERSIONS
        return "Darknet weights" if versions else "a binary file"
    return _kind_of_text(data.decode("utf-8-sig", errors="replace"))


def _kind_of_text(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    if re.fullmatch(r"\[\s*[a-z_0-9]+\s*\].*", first) and any("=" in line for line in lines):
        return CFG
    if first.startswith(("{", "[{", "[[")) or first == "[":
        return JSON
    if re.match(r"(classes|train|valid|names|backup|eval)\s*=", first):
        return DATA
    if re.match(r"(path|train|val|test|nc|names)\s*:", first):
        return YAML
    if re.fullmatch(r".+\.(jpe?g|png|bmp|webp|tiff?)", first, re.IGNORECASE):
        return LIST
    return PLAIN
