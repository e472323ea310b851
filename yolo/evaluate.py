"""Score a model on annotated pictures."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from torch.utils.data import DataLoader

from yolo.checkpoint import Model
from yolo.darknet.suppress import NmsKind
from yolo.data import Annotated, DetectionDataset, collate
from yolo.inference import Inference, Precision, Runnable, to_found
from yolo.metrics import DetectionMetric, Report
from yolo.metrics.average_precision import Points
from yolo.metrics.detection import ClassSet
from yolo.types import Found, Record, Truth

__all__ = ["aligned", "evaluate", "find", "to_found"]

log = logging.getLogger(__name__)
Match = Literal["name", "index"]


def aligned(
    records: Sequence[Record], classes: Sequence[str], wanted: Sequence[str], match: Match = "name"
) -> list[Record]:
    """Number the classes of a data set as a model does.

    Args:
        records: Their labels index ``classes``.
        classes: Names in the data set, in its order.
        wanted: Names in the model.
        match: ``name``: every name of the data set must be one of the model's; ``index``: labels stay as they
            are, for models whose names are spelt otherwise.

    Raises:
        ValueError: The two do not agree.
    """
    if match == "index":
        if len(classes) != len(wanted):
            raise ValueError(
                f"the data set has {len(classes)} classes, the model {len(wanted)}: they must be as many"
            )
        return list(records)
    if list(classes) == list(wanted):
        return list(records)
    strange = [name for name in classes if name not in wanted]
    if strange:
        raise ValueError(
            f"the data set has classes that the model does not know: {_few(strange)}; "
            f"data set: {_few(classes)}; model: {_few(wanted)} (match=index goes by order instead)"
        )
    log.info(
        "classes of the data set are numbered as in the model: %d names, %d of them here",
        len(wanted),
        len(classes),
    )
    number = np.array([list(wanted).index(name) for name in classes], np.int64)
    return [replace(record, truth=_relabelled(record.truth, number)) for record in records]


def _relabelled(truth: Truth, number: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Truth:
    return replace(truth, labels=number[truth.labels])


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 6 else shown


def find(
    inference: Inference, records: Sequence[Record], *, batch_size: int = 16, workers: int = 2
) -> list[Found]:
    """Detections of every picture, in the order of ``records``, each in its own pixels."""
    loader = DataLoader(
        DetectionDataset(list(records), inference.model.preprocess),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=inference.device.type == "cuda",
    )
    found: list[Found] = []
    for batch in loader:
        found += inference(batch.images, [meta.placement for meta in batch.meta])
    return found


def evaluate(
    model: Model | Runnable,
    annotated: Annotated,
    *,
    score_threshold: float = 0.005,
    nms: float = 0.45,
    nms_kind: NmsKind = "iou",
    multi_label: bool = True,
    kept: int = 300,
    clip: bool = True,
    max_detections: int = 100,
    classes: ClassSet = "present",
    points: Points = "area",
    match: Match = "name",
    batch_size: int = 16,
    workers: int = 2,
    device: str = "auto",
    precision: Precision = "fp32",
) -> tuple[Report, list[Found], list[Record]]:
    """Find objects in every picture and score them.

    Args:
        model: As :func:`yolo.checkpoint.load_model` gives it, or an exported file in its runtime.
        annotated: Pictures and objects.
        score_threshold: Candidates score strictly more.
        nms: IoU above which the better box of a class suppresses the other.
        nms_kind: See :class:`Inference`.
        multi_label: Every class of a box is a candidate, not only its best one.
        kept: Detections per picture after suppression.
        clip: Cut boxes at the edges of the picture (Darknet's ``map`` does not).
        max_detections: COCO's maxDets, per picture and class.
        classes: Means run over the classes ``present`` in the data, or over ``all`` with 0 for the others.
        points: How Darknet's map averages: ``area``, 11 or 101.
        match: How classes of data and model are brought together, see :func:`aligned`.
        batch_size: Pictures at a time; does not change the result.
        workers: Loader processes.
        device: See :class:`Inference`; ``precision`` too.

    Returns:
        The report, what was found in each picture, and the records with labels numbered as in the model.
    """
    metric = DetectionMetric(model.classes, score_threshold, max_detections, classes, points)
    records = aligned(annotated.records, annotated.classes, model.classes, match)
    inference = Inference(
        model,
        score_threshold=score_threshold,
        iou_threshold=nms,
        nms_kind=nms_kind,
        max_detections=kept,
        multi_label=multi_label,
        clip=clip,
        device=device,
        precision=precision,
    )
    found = find(inference, records, batch_size=batch_size, workers=workers)
    metric.update(found, records)
    report = metric.compute()
    preprocess = model.preprocess
    report["settings"] |= {"nms": nms, "nms_kind": inference.nms_kind}
    report["settings"] |= {"multi_label": multi_label, "kept": kept, "clip": clip, "match": match}
    report["settings"] |= preprocess.to_dict()
    report["settings"] |= {"device": str(inference.device), "precision": precision}
    fullest = sum(len(one.labels) == kept for one in found)
    if fullest:
        report["notes"].append(
            f"{fullest} pictures reached kept={kept}: their weakest detections are not counted"
        )
    return report, found, records
