"""Evaluation: one metric, every published average precision."""

from yolo.metrics.average_precision import average_precision
from yolo.metrics.detection import ClassReport, DetectionMetric, Report, scalars

__all__ = ["ClassReport", "DetectionMetric", "Report", "average_precision", "scalars"]
