"""Decoded pictures that are kept: in shared memory or in a file, one copy for all workers."""

import hashlib
import itertools
import logging
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from yolo.data.image import image_size, load_image
from yolo.data.preprocess import Preprocess
from yolo.types import Record

log = logging.getLogger(__name__)

Cache = Literal["none", "ram", "disk"]


def one_opencv_thread() -> None:
    """Let OpenCV work in the thread that calls it: loader processes and threads are the parallelism here.

    It must happen before loader processes are forked. A fork does not copy OpenCV's threads but does copy its
    belief in them, so that a forked process waits for ever for the first one it wants to use or to stop.
    """
    if cv2.getNumThreads() != 1:
        cv2.setNumThreads(1)


def load_working(
    path: str, preprocess: Preprocess, zoom: float = 1.0
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Decode a picture, shrunk to its size on the canvas if it is larger; and its own height and width.

    Without a zoom training sees exactly the pixels that :meth:`Preprocess.in_bytes` makes, kept or not.

    Args:
        path: The file.
        preprocess: Of the network.
        zoom: The picture stays larger by this factor, as far as it is: to be enlarged without getting blurred.
    """
    image = load_image(path)
    height, width = image.shape[:2]
    return preprocess.resized(image, *working_size(preprocess, height, width, zoom)), (height, width)


def working_size(preprocess: Preprocess, height: int, width: int, zoom: float = 1.0) -> tuple[int, int]:
    """Height and width that :func:`load_working` gives."""
    rows, cols = (round(side * zoom) for side in preprocess.inner_size(height, width))
    return (rows, cols) if rows * cols < height * width else (height, width)


class ImageStore:
    """Every picture of a data set, decoded once, at its working size, for training or for scoring from bytes.

    The pixels lie in one mapped file: a nameless one in memory (``ram``) or one in a folder that the next run
    finds again (``disk``). Workers share it, whatever way they are started.

    Args:
        records: The pictures.
        preprocess: Sets the working size.
        where: ``ram`` or ``disk``.
        folder: For ``disk``: where the file goes.
        threads: Pictures that are decoded at the same time.
        zoom: See :func:`load_working`.

    Raises:
        ValueError: A picture cannot be decoded (its name is in the message).
        OSError: There is no room.
    """

    def __init__(
        self,
        records: Sequence[Record],
        preprocess: Preprocess,
        where: Literal["ram", "disk"] = "ram",
        folder: str | Path | None = None,
        threads: int | None = None,
        zoom: float = 1.0,
    ) -> None:
        self.paths = [record.path for record in records]
        self.preprocess, self.zoom = preprocess, zoom
        one_opencv_thread()
        with ThreadPoolExecutor(threads or min(32, os.cpu_count() or 1)) as pool:
            self.sizes = list(pool.map(image_size, self.paths))
            self.shapes = [working_size(preprocess, *size, zoom) for size in self.sizes]
            lengths = [rows * cols * 3 for rows, cols in self.shapes]
            self.offsets = [0, *itertools.accumulate(lengths)]
            self.total = max(1, self.offsets[-1])
            if where == "ram":
                self._memory()
                list(pool.map(self._fill, range(len(self.paths))))
            else:
                self._on_disk(Path(folder).expanduser() if folder else Path(tempfile.gettempdir()), pool)
        log.info("%d decoded pictures kept (%s): %.1f MB", len(self.paths), where, self.total / 1e6)

    def load(self, index: int) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        """The picture, read-only, and its own height and width."""
        view = self._view(index)
        view.flags.writeable = False
        return view, self.sizes[index]

    def _view(self, index: int) -> NDArray[np.uint8]:
        start, stop = self.offsets[index : index + 2]
        return self._pixels[start:stop].reshape(*self.shapes[index], 3)

    def _fill(self, index: int) -> None:
        image, size = load_working(self.paths[index], self.preprocess, self.zoom)
        if image.shape[:2] != self.shapes[index]:
            raise ValueError(f"{self.paths[index]}: its header says {self.sizes[index]}, its pixels {size}")
        self._view(index)[:] = image

    def _memory(self) -> None:
        free = available_memory()
        if self.total > free:
            raise MemoryError(
                f"data.cache=ram needs {self.total / 1e9:.1f} GB for {len(self.paths)} pictures, "
                f"{free / 1e9:.1f} GB are free"
            )
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("yolo-pictures")
        else:
            self._descriptor, name = tempfile.mkstemp(prefix="yolo-pictures")
            os.unlink(name)  # noqa: PTH108 - it lives on as long as it is open
        weakref.finalize(self, os.close, self._descriptor)
        os.truncate(self._descriptor, self.total)
        self._address = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._pixels = np.frombuffer(mmap.mmap(self._descriptor, self.total), np.uint8)

    def _on_disk(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        """Map the file of these very pictures; it is made first if needed, under another name until whole."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{self._key()}.pixels"
        if not (target.is_file() and target.stat().st_size == self.total):
            descriptor, part = tempfile.mkstemp(dir=folder, suffix=".part")
            os.truncate(descriptor, self.total)
            self._pixels = np.frombuffer(mmap.mmap(descriptor, self.total), np.uint8)
            os.close(descriptor)
            list(pool.map(self._fill, range(len(self.paths))))
            os.replace(part, target)  # noqa: PTH105 - both are plain names
        self._address = str(target)
        self._pixels = np.memmap(target, np.uint8, "r")

    def _key(self) -> str:
        """Changes with any file, and with anything that changes the working size."""
        digest = hashlib.sha256(repr((self.preprocess, self.zoom)).encode())
        for path in self.paths:
            stat = os.stat(path)  # noqa: PTH116 - pathlib's takes three times as long
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\n".encode())
        return digest.hexdigest()[:32]

    def __getstate__(self) -> dict[str, object]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_pixels", "_descriptor")
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._pixels = np.memmap(self._address, np.uint8, "r")


def available_memory() -> int:
    """Bytes that can still be had: of the machine, and of the container if there is one."""
    found = [sys.maxsize]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()).isdigit():
        found.append(int(text) - int(used.read_text()))
    return max(0, min(found))
