"""The doctor of data sets: reads and decodes everything, says what is wrong, loses nothing in silence."""

from yolo.doctor.examine import Diagnosis, Limits, examine
from yolo.doctor.findings import KINDS, Finding
from yolo.doctor.page import write_page
from yolo.doctor.show import draw_samples
from yolo.doctor.source import open_source, read_all, splits_of
from yolo.doctor.text import diagnosis_tables, write_json
from yolo.doctor.uncarried import uncarried

__all__ = [
    "KINDS",
    "Diagnosis",
    "Finding",
    "Limits",
    "diagnosis_tables",
    "draw_samples",
    "examine",
    "open_source",
    "read_all",
    "splits_of",
    "uncarried",
    "write_json",
    "write_page",
]
