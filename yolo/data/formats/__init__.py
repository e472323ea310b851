"""Readers: from the files of a data set to records."""

from yolo.data.formats.annotated import Annotated, Problem
from yolo.data.formats.digits import read_digits
from yolo.data.formats.voc import read_voc

__all__ = ["Annotated", "Problem", "read_digits", "read_voc"]
