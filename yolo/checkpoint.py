"""The one self-describing artifact: network, class names and how pictures must be prepared, in one file.

A checkpoint is a plain ``torch.save`` file that loads with ``weights_only=True``: tensors, numbers and strings, no
code. Under the key ``yolo`` it has ``format``, ``recipe`` (a name from a fixed list and its arguments), ``classes``,
``preprocess`` and ``ranges`` (filled by quantisation-aware training); under ``state_dict`` the weights, prefixed
``detector.``. Lightning's own training checkpoints carry the same two keys, so every file that training writes can be
evaluated, used and exported. Classifiers are kept alike: their ``yolo`` says ``task: classify``, their weights are
prefixed ``classifier.``.
"""

import os
import pickle
import re
import shutil
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
from yolo.models.detector import Detector, Network, Recipe

FORMAT = 1
PREFIX = "detector."
CLASSIFIER_PREFIX = "classifier."
# what PyTorch's reader and the constructors raise for files with a wrong byte in them: they do not check what they read
_BROKEN = (
    *(pickle.UnpicklingError, RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError),
    *(AttributeError, AssertionError, OverflowError, MemoryError, struct.error),
)

AnyClassifier = models.Classifier | darknet.CfgClassifier


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

    detector: Network
    classes: list[str]
    preprocess: Preprocess
    ranges: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.classes) != self.detector.num_classes:
            raise ValueError(
                f"{len(self.classes)} class names were given for a model with {self.detector.num_classes} classes"
            )
        if self.preprocess.resize == "cover":
            raise ValueError("resize=cover cuts objects off: it is for classifiers, use letterbox or stretch")

    @property
    def network(self) -> Network:
        return self.detector

    def yolo(self, purpose: str) -> Detector:
        """The network as one of the YOLO family.

        Raises:
            ValueError: It is another one, which ``purpose`` cannot be done with.
        """
        if not isinstance(self.detector, Detector):
            kind = self.detector.recipe.name if self.detector.recipe else type(self.detector).__name__
            raise ValueError(
                f"{purpose} is for the YOLO family, this model is {kind}: it trains, scores and predicts"
            )
        return self.detector


@dataclass(frozen=True)
class ClassifierModel:
    """A classifier with all that is needed to use it."""

    classifier: AnyClassifier
    classes: list[str]
    preprocess: Preprocess

    def __post_init__(self) -> None:
        if len(self.classes) != self.classifier.num_classes:
            raise ValueError(
                f"{len(self.classes)} class names were given for {self.classifier.num_classes} classes"
            )
        if isinstance(self.classifier, darknet.CfgClassifier) and not all(self.classifier.head.flat):
            raise ValueError("the cfg ends in a map, neither in classes nor in a detection head")

    @property
    def network(self) -> AnyClassifier:
        return self.classifier


AnyModel = Model | ClassifierModel


def describe(model: AnyModel) -> dict[str, Any]:
    """The content of the key ``yolo``: plain values only."""
    recipe = model.network.recipe
    if recipe is None:
        raise ValueError(
            "this network was not built by a function of yolo.models or from a cfg: it has no recipe to save"
        )
    return {
        "format": FORMAT,
        "task": "detect" if isinstance(model, Model) else "classify",
        "recipe": asdict(recipe),
        "classes": list(model.classes),
        "preprocess": model.preprocess.to_dict(),
        "ranges": dict(model.ranges) if isinstance(model, Model) else {},
    }


def build(recipe: Recipe) -> Network:
    """Build the network of a recipe; only names that this package knows are accepted."""
    if recipe.name == "darknet":
        return darknet.build_cfg(**recipe.arguments)
    return models.build(recipe.name, recipe.arguments)


def build_classifier(recipe: Recipe) -> AnyClassifier:
    """The same for a classifier."""
    if recipe.name == "darknet":
        return darknet.build_classifier(**recipe.arguments)
    return models.build_classifier(recipe.name, recipe.arguments)


def save_model(model: AnyModel, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write ``model`` (or its description with other ``weights``, keys as in the network) to ``path`` atomically."""
    prefix = PREFIX if isinstance(model, Model) else CLASSIFIER_PREFIX
    state = model.network.state_dict() if weights is None else weights
    write_atomically(
        {
            "yolo": describe(model),
            "state_dict": {prefix + name: value.detach().cpu() for name, value in state.items()},
        },
        path,
    )


def write_atomically(content: object, path: Path) -> None:
    """``torch.save`` to a neighbour, flush to the disk, then rename: a crash or a full disk leaves the old file.

    Args:
        content: What to save; ``bytes`` are written as they are.

    Raises:
        OSError: There is no room, or the folder cannot be written.
    """
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, RuntimeError) as error:  # torch.save turns a failed write into a RuntimeError
        raise OSError(f"{path}: cannot be written ({_said(error)}); {_free(path.parent)}") from error
    finally:
        part.unlink(missing_ok=True)


def _said(error: BaseException) -> str:
    first = error
    while first.__context__ is not None:  # torch.save's own error hides the one of the file
        first = first.__context__
    return (first.strerror or "") if isinstance(first, OSError) else str(first).splitlines()[0]


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.1f} MB are free there"
    except OSError:
        return "the folder is not there"


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed while they saved have left in ``folder``."""
    for part in folder.glob(".*.part*"):
        number = part.name.rpartition(".part")[2]
        if number.isdigit() and not _runs(int(number)):
            part.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


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
    """Load a trained detector of any kind; arguments as for :func:`load_any`.

    Raises:
        ValueError: As there, or the file holds a classifier.
    """
    model = load_any(weights, cfg, download)
    if isinstance(model, ClassifierModel):
        raise ValueError(f"{weights}: a classifier, not a detector")
    return model


def load_any(weights: Path | str, cfg: Path | str | None = None, download: bool = False) -> AnyModel:
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
        network = darknet.import_network(darknet.find_cfg(path) if cfg is None else Path(cfg), path)
        return darknet_model(network, darknet.class_names(network), network.input_size)
    if not path.exists() and str(weights) in ZOO:
        native, classes = load_published(str(weights), download=download)
        return darknet_model(native, classes, ZOO[str(weights)].size)
    if cfg is not None:
        raise ValueError(f"cfg={cfg} belongs to a .weights file, got weights={weights}")
    return _load_checkpoint(path)


def _darknet_preprocess(network: Detector | AnyClassifier, size: tuple[int, int]) -> Preprocess:
    """What Darknet does (``detector.c:test_detector``, ``classifier.c:predict_classifier``).

    Detectors see a letterbox, YOLOv1 a plain resize, classifiers the middle of what covers the canvas.
    """
    if not isinstance(network, Detector):
        return Preprocess(size=size, resize="cover", interpolation="darknet")
    return Preprocess(size=size, resize="stretch" if network.generation == "v1" else "letterbox")


def darknet_model(network: Detector | AnyClassifier, classes: list[str], size: tuple[int, int]) -> AnyModel:
    """A network that came from Darknet, with its preparation of pictures; ``size`` is height and width."""
    preprocess = _darknet_preprocess(network, size)
    if isinstance(network, Detector):
        return Model(network.eval(), classes, preprocess)
    return ClassifierModel(network.eval(), classes, preprocess)


def _load_checkpoint(path: Path) -> AnyModel:
    content = read(path)
    about = content["yolo"]
    try:
        model = _described(about)
    except _BROKEN as error:
        raise ValueError(f"{path}: its description of the network is wrong: {error}") from error
    prefix = PREFIX if isinstance(model, Model) else CLASSIFIER_PREFIX
    state = {
        str(name).removeprefix(prefix): value
        for name, value in content["state_dict"].items()
        if str(name).startswith(prefix)
    }
    try:
        model.network.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: the weights do not fit the network it describes: {error}") from error
    model.network.eval()
    return model


def _described(about: Mapping[str, Any]) -> AnyModel:
    """A fresh network as the key ``yolo`` has it."""
    recipe, classes = Recipe(**about["recipe"]), list(about["classes"])
    preprocess = Preprocess.from_dict(about["preprocess"])
    if about.get("task") == "classify":
        return ClassifierModel(build_classifier(recipe), classes, preprocess)
    ranges = {str(name): float(limit) for name, limit in about.get("ranges", {}).items()}
    return Model(build(recipe), classes, preprocess, ranges)
