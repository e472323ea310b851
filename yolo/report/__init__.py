"""Drawings, tables and files for people."""

from yolo.report.draw import color, draw, draw_truth_and_found
from yolo.report.evaluation import draw_results, evaluation_tables, write_metrics, write_results
from yolo.report.predictions import Outcome, detections_json, write_image, write_predictions

__all__ = [
    "Outcome",
    "color",
    "detections_json",
    "draw",
    "draw_results",
    "draw_truth_and_found",
    "evaluation_tables",
    "write_image",
    "write_metrics",
    "write_predictions",
    "write_results",
]
