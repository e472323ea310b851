"""Train the classic YOLO family, read and write Darknet models, deploy to ONNX and TensorRT.

>>> import yolo
>>> model = yolo.load("best.ckpt")
>>> results = model.predict("picture.jpg")
>>> results[0].show()

The names of this module come from :mod:`yolo.api`, which is imported when the first of them is used: ``import
yolo`` alone loads nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yolo.api import Result, Yolo, load

__all__ = ["Result", "Yolo", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'yolo' has no attribute {name!r}")
    import yolo.api

    return getattr(yolo.api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
