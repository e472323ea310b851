"""Checkpoints that are written while training goes on."""

import logging
import threading
from pathlib import Path
from typing import Any

from torch import Tensor

from yolo.checkpoint import write_atomically

log = logging.getLogger(__name__)


class Writer:
    """A thread that writes the newest content of each file; a file that cannot be written does not end the run.

    The content is copied to main memory before :meth:`put` returns, so training may change its tensors at once.
    """

    def __init__(self) -> None:
        self._waiting: dict[Path, Any] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.failed: dict[Path, OSError] = {}  # by file: why the last attempt did not succeed

    def put(self, content: Any, path: Path) -> None:
        """Have ``content`` written to ``path``; what still waits to be written there is dropped."""
        copied = _copy(content)
        with self._lock:
            self._waiting[path] = copied
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="checkpoint-writer")
                self._thread.start()

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: The newest content of a file could not be written.
        """
        thread = self._thread
        if thread is not None:
            thread.join()
        if self.failed:
            raise next(iter(self.failed.values()))

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                path = next(iter(self._waiting))
                content = self._waiting.pop(path)
            try:
                write_atomically(content, path)
                self.failed.pop(path, None)
            except OSError as error:
                self.failed[path] = error
                log.error("%s; the file of before is still there, training goes on", error)


def _copy(content: Any) -> Any:
    if isinstance(content, Tensor):
        held = content.detach()
        return held.to("cpu") if held.device.type != "cpu" else held.clone()
    if isinstance(content, dict):
        copied = type(content)()
        copied.update((key, _copy(value)) for key, value in content.items())
        return copied
    if isinstance(content, list | tuple) and not hasattr(content, "_fields"):
        return type(content)(_copy(value) for value in content)
    return content
