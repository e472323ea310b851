"""The mAP of whatever runs: exported files are judged by it, not by their tensors alone."""

from collections.abc import Callable, Sequence

from torch import Tensor

from yolo.data import Annotated, load_image
from yolo.deploy.graph import Suppression
from yolo.deploy.pictures import prepare
from yolo.deploy.runtime import Runtime, suppress_dense
from yolo.evaluate import Match, aligned
from yolo.inference import to_found
from yolo.metrics import DetectionMetric, Report
from yolo.types import Detections, Found

EVALUATION = Suppression(score_threshold=0.005, iou_threshold=0.45, multi_label=True)
BATCH = 8


def every_prediction(runtime: Runtime, rule: Suppression = EVALUATION) -> Callable[[Tensor], Detections]:
    """Detections by ``rule`` whatever suppression the runtime has, from all of its predictions.

    Raises:
        ValueError: They cannot be seen (an engine with suppression inside).
    """

    def detect(images: Tensor) -> Detections:
        every = runtime.every(images)
        if every is None:
            raise ValueError(f"{runtime.name} does not show every prediction; export it with nms=false")
        return suppress_dense(*every, rule)

    return detect


def find(
    runtime: Runtime, paths: Sequence[str], detect: Callable[[Tensor], Detections] | None = None
) -> list[Found]:
    """Detections of every picture, in its own pixels.

    Args:
        runtime: Prepares the pictures.
        paths: Of the pictures.
        detect: In place of ``runtime`` itself.
    """
    detect = detect or runtime.any_batch
    found: list[Found] = []
    for start in range(0, len(paths), BATCH):
        images = [load_image(path) for path in paths[start : start + BATCH]]
        placements = [runtime.preprocess.placement(*image.shape[:2]) for image in images]
        found += to_found(runtime.download(detect(prepare(images, runtime.preprocess))), placements)
    return found


def score(runtime: Runtime, annotated: Annotated, match: Match = "name") -> Report:
    """Evaluate every prediction of a runtime on annotated pictures, by Darknet's rule for evaluation."""
    metric = DetectionMetric(runtime.classes, EVALUATION.score_threshold)
    records = aligned(annotated.records, annotated.classes, runtime.classes, match)
    found = find(runtime, [record.path for record in records], every_prediction(runtime))
    metric.update(found, records)
    return metric.compute()
