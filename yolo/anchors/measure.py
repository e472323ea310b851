"""From annotated pictures to box sizes on the network's canvas."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from yolo.anchors.sizes import Boxes
from yolo.data.formats import Annotated
from yolo.data.image import image_size
from yolo.data.preprocess import Preprocess


def measure(annotated: Annotated, preprocess: Preprocess, workers: int = 4) -> Boxes:
    """Box sizes as ``preprocess`` puts them before the network, without crowds: nothing trains on them.

    Args:
        annotated: The training split.
        preprocess: Size of the input and how pictures are fitted to it.
        workers: Threads that read picture sizes (from the files' headers).

    Returns:
        Pixels of the network input, at ``preprocess.size``.
    """
    records = [record for record in annotated.records if len(record.truth.labels)]
    with ThreadPoolExecutor(workers) as pool:
        pictures = list(pool.map(image_size, [record.path for record in records]))
    wh, labels = [np.empty((0, 2))], [np.empty(0, dtype=np.int64)]
    for record, (height, width) in zip(records, pictures, strict=True):
        placement = preprocess.placement(height, width)
        kept = ~record.truth.crowd
        boxes = record.truth.boxes[kept].astype(np.float64)
        wh.append((boxes[:, 2:] - boxes[:, :2]) * (placement.scale_x, placement.scale_y))
        labels.append(record.truth.labels[kept])
    return Boxes.of(np.concatenate(wh), np.concatenate(labels), annotated.classes)
