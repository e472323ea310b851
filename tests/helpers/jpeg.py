"""Darknet's view of a JPEG: a baseline decoder with the arithmetic of stb_image, which Darknet is built with.

libjpeg rounds elsewhere in the inverse transform and in the colour conversion: in one pixel of fifty a channel
differs by 1 to 3. That is enough to swap two detections of nearly the same score, so tests that compare with
numbers measured by Darknet decode as it does. Only what the test pictures need: baseline, no subsampling.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Lookup = tuple[NDArray[np.int64], NDArray[np.int64]]  # of the next 16 bits: length of the code, its symbol
ZIGZAG = sorted(range(64), key=lambda at: (s := sum(divmod(at, 8)), (at // 8 if s % 2 else at % 8)))
HEADER = {0xC4: "huffman", 0xDB: "quantisation", 0xC0: "frame", 0xDD: "restart", 0xDA: "scan"}


def decode(path: Path | str) -> NDArray[np.uint8]:
    """``[H, W, 3]`` RGB."""
    data = Path(path).read_bytes()
    tables: dict[int, Lookup] = {}
    divisors: dict[int, NDArray[np.int64]] = {}
    interval, at = 0, 2
    while True:
        kind, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        body, at = data[at + 4 : at + 2 + length], at + 2 + length
        match HEADER.get(kind, ""):
            case "huffman":
                while body:
                    total = sum(body[1:17])
                    tables[body[0]] = _lookup(body[1:17], body[17 : 17 + total])
                    body = body[17 + total :]
            case "quantisation":
                for table in range(0, len(body), 65):
                    divisors[body[table]] = np.frombuffer(body, np.uint8, 64, table + 1).astype(np.int64)
            case "frame":
                height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
                parts = [body[6 + 3 * index : 9 + 3 * index] for index in range(body[5])]
                assert all(part[1] == 0x11 for part in parts) or len(parts) == 1, "subsampled"
            case "restart":
                interval = int.from_bytes(body, "big")
            case "scan":
                pairs = [divmod(body[2 + 2 * index], 16) for index in range(len(parts))]
                chosen = [(tables[first], tables[16 + rest]) for first, rest in pairs]
                break
            case _:
                assert not 0xC1 <= kind <= 0xCF, "not baseline"
    rows, cols = -(-height // 8), -(-width // 8)
    blocks = _entropy(data[at:], chosen, rows * cols, interval)
    planes = []
    for index, part in enumerate(parts):
        block = np.zeros((rows * cols, 64), np.int64)
        block[:, ZIGZAG] = blocks[:, index] * divisors[part[2]]
        plane = _inverse(block.reshape(-1, 8, 8)).reshape(rows, cols, 8, 8).transpose(0, 2, 1, 3)
        planes.append(plane.reshape(rows * 8, cols * 8)[:height, :width])
    return _rgb(planes)


def _lookup(counts: bytes, symbols: bytes) -> Lookup:
    lengths, values = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
    code, used = 0, 0
    for length, count in enumerate(counts, 1):
        for symbol in symbols[used : used + count]:
            span = slice(code << (16 - length), (code + 1) << (16 - length))
            lengths[span], values[span] = length, symbol
            code += 1
        used, code = used + count, code << 1
    return lengths.tolist(), values.tolist()  # type: ignore[return-value]  # lists are faster to index


def _entropy(
    data: bytes, tables: list[tuple[Lookup, Lookup]], units: int, interval: int
) -> NDArray[np.int64]:
    """Coefficients ``[units, components, 64]`` in zigzag order."""
    out = np.zeros((units, len(tables), 64), np.int64)
    unit = 0
    for segment in _segments(data):
        bits, count, at = 0, 0, 0
        segment += b"\xff" * 16
        before = [0] * len(tables)
        done, unit = unit, min(units, unit + interval) if interval else units
        for at_unit in range(done, unit):
            for part, (first, rest) in enumerate(tables):
                lengths, symbols = first
                index, row = 0, out[at_unit, part]
                while index < 64:
                    if count < 48:
                        bits = ((bits & ((1 << count) - 1)) << 48) | int.from_bytes(
                            segment[at : at + 6], "big"
                        )
                        count, at = count + 48, at + 6
                    peek = (bits >> (count - 16)) & 0xFFFF
                    count -= lengths[peek]
                    symbol = symbols[peek]
                    if index:
                        if symbol == 0:
                            break
                        index += symbol >> 4
                        symbol &= 15
                    if symbol:
                        count -= symbol
                        value = (bits >> count) & ((1 << symbol) - 1)
                        value = value if value >> (symbol - 1) else value - (1 << symbol) + 1
                        if index == 0:
                            before[part] += value
                        else:
                            row[index] = value
                    if index == 0:
                        row[0] = before[part]
                        lengths, symbols = rest
                    index += 1
    return out


def _segments(data: bytes) -> list[bytes]:
    """The entropy-coded bytes between restart markers, without stuffing."""
    found, start, at = [], 0, 0
    while True:
        at = data.index(b"\xff", at)
        marker = data[at + 1]
        if marker == 0:
            at += 2
            continue
        found.append(data[start:at].replace(b"\xff\x00", b"\xff"))
        if not 0xD0 <= marker <= 0xD7:
            return found
        start = at = at + 2


def _fixed(number: float) -> int:
    return int(number * 4096 + 0.5)


def _pass(s: NDArray[np.int64], bias: int, shift: int) -> NDArray[np.int64]:
    """One dimension of the transform of Loeffler, Ligtenberg and Moschytz, ``[8, ...]``, 12-bit constants."""
    p1 = (s[2] + s[6]) * _fixed(0.5411961)
    low, high = p1 + s[6] * _fixed(-1.847759065), p1 + s[2] * _fixed(0.765366865)
    plus, minus = (s[0] + s[4]) << 12, (s[0] - s[4]) << 12
    even = [plus + high + bias, minus + low + bias, minus - low + bias, plus - high + bias]
    p5 = (s[7] + s[3] + s[5] + s[1]) * _fixed(1.175875602)
    p1, p2 = p5 + (s[7] + s[1]) * _fixed(-0.899976223), p5 + (s[5] + s[3]) * _fixed(-2.562915447)
    p3, p4 = (s[7] + s[3]) * _fixed(-1.961570560), (s[5] + s[1]) * _fixed(-0.390180644)
    odd = [
        s[1] * _fixed(1.501321110) + p1 + p4,
        s[3] * _fixed(3.072711026) + p2 + p3,
        s[5] * _fixed(2.053119869) + p2 + p4,
        s[7] * _fixed(0.298631336) + p1 + p3,
    ]
    sums = [a + b for a, b in zip(even, odd, strict=True)]
    differences = [a - b for a, b in zip(even, odd, strict=True)]
    return np.stack(sums + differences[::-1]) >> shift


def _inverse(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """``[N, 8, 8]`` coefficients to samples 0 to 255."""
    columns = _pass(blocks.transpose(1, 0, 2), 512, 10)
    rows = _pass(columns.transpose(2, 1, 0), 65536 + (128 << 17), 17)
    return rows.transpose(1, 2, 0).clip(0, 255)


def _rgb(planes: list[NDArray[np.int64]]) -> NDArray[np.uint8]:
    if len(planes) == 1:
        return np.repeat(planes[0][:, :, None], 3, axis=2).astype(np.uint8)
    y, blue, red = (planes[0] << 20) + (1 << 19), planes[1] - 128, planes[2] - 128
    parts = (
        y + red * (_fixed(1.402) << 8),
        y - red * (_fixed(0.71414) << 8) + ((-blue * (_fixed(0.34414) << 8)) & ~0xFFFF),
        y + blue * (_fixed(1.772) << 8),
    )
    return (np.stack(parts, axis=2) >> 20).clip(0, 255).astype(np.uint8)
