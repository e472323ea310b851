"""Name what pictures show, with a classifier.

>>> namer = Namer(load_any("darknet19.ckpt"), top=1)
>>> ((name, probability),) = namer([load_image("dog.jpg")])[0]
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from yolo.checkpoint import ClassifierModel
from yolo.data.batch import to_float
from yolo.inference import DTYPES, Precision, Shot, choose_device
from yolo.predict import batched

Names = list[tuple[str, float]]  # class and probability, the likeliest first


class Namer:
    """Finds the likeliest classes of pictures.

    Args:
        model: As :func:`yolo.checkpoint.load_any` gives it.
        top: Classes per picture.
        batch_size: Pictures that go through the network at a time.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        precision: Of the network's arithmetic.
    """

    def __init__(
        self,
        model: ClassifierModel,
        *,
        top: int = 5,
        batch_size: int = 8,
        device: str = "auto",
        precision: Precision = "fp32",
    ) -> None:
        if top < 1 or batch_size < 1:
            raise ValueError(f"top and batch_size must be at least 1, got {top} and {batch_size}")
        if precision not in DTYPES:
            raise ValueError(f"precision must be one of {', '.join(DTYPES)}, got {precision!r}")
        self.model, self.top, self.batch_size = model, min(top, len(model.classes)), batch_size
        self.device, self.precision = choose_device(device), precision
        self.classifier = model.classifier.to(self.device).eval()

    def __call__(self, images: Iterable[NDArray[np.uint8]]) -> list[Names]:
        """Classes of each picture, ``[H, W, 3]`` uint8 RGB of any size."""
        return [names for batch in batched(images, self.batch_size) for names in self._batch(batch)]

    @torch.inference_mode()
    def _batch(self, images: Sequence[NDArray[np.uint8]]) -> list[Names]:
        canvases = torch.from_numpy(np.stack([self.model.preprocess(image)[0] for image in images]))
        pixels = to_float(canvases.permute(0, 3, 1, 2).to(self.device))
        with torch.autocast(self.device.type, DTYPES[self.precision], enabled=self.precision != "fp32"):
            chances = self.classifier.probabilities(pixels)
        values, labels = chances.float().topk(self.top)
        rows = zip(values.tolist(), labels.tolist(), strict=True)
        return [[(self.model.classes[at], value) for value, at in zip(*row, strict=True)] for row in rows]

    def stream(self, shots: Iterable[Shot]) -> Iterator[tuple[Shot, Names | None]]:
        """Each shot with its classes, in order; None for one that could not be read."""
        for batch in batched(shots, self.batch_size):
            images = [shot.image for shot in batch if shot.image is not None]
            found = iter(self._batch(images) if images else [])
            for shot in batch:
                yield shot, None if shot.image is None else next(found)


def write_names(results: Iterable[tuple[Shot, Names | None]], path: Path) -> Iterator[str]:
    """Write ``[{source, frame, classes | problem}]`` as JSON; yields a line for a person per picture."""
    rows: list[dict[str, object]] = []
    for shot, names in results:
        row: dict[str, object] = {"source": shot.source} | (
            {} if shot.frame is None else {"frame": shot.frame}
        )
        if names is None:
            rows.append(row | {"problem": shot.problem})
            yield f"{shot.source}: {shot.problem}"
            continue
        rows.append(row | {"classes": [{"name": name, "probability": value} for name, value in names]})
        yield f"{shot.source}: {', '.join(f'{name} {value:.1%}' for name, value in names)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
