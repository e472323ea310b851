"""Samples of a split as they are and as training sees them, side by side."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from yolo.data import Augment, DetectionDataset, Draw, Preprocess, collate, coloured, to_bytes
from yolo.report import draw, write_image
from yolo.types import Record

GAP = 6  # pixels between the pictures of a sheet


def draw_samples(
    records: Sequence[Record],
    classes: Sequence[str],
    preprocess: Preprocess,
    augment: Augment,
    folder: Path,
    *,
    count: int,
    versions: int,
    seed: int = 0,
) -> Iterator[Path]:
    """Draw pictures of a split, one sheet each: on the canvas as it is, then augmented versions.

    The versions are those that training with this seed would see in its first epochs.

    Args:
        records: The split.
        classes: Names.
        preprocess: Puts pictures on the canvas.
        augment: Varies them.
        folder: For the sheets.
        count: How many pictures, drawn by lot.
        versions: Augmented versions of each.
        seed: Of the lot and of the augmentation.
    """
    if count < 1 or versions < 0:
        raise ValueError(f"count must be at least 1 and versions not negative, got {count} and {versions}")
    plain = DetectionDataset(records, preprocess)
    varied = DetectionDataset(records, preprocess, augment, seed)
    chosen = np.random.default_rng(seed).permutation(len(records))[:count]
    for index in chosen.tolist():
        panels = [_panel(plain, index, classes)]
        for epoch in range(versions):
            panels.append(_panel(varied, Draw(index, epoch), classes))
        gap = np.full((panels[0].shape[0], GAP, 3), 255, np.uint8)
        row = [part for panel in panels for part in (gap, panel)][1:]
        path = folder / f"{index:06d}_{Path(records[index].path).stem}.jpg"
        write_image(path, np.concatenate(row, axis=1))
        yield path


def _panel(
    dataset: DetectionDataset, wanted: int | Draw, classes: Sequence[str]
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    batch = coloured(collate([dataset[wanted]]))
    image = np.ascontiguousarray(to_bytes(batch.images[0]).permute(1, 2, 0).numpy())
    return draw(image, batch.targets.boxes.numpy(), batch.targets.labels.numpy(), classes)
