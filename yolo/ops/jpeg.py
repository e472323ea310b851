"""The entropy-coded data of a JPEG file as coefficients: one scan at a time, baseline or progressive."""

from collections.abc import Sequence

import torch
from torch import Tensor

from yolo.ops.library import register

CODES = 1 << 16  # a row of the tables: what every next 16 bits begin with


def jpeg_scan(
    data: Tensor,
    cuts: Tensor,
    tables: Tensor,
    coefficients: Tensor,
    order: Tensor,
    slots: Tensor,
    band: tuple[int, int] = (0, 63),
    bits: tuple[int, int] = (0, 0),
    progressive: bool = False,
) -> None:
    """Decode the Huffman codes of one scan into ``coefficients`` (ITU-T T.81, annexes F.2 and G.2), on the CPU.

    Args:
        data: ``[B]`` uint8, the bytes of the scan without stuffing and markers.
        cuts: ``[R, 4]`` int64, for every stretch between restart markers its first byte and the one after its
            last, its first unit and the one after its last.
        tables: ``[T, 65536]`` int16: for every value of the next 16 bits the length of the code that they begin
            with, times 256, plus its symbol; 0 where there is none.
        coefficients: ``[M, 64]`` int16 in zigzag order, changed in place.
        order: ``[U, J]`` int64, the J blocks of every unit of the scan.
        slots: ``[J, 3]`` int64 for the blocks of a unit: component (0 to 3), and the rows of ``tables`` for DC
            and AC.
        band: First and last coefficient of the scan.
        bits: Bit position of the pass before (0: this is the first) and of this one.
        progressive: Whether the frame is; else the band is everything.

    Raises:
        RuntimeError: The data ends early, has a code that is in no table, or points out of a block;
            ``coefficients`` are then worth nothing. Or the arguments do not fit together.
    """
    torch.ops.yolo.jpeg_scan.default(
        data, cuts, tables, coefficients, order, slots, *band, *bits, progressive
    )


class _Bits:
    """Reads the bits of one stretch; past its end come zeros, and ``bad`` says that they were used."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.wrong = data + bytes(4), 0, False

    @property
    def bad(self) -> bool:
        return self.wrong or self.at > 8 * (len(self.data) - 4)

    def next_16(self) -> int:
        start = min(self.at >> 3, len(self.data) - 3)
        return int.from_bytes(self.data[start : start + 3], "big") >> (8 - (self.at & 7)) & 0xFFFF

    def take(self, count: int) -> int:
        raw = self.next_16() >> (16 - count)
        self.at += count
        return raw

    def symbol(self, table: Sequence[int]) -> int:
        entry = table[self.next_16()]
        self.wrong |= entry == 0
        self.at += entry >> 8
        return entry & 0xFF

    def value(self, size: int) -> int:
        """A number of ``size`` bits whose first bit is 0 for negative ones (T.81, F.2.2.1)."""
        raw = self.take(size)
        return raw if size == 0 or raw >> (size - 1) else raw - (1 << size) + 1


def jpeg_scan_reference(
    data: Tensor,
    cuts: Tensor,
    tables: Tensor,
    coefficients: Tensor,
    order: Tensor,
    slots: Tensor,
    first: int,
    last: int,
    high: int,
    low: int,
    progressive: bool,
) -> None:
    """:func:`jpeg_scan` in plain Python: one to three seconds for a photograph of 640x480."""
    codes, blocks, units = tables.tolist(), coefficients.tolist(), order.tolist()
    raw = data.numpy().tobytes()
    for start, end, begin, stop in cuts.tolist():
        bits = _Bits(raw[start:end])
        before, run = [0] * 4, [0]
        for unit in units[begin:stop]:
            for index, (component, dc, ac) in zip(unit, slots.tolist(), strict=True):
                block = blocks[index]
                if first == 0:
                    _read_dc(bits, codes[dc], before, component, block, high, low)
                if last > 0 and high == 0:
                    _read_ac(bits, codes[ac], run, block, (max(first, 1), last), low, progressive)
                elif last > 0:
                    _refine_ac(bits, codes[ac], run, block, (first, last), low)
            if bits.bad:
                raise RuntimeError("jpeg_scan: the data ends early or has a code that its table lacks")
    coefficients.copy_(torch.tensor(blocks).view(-1, 64))  # wraps at 16 bits, as the kernel does


def _read_dc(
    bits: _Bits, table: list[int], before: list[int], component: int, block: list[int], high: int, low: int
) -> None:
    if high > 0:
        block[0] |= bits.take(1) << low
        return
    size = bits.symbol(table)
    bits.wrong |= size > 15
    before[component] += bits.value(min(size, 15))
    block[0] = before[component] << low


def _read_ac(
    bits: _Bits,
    table: list[int],
    run: list[int],
    block: list[int],
    band: tuple[int, int],
    low: int,
    long: bool,
) -> None:
    if run[0] > 0:
        run[0] -= 1
        return
    at, last = band
    while at <= last:
        zeros, size = divmod(bits.symbol(table), 16)
        if size == 0 and zeros < 15:
            run[0] = (1 << zeros) + bits.take(zeros) - 1 if long else 0
            return
        at += zeros
        if size > 0 and at > last:
            bits.wrong = True
            return
        if size > 0:
            block[at] = bits.value(size) << low
        at += 1


def _refine_ac(
    bits: _Bits, table: list[int], run: list[int], block: list[int], band: tuple[int, int], low: int
) -> None:
    """Another bit for the coefficients that are known, and new ones of a single bit between them (G.1.2.3)."""
    at, last = band
    one = 1 << low

    def refine(known: int) -> None:
        if bits.take(1) and not block[known] & one:
            block[known] += one if block[known] > 0 else -one

    while run[0] == 0 and at <= last:
        zeros, size = divmod(bits.symbol(table), 16)
        if size == 0 and zeros < 15:
            run[0] = (1 << zeros) + bits.take(zeros)
            break
        fresh = 0 if size == 0 else one if bits.take(1) else -one
        while at <= last and (block[at] or zeros > 0):
            if block[at]:
                refine(at)
            else:
                zeros -= 1
            at += 1
        if size > 1 or (fresh and at > last):
            bits.wrong = True
            return
        if fresh:
            block[at] = fresh
        at += 1
    if run[0] > 0:
        run[0] -= 1
        for known in range(at, last + 1):
            if block[known]:
                refine(known)


register(
    "jpeg_scan",
    "(Tensor data, Tensor cuts, Tensor tables, Tensor(a!) coefficients, Tensor order, Tensor slots, "
    "int first, int last, int high, int low, bool progressive) -> ()",
    jpeg_scan_reference,
    lambda *_: None,  # nothing comes out; coefficients change in place
)
