"""Darknet weights files, both ways (``parser.c``: load_weights_upto, save_weights_upto).

A file is a header (three int32: major, minor, revision; then the images seen, 64 bit from version 0.2 on, 32
before) and float32 numbers without gaps, all little endian, layer after layer in the order of the cfg.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from yolo.models.layers import Norm, Weighted, darknet_layers

TRANSPOSED = 1000  # added to major or minor: connected layers are stored (in, out)
LARGEST_VERSION = 1000


class Header(NamedTuple):
    """What stands before the numbers; the default is what AlexeyAB's Darknet writes."""

    major: int = 0
    minor: int = 2
    revision: int = 5
    seen: int = 0  # images trained on

    @property
    def transposed(self) -> bool:
        return self.major > TRANSPOSED or self.minor > TRANSPOSED

    @property
    def wide(self) -> bool:
        """Whether the images seen take 64 bits."""
        return self.major * 10 + self.minor >= 2 and not self.transposed

    @property
    def size(self) -> int:
        """Bytes."""
        return 20 if self.wide else 16

    def pack(self) -> bytes:
        if not 0 <= self.seen < 2 ** (64 if self.wide else 32):
            raise ValueError(
                f"{self.seen} images seen do not fit the header of version {self.major}.{self.minor}"
            )
        return struct.pack("<3iQ" if self.wide else "<3iI", self.major, self.minor, self.revision, self.seen)

    def after(self, images: int) -> "Header":
        """This header once ``images`` more were seen; an old one becomes 0.2 when 32 bits are too few."""
        header = self._replace(seen=self.seen + images)
        return header if header.wide or header.seen < 2**32 else header._replace(major=0, minor=2)


class Slot(NamedTuple):
    """The numbers of one layer, in file order."""

    layer: int  # its index in the cfg
    name: str
    tensors: tuple[Tensor, ...]
    turned: int | None = None  # which of them a transposed file holds the other way round

    @property
    def floats(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors)


def layer_slot(index: int, name: str, layer: Weighted, norm: Norm | None) -> Slot:
    """Convolution: bias, scale, mean, variance, weights. Connected: bias, weights, scale, mean, variance."""
    bias = layer.bias if norm is None else norm.bias
    assert bias is not None, f"{name} has neither bias nor batch norm"
    statistics = () if norm is None else (norm.weight, norm.running_mean, norm.running_var)
    assert all(tensor is not None for tensor in statistics)
    if isinstance(layer, nn.Linear):
        return Slot(index, name, (bias, layer.weight, *statistics), turned=1)
    return Slot(index, name, (bias, *statistics, layer.weight))


def batchnorm_slot(index: int, name: str, norm: nn.BatchNorm2d) -> Slot:
    """``[batchnorm]`` as AlexeyAB's Darknet stores it: bias, scale, mean, variance."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return Slot(index, name, (norm.bias, norm.weight, norm.running_mean, norm.running_var))


def native_slots(module: nn.Module) -> list[Slot]:
    """The slots of a network of :mod:`yolo.models`, by walking its layers; numbered as they come."""
    pairs = enumerate(darknet_layers(module))
    return [layer_slot(index, f"weighted layer {index}", layer, norm) for index, (layer, norm) in pairs]


def read_header(path: Path | str) -> Header:
    """The header of a weights file.

    Raises:
        ValueError: It is something else, with what it looks like.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such weights file")
    with path.open("rb") as file:
        start = file.read(64)
    _refuse_other_formats(path, start)
    if len(start) < 16:
        raise ValueError(
            f"{path}: {len(start)} bytes are too few for the header of a weights file (16 or 20)"
        )
    major, minor, revision = struct.unpack_from("<3i", start)
    versions = [number - TRANSPOSED if number > TRANSPOSED else number for number in (major, minor)]
    if not all(0 <= number < LARGEST_VERSION for number in (*versions, revision)):
        raise ValueError(
            f"{path}: starts with {major}, {minor}, {revision}, which is no version of Darknet: "
            "a file without a header, or no weights file at all"
        )
    header = Header(major, minor, revision)
    if len(start) < header.size:
        raise ValueError(f"{path}: ends within the {header.size} bytes of its header")
    (seen,) = struct.unpack_from("<Q" if header.wide else "<I", start, 12)
    return header._replace(seen=seen)


def _refuse_other_formats(path: Path, start: bytes) -> None:
    text = start.lstrip().lower()
    if not start:
        raise ValueError(f"{path}: the file is empty")
    if text.startswith(b"version https://git-lfs"):
        raise ValueError(
            f"{path}: a Git LFS pointer, not the weights themselves: fetch them with git lfs pull"
        )
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise ValueError(f"{path}: a web page, not weights: the download went wrong")
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x89HDF")):
        raise ValueError(f"{path}: a checkpoint of another program, not a Darknet weights file")


def check_count(
    path: Path, header: Header, names: Sequence[tuple[int, str, int]], cutoff: int | None = None
) -> int:
    """Compare the size of a file with the layers, before anything is read.

    Args:
        path: The weights file.
        header: Its header.
        names: Index, name and floats of each layer with weights.
        cutoff: Only layers before this index are wanted; the file may hold more.

    Returns:
        How many floats to read.

    Raises:
        ValueError: With the layer that is cut short, or the floats left over.
    """
    size = path.stat().st_size - header.size
    if size % 4:
        raise ValueError(f"{path}: {size} bytes after the header are no whole number of float32")
    left, wanted = size // 4, 0
    for index, name, floats in names:
        if cutoff is not None and index >= cutoff:
            break
        if left < floats:
            hint = (
                ""
                if cutoff is not None or wanted == 0
                else f" (the backbone alone? cutoff={index} loads what is there)"
            )
            raise ValueError(
                f"{path}: {name} needs {floats} floats, {left} left: {floats - left} are missing{hint}"
            )
        left -= floats
        wanted += floats
    if left and cutoff is None:
        what = "1 float" if left == 1 else f"{left} floats"
        raise ValueError(f"{path}: {what} left over after the last layer: cfg and weights differ")
    return wanted


def load_weights(slots: Sequence[Slot], path: Path | str, cutoff: int | None = None) -> Header:
    """Fill the layers from a weights file; all of them, or on any fault none.

    Args:
        slots: Of the network.
        path: The weights file.
        cutoff: Load only layers before this index, as Darknet's backbone files (``darknet53.conv.74``) hold.

    Raises:
        ValueError: The file is no weights file or does not fit, with the layer.
    """
    path = Path(path)
    header = read_header(path)
    used = [slot for slot in slots if cutoff is None or slot.layer < cutoff]
    if not used:
        raise ValueError(f"cutoff={cutoff} leaves no layer with weights to load")
    count = check_count(path, header, [(slot.layer, slot.name, slot.floats) for slot in slots], cutoff)
    values = torch.from_numpy(np.fromfile(path, dtype="<f4", count=count, offset=header.size))
    if len(values) != count:
        raise ValueError(f"{path}: the file shrank while it was read")
    tensors = [
        (tensor, header.transposed and at == slot.turned)
        for slot in used
        for at, tensor in enumerate(slot.tensors)
    ]
    with torch.no_grad():
        for (tensor, turned), part in zip(
            tensors, values.split([t.numel() for t, _ in tensors]), strict=True
        ):
            tensor.copy_(part.view(tensor.shape[::-1]).t() if turned else part.view(tensor.shape))
    return header


def save_weights(slots: Sequence[Slot], path: Path | str, header: Header = Header()) -> None:  # noqa: B008
    """Write a weights file beside its place, then rename it: no reader ever sees half of one."""
    path = Path(path)
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.write(header.pack())
            for slot in slots:
                for at, tensor in enumerate(slot.tensors):
                    values = tensor.detach().to("cpu", torch.float32)
                    values = values.t() if header.transposed and at == slot.turned else values
                    file.write(values.contiguous().numpy().astype("<f4", copy=False).tobytes())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
