"""A map-style data set over records: decoded, augmented, on the network's canvas."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from yolo.data.augment import Augment, largest_zoom
from yolo.data.batch import Item
from yolo.data.geometry import Sample
from yolo.data.image import load_image
from yolo.data.preprocess import Canvas, Preprocess, place
from yolo.data.store import ImageStore, load_working, one_opencv_thread
from yolo.types import Meta, Record

log = logging.getLogger(__name__)


class Draw(NamedTuple):
    """A picture as training asks for it."""

    picture: int
    epoch: int = 0
    mosaic: bool = True  # False: neither mosaic nor mixup


class DetectionDataset(Dataset[Item]):
    """Pictures and their objects.

    What comes out depends on the seed and on what is asked for alone, never on the number of workers. The epoch is part
    of the question, so that workers may be ahead of the training.

    Args:
        records: What a reader found.
        preprocess: How a picture becomes network input.
        augment: None gives every picture as it is, with what it takes to score it in its own pixels.
        seed: Of the augmentation.
        use_difficult: Whether objects marked difficult are targets; the published VOC models leave them out.
        store: Decoded pictures, where they are kept; not used where a canvas is no bytes and nothing is
            augmented, since kept pictures are bytes.
    """

    def __init__(
        self,
        records: Sequence[Record],
        preprocess: Preprocess,
        augment: Augment | None = None,
        seed: int = 0,
        *,
        use_difficult: bool = False,
        store: ImageStore | None = None,
    ) -> None:
        one_opencv_thread()
        self.records = list(records)
        self.preprocess = preprocess
        self.augment = augment if augment is not None and augment.active else None
        self.seed = seed
        self.use_difficult = use_difficult
        self.store = store

    def __setstate__(self, state: dict[str, object]) -> None:
        one_opencv_thread()  # in a worker that was started afresh
        self.__dict__.update(state)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, draw: int | Draw) -> Item:
        """An index alone stands for its picture in epoch 0."""
        index, epoch, mosaic = draw if isinstance(draw, Draw) else Draw(draw)
        if self.augment is None:
            return self._plain(index)
        index = range(len(self.records))[index]
        entropy = (self.seed & 0xFFFFFFFFFFFFFFFF, epoch, index)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
        sample = self.augment(self._training_sample, index, len(self), self.preprocess, rng, mosaic=mosaic)
        return _item(sample.image, sample.boxes, sample.labels, None)._replace(colour=sample.colour)

    def sample(self, index: int) -> Sample:
        """One picture at its working size with the boxes in pixels of that."""
        record = self.records[index]
        image, size = self._working(index)
        boxes, labels = self._targets(record)
        height, width = image.shape[:2]
        if (height, width) != size:
            scale = (width / size[1], height / size[0]) * 2
            boxes = boxes * np.array(scale, np.float32)
        return Sample(image, boxes, labels)

    def _training_sample(self, index: int) -> Sample:
        """The next picture that can be decoded: a file that went bad must not end a run that is hours old."""
        for step in range(len(self.records)):
            try:
                return self.sample((index + step) % len(self.records))
            except (OSError, ValueError) as error:
                if step + 1 == len(self.records):
                    raise
                log.warning("training goes on with the next picture: %s", error)
        raise AssertionError("unreachable")

    def _working(self, index: int) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        if self.store is not None:
            return self.store.load(index)
        return load_working(self.records[index].path, self.preprocess, largest_zoom(self.augment))

    def _targets(self, record: Record) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Crowds are no objects to learn from, difficult ones only if wanted."""
        truth = record.truth
        left_out = truth.crowd if self.use_difficult else truth.crowd | truth.difficult
        if not left_out.any():
            return truth.boxes, truth.labels
        return truth.boxes[~left_out], truth.labels[~left_out]

    def _plain(self, index: int) -> Item:
        record = self.records[index]
        canvas: Canvas
        if self.preprocess.in_floats:
            canvas, placement = self.preprocess(load_image(record.path, self.preprocess.rounding))
        else:
            image, (height, width) = self._working(index)
            placement = self.preprocess.placement(height, width)
            canvas = self.preprocess.pad(self.preprocess.shrink_to(image, height, width))
        boxes, labels = self._targets(record)
        return _item(canvas, place(boxes, placement), labels, Meta(record, placement))


def _item(image: Canvas, boxes: NDArray[np.float32], labels: NDArray[np.int64], meta: Meta | None) -> Item:
    if not image.flags.writeable or not image.flags.c_contiguous:
        image = image.copy()
    return Item(
        torch.from_numpy(image).permute(2, 0, 1),
        torch.tensor(boxes, dtype=torch.float32),
        torch.tensor(labels, dtype=torch.int64),
        meta,
    )
