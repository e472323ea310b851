"""Anchors: box sizes of a data set, clusters of them, how well a set serves, and which one to take."""

from yolo.anchors.agree import check_agreement, same_anchors
from yolo.anchors.assignment import Assignment
from yolo.anchors.kmeans import kmeans
from yolo.anchors.measure import measure
from yolo.anchors.recommend import Rules, Verdict, held_out_gain, objections, recommend
from yolo.anchors.refine import refine
from yolo.anchors.sizes import Boxes, Sizes, by_area, nearest, shape_iou
from yolo.anchors.statistics import Fit, describe, reach, specs_with, tidy
from yolo.anchors.study import Study

__all__ = [
    "Assignment",
    "Boxes",
    "Fit",
    "Rules",
    "Sizes",
    "Study",
    "Verdict",
    "by_area",
    "check_agreement",
    "describe",
    "held_out_gain",
    "kmeans",
    "measure",
    "nearest",
    "objections",
    "reach",
    "recommend",
    "refine",
    "same_anchors",
    "shape_iou",
    "specs_with",
    "tidy",
]
