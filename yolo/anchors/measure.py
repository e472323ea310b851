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
        workers: Threads that read picture sizes (from the files' headers) where the reader did not.

    Returns:
        Pixels of the network input, at ``preprocess.size``.
    """
    records = [record for record in annotated.records if len(record.truth.labels)]
    if not records:
        return Boxes.of(np.empty((0, 2)))
    unseen = [record.path for record in records if record.size is None]
    with ThreadPoolExecutor(workers) as pool:
        read = pool.map(image_size, unseen)
        sizes = [record.size or next(read) for record in records]
    scale = {size: preprocess.placement(*size)[:2] for size in set(sizes)}
    counts = [len(record.truth.labels) for record in records]
    scales = np.array([scale[size] for size in sizes]).repeat(counts, axis=0)
    boxes = np.concatenate([record.truth.boxes for record in records]).astype(np.float64)
    labels = np.concatenate([record.truth.labels for record in records])
    kept = ~np.concatenate([record.truth.crowd for record in records])
    wh = (boxes[:, 2:] - boxes[:, :2]) * scales
    return Boxes.of(wh[kept], labels[kept], annotated.classes)
