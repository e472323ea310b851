"""The kernel decodes what the reference decodes, and no argument makes it read or write elsewhere."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from yolo.ops import jpeg_scan
from yolo.ops.jpeg import jpeg_scan_reference
from yolo.ops.library import has_kernel


def unary() -> Tensor:
    """A table of the codes 0, 10, 110 ... 1111111110 for the symbols 0, 1, 2, 3, 0x11, 0x21, 0x31, 0xF0, 0x12."""
    table = torch.zeros(1 << 16, dtype=torch.int16)
    for length, symbol in enumerate((0, 1, 2, 3, 0x11, 0x21, 0x31, 0xF0, 0x12), 1):
        code = (1 << length) - 2
        table[code << (16 - length) : (code + 1) << (16 - length)] = length << 8 | symbol
    return table


def arguments(data: bytes, units: int = 4, **options: Any) -> dict[str, Any]:
    """Units of one block of component 0, in one stretch."""
    return {
        "data": torch.tensor(list(data), dtype=torch.uint8),
        "cuts": torch.tensor([[0, len(data), 0, units]]),
        "tables": unary()[None],
        "coefficients": torch.zeros(units, 64, dtype=torch.int16),
        "order": torch.arange(units)[:, None],
        "slots": torch.tensor([[0, 0, 0]]),
        "band": (0, 63),
        "bits": (0, 0),
        "progressive": False,
    } | options


def flat(given: dict[str, Any]) -> list[Any]:
    *tensors, band, bits, progressive = given.values()
    return [*tensors, *band, *bits, progressive]


def test_by_hand() -> None:
    """DC +3 (size 2, bits 11), AC: one zero, then -1, end; then the same DC and an end: 110 11 11110 0 0 | 0 0."""
    bits = "110111111000" + "00"
    data = int(bits.ljust(16, "1"), 2).to_bytes(2, "big")
    given = arguments(data, units=2)
    jpeg_scan(**given)
    wanted = torch.zeros(2, 64, dtype=torch.int16)
    wanted[0, 0], wanted[0, 2], wanted[1, 0] = 3, -1, 3
    assert torch.equal(given["coefficients"], wanted)


SCANS = [  # band, bits, progressive
    ((0, 63), (0, 0), False),
    ((0, 0), (0, 2), True),
    ((0, 0), (2, 1), True),
    ((1, 63), (0, 2), True),
    ((5, 20), (0, 0), True),
    ((1, 63), (2, 1), True),
    ((6, 9), (1, 0), True),
]


@pytest.mark.skipif(not has_kernel("jpeg_scan", "cpu"), reason="yolo._C is not built")
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=80), st.sampled_from(SCANS), st.integers(0, 2**32))
def test_kernel_and_reference_agree_on_any_bytes(data: bytes, scan: tuple[Any, ...], seed: int) -> None:
    """Also which bytes they refuse; some of the coefficients are known from a pass before."""
    rng = np.random.default_rng(seed)
    known = torch.from_numpy(
        (rng.integers(-3, 4, (4, 64)) * (rng.random((4, 64)) < 0.3) * 4).astype(np.int16)
    )
    middle = len(data) // 2
    results: list[Tensor | None] = []
    for run in (torch.ops.yolo.jpeg_scan.default, jpeg_scan_reference):
        given = arguments(data, 4, band=scan[0], bits=scan[1], progressive=scan[2])
        given["coefficients"] = known.clone() if scan[1][0] else torch.zeros_like(known)
        given["cuts"] = torch.tensor([[0, middle, 0, 2], [middle, len(data), 2, 4]])
        try:
            run(*flat(given))
            results.append(given["coefficients"])
        except RuntimeError:
            results.append(None)
    kernel, reference = results
    assert (kernel is None) == (reference is None)
    if kernel is not None and reference is not None:
        assert torch.equal(kernel, reference)


def test_opcheck() -> None:
    given = flat(arguments(bytes(8)))
    torch.library.opcheck(torch.ops.yolo.jpeg_scan.default, tuple(given))


@pytest.mark.skipif(not has_kernel("jpeg_scan", "cpu"), reason="yolo._C is not built")
@pytest.mark.parametrize(
    "wrong",
    [
        {"order": torch.tensor([[0], [4]])},
        {"order": torch.tensor([[0], [-1]])},
        {"cuts": torch.tensor([[0, 9, 0, 2]])},
        {"cuts": torch.tensor([[-1, 8, 0, 2]])},
        {"cuts": torch.tensor([[0, 8, 0, 5]])},
        {"cuts": torch.tensor([[0, 8, -1, 2]])},
        {"slots": torch.tensor([[4, 0, 0]])},
        {"slots": torch.tensor([[0, 1, 0]])},
        {"slots": torch.tensor([[0, 0, -1]])},
        {"slots": torch.tensor([[0, 0, 0], [0, 0, 0]])},
        {"tables": torch.zeros(1, 100, dtype=torch.int16)},
        {"coefficients": torch.zeros(4, 64, dtype=torch.int32)},
        {"coefficients": torch.zeros(64, 4, dtype=torch.int16).T},
        {"band": (0, 64)},
        {"band": (5, 4)},
        {"band": (1, 63)},
        {"bits": (0, 14), "progressive": True, "band": (0, 0)},
        {"bits": (1, 0)},
    ],
    ids=str,
)
def test_arguments_that_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="jpeg_scan"):
        jpeg_scan(**arguments(bytes(8)) | wrong)
