"""Where the tests find real data: the folder named by YOLO_DATA."""

import os
from pathlib import Path

import pytest


def shared(*parts: str) -> Path:
    """A path under YOLO_DATA; skips the test, with the reason, when it is not there."""
    root = os.environ.get("YOLO_DATA")
    if not root:
        pytest.skip(
            "YOLO_DATA is not set: it names the folder with the real data sets, weights and golden numbers"
        )
    path = Path(root).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    return path
