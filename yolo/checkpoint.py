"""The one self-describing artifact: network, class names and how pictures must be prepared, in one file.

A checkpoint is a plain ``torch.save`` file that loads with ``weights_only=True``: tensors, numbers and strings, no
code. Under the key ``yolo`` it has ``format``, ``recipe`` (a name from a fixed list and its arguments), ``classes``,
``preprocess`` and ``ranges`` (filled by quantisation-aware training); under ``state_dict`` the weights, prefixed
``detector.``. Lightning's own training checkpoints carry the same two keys, so every file that training writes can be
evaluated, used and exported.
"""

import os
import pickle
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yolo import darknet, models
from yolo.darknet.zoo import ZOO, load_published
from yolo.data.preprocess import Preprocess
from yolo.looks import TORCH, looks_like
from yolo.models.detector import Detector, Recipe

FORMAT = 1
PREFIX = "detector."
# what PyTorch's reader and the constructors raise for files with a wrong byte in them: they do not check what they read
_BROKEN = (
    *(pickle.UnpicklingError, RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError),
    *(AttributeError, AssertionError, OverflowError, MemoryError, struct.error),
)


@dataclass(frozen=True)
class Model:
    """A network with all that is needed to use it.

    Args:
        detector: The network.
        classes: Names, in the order of the labels.
        preprocess: How pictures become its input.
        ranges: For int8, as quantisation-aware training learned them: the absolute input value that becomes 127, by
            layer. Empty after other training.
    """

    detector: Detector
    classes: list[str]
    preprocess: Preprocess
    ranges: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.classes) != self.detector.num_classes:
            raise ValueError(
                f"{len(self.classes)} class names were given for a model with {self.detector.num_classes} classes"
            )


def describe(model: Model) -> dict[str, Any]:
    """The content of the key ``yolo``: plain values only."""
    if model.detector.recipe is None:
        raise ValueError(
            "this detector was not built by a function of yolo.models or from a cfg: it has no recipe to save"
        )
    return {
        "format": FORMAT,
        "recipe": asdict(model.detector.recipe),
        "classes": list(model.classes),
        "preprocess": model.preprocess.to_dict(),
        "ranges": dict(model.ranges),
    }


def build(recipe: Recipe) -> Detector:
    """Build the network of a recipe; only names that this package knows are accepted."""
    if recipe.name == "darknet":
        return darknet.build_cfg(**recipe.arguments)
    return models.build(recipe.name, recipe.arguments)


def save_model(model: Model, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write ``model`` (or its description with other ``weights``, keys as in the detector) to ``path`` atomically."""
    state = model.detector.state_dict() if weights is None else weights
    write_atomically(
        {
            "yolo": describe(model),
            "state_dict": {PREFIX + name: value.detach().cpu() for name, value in state.items()},
        },
        path,
    )


def write_atomically(content: object, path: Path) -> None:
    """``torch.save`` to a neighbour, flush to the disk, then rename: a crash or a full disk leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        with part.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running any code in it.

    Raises:
        ValueError: The file is no checkpoint of this project.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except _BROKEN as error:
        raise ValueError(
            f"{path}: not a checkpoint that can be read safely: {_reason(path, error)}"
        ) from error
    if not (
        isinstance(content, dict)
        and all(isinstance(content.get(key), dict) for key in ("yolo", "state_dict"))
    ):
        raise ValueError(f"{path}: not a checkpoint of this project (no 'yolo' and 'state_dict' in it)")
    found = content["yolo"].get("format")
    if found != FORMAT:
        raise ValueError(f"{path}: checkpoint format {found}, this version reads format {FORMAT}")
    return content


def _reason(path: Path, error: Exception) -> str:
    """What is wrong with a file that PyTorch's safe reader refuses."""
    kind, code = looks_like(path), re.search(r"GLOBAL (\S+)", str(error))
    if kind != TORCH:
        return f"it looks like {kind}"
    return "it is damaged or cut short" if code is None else f"it asks to run {code[1]}, which is refused"


def load_model(weights: Path | str, cfg: Path | str | None = None, download: bool = False) -> Model:
    """Load trained weights of any kind; the network is in evaluation mode on the CPU.

    Args:
        weights: A checkpoint, a Darknet ``.weights`` file, or the name of published weights.
        cfg: The cfg of a ``.weights`` file; by default the one of the same stem beside it.
        download: Fetch published weights that are not in the cache yet.

    Raises:
        ValueError: The file is neither, or its weights do not fit its description.
    """
    path = Path(weights)
    if path.suffix == ".weights":
        detector, classes = darknet.load_darknet(path, None if cfg is None else Path(cfg))
        return Model(detector.eval(), classes, _darknet_preprocess(detector, detector.input_size))
    if not path.exists() and str(weights) in ZOO:
        native, classes = load_published(str(weights), download=download)
        if not isinstance(native, Detector):
            raise ValueError(f"weights={weights}: a classifier, not a detector")
        return Model(native, classes, _darknet_preprocess(native, ZOO[str(weights)].size))
    if cfg is not None:
        raise ValueError(f"cfg={cfg} belongs to a .weights file, got weights={weights}")
    return _load_checkpoint(path)


def _darknet_preprocess(detector: Detector, size: tuple[int, int]) -> Preprocess:
    """What Darknet does (``detector.c:test_detector``): letterbox, and for YOLOv1 a plain resize."""
    return Preprocess(size=size, resize="stretch" if detector.generation == "v1" else "letterbox")


def _load_checkpoint(path: Path) -> Model:
    content = read(path)
    about = content["yolo"]
    state = {
        str(name).removeprefix(PREFIX): value
        for name, value in content["state_dict"].items()
        if str(name).startswith(PREFIX)
    }
    try:
        detector = build(Recipe(**about["recipe"]))
        preprocess = Preprocess.from_dict(about["preprocess"])
        ranges = {str(name): float(limit) for name, limit in about.get("ranges", {}).items()}
        model = Model(detector.eval(), list(about["classes"]), preprocess, ranges)
    except _BROKEN as error:
        raise ValueError(f"{path}: its description of the network is wrong: {error}") from error
    try:
        detector.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: the weights do not fit the network it describes: {error}") from error
    return model
