"""A JPEG file as the coefficients of its cosine transform, before any rounding that decoders do not share.

Only what is plain: 8 bits, gray or YCbCr, Huffman codes, baseline or progressive, whole. Everything else, and
every doubt, is left to the ordinary decoder (:mod:`yolo.data.image`).
"""

import re
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from yolo.ops import jpeg_scan

ZIGZAG = np.array(sorted(range(64), key=lambda at: (s := sum(divmod(at, 8)), at // 8 if s % 2 else at % 8)))
DOUBT = "not a plain JPEG file, or damaged"
MOST_SCANS = 100  # progressive encoders write about ten; more only cost time

_NEXT_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")
_RESTART = re.compile(rb"\xff+[\xd0-\xd7]")
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, the same with more tables, progressive
_OTHER_FRAMES = {0xC3, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xCC, 0xCD, 0xCE, 0xCF}


class Plane(NamedTuple):
    """One component of a picture."""

    blocks: NDArray[
        np.int16
    ]  # [rows, columns, 64] in zigzag order, rows and columns filled up to whole units
    divisors: NDArray[np.int32]  # [64] in zigzag order
    across: int  # how many pixels of the picture one sample is wide
    down: int


class Coefficients(NamedTuple):
    """A picture before the inverse transform."""

    height: int  # pixels
    width: int
    planes: list[Plane]  # gray, or Y, Cb, Cr


class _Component(NamedTuple):
    number: int  # 0, 1, 2
    across: int  # samples in a unit
    down: int
    table: int  # of divisors
    rows: int  # of blocks, with those that only fill up units
    columns: int
    start: int  # its first block among all

    def order(self, units: NDArray[np.int64], units_across: int) -> NDArray[np.int64]:
        """``[U, J]``: its blocks in every unit of an interleaved scan."""
        y, x = np.divmod(units[:, None, None], units_across)
        rows = y * self.down + np.arange(self.down)[:, None]
        columns = x * self.across + np.arange(self.across)
        return (self.start + rows * self.columns + columns).reshape(len(units), -1)


def read_jpeg(data: bytes) -> Coefficients | None:
    """The coefficients of a plain JPEG file; None for any other and for one that is damaged."""
    try:
        return _Reader(data).read()
    except (ValueError, IndexError, KeyError, RuntimeError):
        return None


class _Reader:
    """Goes through the marker segments (ITU-T T.81, annex B). Doubts are a ValueError."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.divisors: dict[int, NDArray[np.int32]] = {}
        self.codes: dict[int, NDArray[np.int16]] = {}  # by class * 16 + number
        self.components: dict[int, _Component] = {}  # by the number that the file gives them
        self.height = self.width = self.interval = 0
        self.unit = self.units = (0, 0)  # height and width of a unit in pixels, of the picture in units
        self.progressive = False
        self.coefficients = np.empty((0, 64), np.int16)
        self.scanned: set[int] = set()

    def read(self) -> Coefficients:
        at, scans = 2, 0
        while True:
            _want(self.data[at] == 0xFF)
            while self.data[at] == 0xFF:
                at += 1
            kind = self.data[at]
            if kind == 0xD9:
                return self._result()
            length = int.from_bytes(self.data[at + 1 : at + 3], "big")
            body, at = self.data[at + 3 : at + 1 + length], at + 1 + length
            _want(len(body) == length - 2)
            if kind == 0xDA:
                scans += 1
                _want(scans <= MOST_SCANS)
                marker = _NEXT_MARKER.search(self.data, at)
                if marker is None:
                    raise ValueError(DOUBT)
                self._scan(body, self.data[at : marker.start()])
                at = marker.start()
            else:
                self._segment(kind, body)

    def _segment(self, kind: int, body: bytes) -> None:
        _want(kind not in _OTHER_FRAMES)
        if kind in _FRAMES:
            self._frame(kind, body)
        elif kind == 0xC4:
            self._huffman(body)
        elif kind == 0xDB:
            _want(not self.scanned)  # else it would matter which scan a table is for
            self._quantisation(body)
        elif kind == 0xDD:
            _want(len(body) == 2)
            self.interval = int.from_bytes(body, "big")
        elif kind == 0xEE and body.startswith(b"Adobe"):
            _want(len(body) >= 12 and body[11] == 1)  # else the components are not Y, Cb, Cr

    def _frame(self, kind: int, body: bytes) -> None:
        _want(not self.components and body[0] == 8 and len(body) == 6 + 3 * body[5] and body[5] in (1, 3))
        self.height, self.width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
        self.progressive = kind == 0xC2
        parts = [(body[at], *divmod(body[at + 1], 16), body[at + 2]) for at in range(6, len(body), 3)]
        _want(self.height > 0 < self.width and all(1 <= side <= 4 for part in parts for side in part[1:3]))
        _want(len({part[0] for part in parts}) == len(parts) and bytes(part[0] for part in parts) != b"RGB")
        if len(parts) == 1:
            parts = [(parts[0][0], 1, 1, parts[0][3])]  # alone it is never interleaved
        across, down = max(part[1] for part in parts), max(part[2] for part in parts)
        _want(all(across % part[1] == 0 and down % part[2] == 0 for part in parts))
        self.unit = (8 * down, 8 * across)
        self.units = (-(-self.height // self.unit[0]), -(-self.width // self.unit[1]))
        start = 0
        for identity, wide, high, table in parts:
            rows, columns = self.units[0] * high, self.units[1] * wide
            number = len(self.components)
            self.components[identity] = _Component(number, wide, high, table, rows, columns, start)
            start += rows * columns
        self.coefficients = np.zeros((start, 64), np.int16)

    def _quantisation(self, body: bytes) -> None:
        while body:
            wide, number = divmod(body[0], 16)
            _want(wide <= 1 and number <= 3)
            size = 64 * (1 + wide)
            values = np.frombuffer(body, ">u2" if wide else np.uint8, 64, 1)
            self.divisors[number], body = values.astype(np.int32), body[1 + size :]

    def _huffman(self, body: bytes) -> None:
        while body:
            counts, total = body[1:17], sum(body[1:17])
            symbols = body[17 : 17 + total]
            _want(body[0] & 0xEF <= 3 and len(counts) == 16 and len(symbols) == total)
            self.codes[body[0]], body = _lookup(counts, symbols), body[17 + total :]

    def _scan(self, body: bytes, data: bytes) -> None:
        count = body[0]
        _want(len(body) == 4 + 2 * count and count >= 1)
        chosen = [(self.components[body[at]], *divmod(body[at + 1], 16)) for at in range(1, 1 + 2 * count, 2)]
        _want(len({one[0].number for one in chosen}) == count)
        first, last, (high, low) = body[-3], body[-2], divmod(body[-1], 16)
        if not self.progressive:
            _want((first, last, high, low) == (0, 63, 0, 0))
        else:
            _want(last == 0 if first == 0 else first <= last <= 63 and count == 1)
            _want(low <= 13 and high in (0, low + 1))
        tables, slots, orders = [np.zeros(1 << 16, np.int16)], [], []
        for component, dc, ac in chosen:
            rows = [0, 0]
            if first == 0 and high == 0:
                rows[0] = len(tables)
                tables.append(self.codes[dc])
            if last > 0:
                rows[1] = len(tables)
                tables.append(self.codes[16 + ac])
            orders.append(self._order(component, alone=count == 1))
            slots += [[component.number, *rows]] * orders[-1].shape[1]
        order = np.concatenate(orders, axis=1)
        stretches = self._stretches(data, len(order))
        jpeg_scan(
            torch.frombuffer(bytearray(b"".join(stretches[0])) or bytearray(1), dtype=torch.uint8),
            torch.tensor(stretches[1]),
            torch.from_numpy(np.stack(tables)),
            torch.from_numpy(self.coefficients),
            torch.from_numpy(order),
            torch.tensor(slots),
            (first, last),
            (high, low),
            self.progressive,
        )
        self.scanned |= {component.number for component, _, _ in chosen} if first == 0 else set()

    def _order(self, component: _Component, alone: bool) -> NDArray[np.int64]:
        """Its blocks in every unit: one a unit where a scan has no other component, and none that only fills."""
        if not alone:
            return component.order(np.arange(self.units[0] * self.units[1]), self.units[1])
        rows = -(-self.height * component.down // self.unit[0])
        columns = -(-self.width * component.across // self.unit[1])
        return (component.start + np.arange(rows)[:, None] * component.columns + np.arange(columns)).reshape(
            -1, 1
        )

    def _stretches(self, data: bytes, units: int) -> tuple[list[bytes], list[list[int]]]:
        """What stands between restart markers, without stuffing, and the ``cuts`` of it."""
        parts = [part.replace(b"\xff\x00", b"\xff") for part in _RESTART.split(data)]
        step = self.interval or units
        if not parts[-1] and len(parts) > 1:
            parts.pop()  # a marker after the last unit
        _want(len(parts) == -(-units // step))
        cuts, at = [], 0
        for index, part in enumerate(parts):
            cuts.append([at, at + len(part), index * step, min(units, (index + 1) * step)])
            at += len(part)
        return parts, cuts

    def _result(self) -> Coefficients:
        _want(len(self.components) > 0 and len(self.scanned) == len(self.components))
        planes = []
        for one in self.components.values():
            blocks = self.coefficients[one.start : one.start + one.rows * one.columns]
            planes.append(
                Plane(
                    blocks.reshape(one.rows, one.columns, 64),
                    self.divisors[one.table],
                    self.unit[1] // (8 * one.across),
                    self.unit[0] // (8 * one.down),
                )
            )
        return Coefficients(self.height, self.width, planes)


def _want(fine: bool) -> None:
    if not fine:
        raise ValueError(DOUBT)


def _lookup(counts: bytes, symbols: bytes) -> NDArray[np.int16]:
    """A row of ``tables``: codes of a length are numbered on, and one more bit doubles (T.81, annex C)."""
    table = np.zeros(1 << 16, np.int16)
    code, used = 0, 0
    for length, count in enumerate(counts, 1):
        for symbol in symbols[used : used + count]:
            table[code << (16 - length) : (code + 1) << (16 - length)] = length << 8 | symbol
            code += 1
        _want(code <= 1 << length)
        used, code = used + count, code << 1
    return table
