"""A strict reader of Darknet .cfg files: every fault is one sentence with file and line.

Comments (``#`` and ``;``, on their own line or after a value), blank lines, blanks around names and
values, CRLF and a byte order mark are read as what they are; a word that this package does not know is an
error, never a default.
"""

import logging
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from yolo.darknet.keys import (
    ALIASES,
    REFUSED_ANYWHERE,
    REFUSED_SECTIONS,
    SECTIONS,
    TRAINING_ANYWHERE,
)

log = logging.getLogger(__name__)

_INTEGER = re.compile(r"[+-]?\d+(\.0*)?")
_LARGEST = 2**31 - 1  # Darknet's int


@dataclass(frozen=True)
class Value:
    """What stands behind a key."""

    text: str
    line: int


@dataclass(frozen=True)
class Section:
    """One ``[section]`` with typed access to its values.

    Args:
        kind: The name, short forms written out (``conv`` is ``convolutional``).
        index: Number of the layer, from 0; -1 for ``[net]``.
        source: Where the cfg comes from, for messages.
        line: Of the section's name.
    """

    kind: str
    index: int
    source: str
    line: int
    values: dict[str, Value] = field(default_factory=dict)

    def fault(self, message: str, key: str | None = None) -> ValueError:
        """An error that names file, line, layer and section."""
        line = self.values[key].line if key in self.values else self.line
        where = "" if self.index < 0 else f"layer {self.index} "
        return ValueError(f"{self.source}:{line}: {where}[{self.kind}] {message}")

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str, default: str) -> str:
        return self.values[key].text if key in self.values else default

    def integer(self, key: str, default: int, least: int = -_LARGEST, most: int = _LARGEST) -> int:
        """The whole number behind ``key``, between ``least`` and ``most``."""
        if key not in self.values:
            return default
        return self._integer(key, self.values[key].text, least, most)

    def _integer(self, key: str, text: str, least: int, most: int) -> int:
        if not _INTEGER.fullmatch(text):
            raise self.fault(f"has {key}={text!r}, a whole number was expected", key)
        number = int(text.split(".")[0])
        if not least <= number <= most:
            raise self.fault(f"has {key}={number}, expected {least} to {most}", key)
        return number

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self.integer(key, int(default), 0, 1))

    def number(self, key: str, default: float) -> float:
        """The finite number behind ``key``."""
        return self._number(key, self.values[key].text) if key in self.values else default

    def _number(self, key: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.fault(f"has {key}={text!r}, a number was expected", key)
        return number

    def _items(self, key: str) -> list[str]:
        items = [item.strip() for item in self.values[key].text.split(",")] if key in self.values else []
        return items[:-1] if items and not items[-1] else items  # one comma at the end is Darknet's own habit

    def integers(self, key: str) -> list[int]:
        return [self._integer(key, item, -_LARGEST, _LARGEST) for item in self._items(key)]

    def numbers(self, key: str) -> list[float]:
        return [self._number(key, item) for item in self._items(key)]


@dataclass(frozen=True)
class Cfg:
    """A parsed .cfg: ``[net]`` and the layers in order."""

    text: str
    source: str
    net: Section
    layers: tuple[Section, ...]
    notes: tuple[str, ...]  # what was accepted without effect, one sentence each


def decode(content: bytes) -> str:
    """The text of a cfg so that :func:`encode` gives the same bytes back, whatever they are."""
    return content.decode("utf-8", errors="surrogateescape")


def encode(text: str) -> bytes:
    """Undo :func:`decode`."""
    return text.encode("utf-8", errors="surrogateescape")


def read_cfg(path: Path | str) -> str:
    """The text of a .cfg file, line ends and byte order mark kept."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such cfg file")
    content = path.read_bytes()
    if b"\0" in content:
        raise ValueError(f"{path}: not a cfg, the file is binary")
    return decode(content)


def parse_cfg(text: str, source: str = "cfg") -> Cfg:
    """Read the sections of a cfg.

    Raises:
        ValueError: With ``source:line`` and what is wrong there.
    """
    sections: list[Section] = []
    notes: list[str] = []
    for line, row in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        row = re.split(r"[#;]", row, maxsplit=1)[0].strip()
        if not row:
            continue
        if row.startswith("["):
            sections.append(_section(row, len(sections) - 1, source, line))
        elif not sections:
            raise ValueError(
                f"{source}:{line}: a [section] was expected, got {_short(row)}: not a Darknet cfg"
            )
        else:
            _pair(row, sections[-1], line, notes)
    if not sections:
        raise ValueError(f"{source}:1: the cfg is empty")
    if sections[0].kind != "net":
        raise ValueError(
            f"{source}:{sections[0].line}: the first section must be [net], got [{sections[0].kind}]"
        )
    if len(sections) == 1:
        raise ValueError(f"{source}:{sections[0].line}: no layer follows [net]")
    notes += _training_notes(sections)
    return Cfg(text, source, sections[0], tuple(sections[1:]), tuple(notes))


def _short(row: str) -> str:
    return repr(row if len(row) <= 40 else row[:37] + "...")


def _section(row: str, index: int, source: str, line: int) -> Section:
    if not row.endswith("]"):
        raise ValueError(f"{source}:{line}: {_short(row)} lacks the closing bracket")
    name = row[1:-1].strip()
    kind = name if name in SECTIONS or name in REFUSED_SECTIONS else ALIASES.get(name.lower(), name.lower())
    where = "" if index < 0 else f"layer {index} "
    if kind in REFUSED_SECTIONS:
        raise ValueError(f"{source}:{line}: {where}[{name}]: {REFUSED_SECTIONS[kind]}")
    if kind not in SECTIONS:
        raise ValueError(f"{source}:{line}: {where}[{name}] is no section that this reader knows")
    if kind == "net" and index >= 0:
        raise ValueError(f"{source}:{line}: a second [net] section")
    return Section(kind, index, source, line)


def _pair(row: str, section: Section, line: int, notes: list[str]) -> None:
    """Add ``key = value`` to the section."""
    key, equals, text = (part.strip() for part in row.partition("="))
    here = f"{section.source}:{line}"
    if not equals or not key:
        raise ValueError(f"{here}: {_short(row)} in [{section.kind}]: key=value was expected")
    keys = SECTIONS[section.kind]
    if key in keys.training or (section.index >= 0 and key in TRAINING_ANYWHERE):
        if key in section.values:
            notes.append(f"{here}: {key} is given twice in [{section.kind}], the first is taken")
        else:
            section.values[key] = Value(text, line)
        return
    where = (
        f"{here}: layer {section.index} [{section.kind}]"
        if section.index >= 0
        else f"{here}: [{section.kind}]"
    )
    refused = {**keys.refused, **REFUSED_ANYWHERE}
    if key in refused:
        if text != refused[key]:
            raise ValueError(
                f"{where} has {key}={_short(text)[1:-1]}, which changes the result and is not supported"
            )
        return
    if key not in keys.used | keys.loss:
        raise ValueError(f"{where} has the unknown key {key!r}")
    if not text:
        raise ValueError(f"{where} gives {key} no value")
    if key in section.values:
        raise ValueError(f"{where} gives {key} twice, first in line {section.values[key].line}")
    section.values[key] = Value(text, line)


def _training_notes(sections: list[Section]) -> list[str]:
    """One sentence per kind of section: its keys that only train."""
    found: dict[str, Counter[str]] = {}
    for section in sections:
        training = SECTIONS[section.kind].training | (
            TRAINING_ANYWHERE if section.index >= 0 else frozenset()
        )
        for key in section.values:
            if key in training:
                found.setdefault(section.kind, Counter())[key] += 1
    return [f"[{kind}] keys without effect here: {', '.join(sorted(keys))}" for kind, keys in found.items()]
