"""What was found in one picture, in every form that people ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageShow

from yolo.deploy.extras import require
from yolo.report import detections_json, draw, write_image
from yolo.types import Found

if TYPE_CHECKING:
    import pandas as pd
    import supervision as sv


@dataclass(frozen=True, eq=False)
class Result:
    """The detections of one picture, best score first.

    Args:
        boxes: ``[K, 4]`` float32: x1, y1, x2, y2 in pixels of the picture, exclusive right and bottom edge.
        scores: ``[K]`` float32, 0 to 1.
        labels: ``[K]`` int64, indices into ``classes``.
        classes: Names of all classes of the model.
        image: ``[H, W, 3]`` uint8, RGB: the picture.
        source: The file or camera, or ``array`` for pixels that were handed over.
        frame: 0, 1, ... in a video.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    image: NDArray[np.uint8]
    source: str = "array"
    frame: int | None = None

    @property
    def names(self) -> list[str]:
        """The class of each detection by name, ``[K]``."""
        return [self.classes[label] for label in self.labels]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        height, width = self.image.shape[:2]
        where = self.source if self.frame is None else f"{self.source}, frame {self.frame}"
        shown = [f"{name} {score:.2f}" for name, score in zip(self.names, self.scores, strict=True)]
        more = f", ... {len(self) - 5} more" if len(self) > 5 else ""
        return f"<Result of {where}, {width}x{height}: {', '.join(shown[:5]) or 'nothing found'}{more}>"

    def numpy(self) -> NDArray[np.float32]:
        """``[K, 6]``: x1, y1, x2, y2, score, label."""
        columns = (self.boxes, self.scores[:, None], self.labels[:, None].astype(np.float32))
        return np.concatenate(columns, 1)

    def pandas(self) -> "pd.DataFrame":
        """A table with the columns x1, y1, x2, y2, score, label, name.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = require("pandas")
        corners = {name: self.boxes[:, index] for index, name in enumerate(("x1", "y1", "x2", "y2"))}
        return pandas.DataFrame(
            {**corners, "score": self.scores, "label": self.labels, "name": np.array(self.names, object)}
        )

    def supervision(self) -> "sv.Detections":
        """Detections of the package supervision, with the names under ``data["class_name"]``.

        Raises:
            ImportError: supervision is not installed.
        """
        supervision = require("supervision")
        return supervision.Detections(
            xyxy=self.boxes.copy(),
            confidence=self.scores.copy(),
            class_id=self.labels.astype(int),
            data={"class_name": np.array(self.names, dtype=str)},
        )

    def coco(
        self, image_id: int | str = 0, category_ids: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Entries of a COCO result file: ``bbox`` is x, y, width, height in pixels.

        Args:
            image_id: The picture's id in the annotation file.
            category_ids: The id of each class in the annotation file; None: the labels, 0, 1, ...

        Raises:
            ValueError: There are not as many ids as classes.
        """
        ids = list(range(len(self.classes))) if category_ids is None else list(category_ids)
        if len(ids) != len(self.classes):
            raise ValueError(
                f"category_ids must name each of the {len(self.classes)} classes, got {len(ids)}"
            )
        rows = zip(self.boxes.tolist(), self.scores.tolist(), self.labels.tolist(), strict=True)
        return [
            {
                "image_id": image_id,
                "category_id": ids[label],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": score,
            }
            for (x1, y1, x2, y2), score, label in rows
        ]

    def json(self) -> list[dict[str, Any]]:
        """JSON types: box, score, label and class of each detection, as in ``predictions.json``."""
        return detections_json(Found(self.boxes, self.scores, self.labels), self.classes)

    def draw(self) -> NDArray[np.uint8]:
        """``[H, W, 3]`` uint8, RGB: a copy of the picture with the boxes, names and scores on it."""
        return draw(self.image, self.boxes, self.labels, self.classes, self.scores)

    def save(self, path: str | Path) -> Path:
        """Write the picture with its boxes; the suffix says how (.jpg, .png, ...).

        Raises:
            ValueError: That suffix names no picture format.
        """
        path = Path(path)
        write_image(path, self.draw())
        return path

    def show(self) -> None:
        """Open the picture with its boxes in a viewer; in a notebook it appears by itself.

        Raises:
            OSError: There is no viewer or no screen.
        """
        if not ImageShow.show(Image.fromarray(self.draw())):
            raise OSError("no viewer for pictures was found here: save(path) writes the picture instead")

    def _repr_jpeg_(self) -> bytes:
        """What a notebook shows for a result."""
        buffer = BytesIO()
        Image.fromarray(self.draw()).save(buffer, "JPEG", quality=90)
        return buffer.getvalue()
