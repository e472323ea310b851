"""The Python interface: load a model, show it pictures, take the results in the form that suits."""

from yolo.api.model import Source, Yolo, load
from yolo.api.result import Result

__all__ = ["Result", "Source", "Yolo", "load"]
