"""What an exported file says about itself: in an ONNX under ``metadata_props``, beside an engine as JSON."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from yolo.data.preprocess import Preprocess
from yolo.deploy.graph import InputType, Suppression
from yolo.ops.heads import HeadSpec

FORMAT = 1
ENGINES = (".engine", ".plan")  # names of plans
KEY = "yolo"  # of metadata_props
EVERY = ("boxes", "scores")  # outputs without suppression
SUPPRESSED = ("boxes", "scores", "labels", "count")
INSIDE = ("every_box", "every_score")  # what is suppressed, by its name inside the graph


@dataclass(frozen=True)
class Metadata:
    """All that a runtime needs to know beside the file.

    Args:
        classes: Names, in the order of the labels.
        preprocess: How pictures become input.
        specs: The heads, with their anchors in pixels.
        rule: The suppression in the graph; None when the outputs are every prediction.
        input_type: Of ``images``: ``uint8`` 0 to 255 or ``float32`` 0 to 1.
        precision: ``fp32``, ``fp16`` or ``int8``.
        batch: Pictures per run; None for any number.
        size: Height and width of ``images``; None for any multiple of ``stride``.
        kept: Layers that were left in a wider type than ``precision``, with the reason.
        source: File name and SHA-256 of the weights.
        versions: Of what wrote the file.
        engine: For engines: TensorRT's kind and version, profiles, targets.
    """

    classes: list[str]
    preprocess: Preprocess
    specs: tuple[HeadSpec, ...]
    rule: Suppression | None
    input_type: InputType
    precision: str
    batch: int | None
    size: tuple[int, int] | None
    stride: int
    kept: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        values = {**asdict(self), "preprocess": self.preprocess.to_dict()}
        return json.dumps({"format": FORMAT, **values}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str) -> "Metadata":
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: It is no description of this format; ``where`` names the file.
        """
        try:
            values = json.loads(text)
            found = values.pop("format")
            if found != FORMAT:
                raise ValueError(f"{where}: description format {found}, this version reads format {FORMAT}")
            return cls(**_typed(values))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{where}: not a description of an exported model ({error})") from error

    def with_engine(self, about: Mapping[str, Any]) -> "Metadata":
        return replace(self, engine=dict(about))


def _typed(values: dict[str, Any]) -> dict[str, Any]:
    specs = []
    for spec in values["specs"]:
        anchors = tuple((float(w), float(h)) for w, h in spec["all_anchors"])
        specs.append(HeadSpec(**{**spec, "all_anchors": anchors, "mask": tuple(spec["mask"])}))
    return {
        **values,
        "preprocess": Preprocess.from_dict(values["preprocess"]),
        "specs": tuple(specs),
        "rule": None if values["rule"] is None else Suppression(**values["rule"]),
        "size": None if values["size"] is None else tuple(values["size"]),
    }


def from_properties(properties: Mapping[str, str], path: Path) -> Metadata:
    """The description among the metadata of an ONNX file.

    Raises:
        ValueError: There is none: the file is not of this project.
    """
    if KEY not in properties:
        raise ValueError(
            f"{path}: an ONNX model without the description (metadata key {KEY!r}) that export writes"
        )
    return Metadata.from_json(properties[KEY], str(path))


def sidecar(engine: Path) -> Path:
    """Where the description of an engine lies; the engine itself stays a plain plan."""
    return engine.with_name(f"{engine.name}.json")


def read_sidecar(engine: Path) -> Metadata:
    """The description beside an engine.

    Raises:
        ValueError: There is none.
    """
    path = sidecar(engine)
    if not path.is_file():
        if looks_like_onnx(engine):
            raise ValueError(
                f"{engine}: found an ONNX file, an engine is needed: rename it to .onnx or export one"
            )
        raise ValueError(f"{engine}: its description {path.name} is not beside it; export writes both")
    return Metadata.from_json(path.read_text("utf-8"), str(path))


def looks_like_onnx(path: Path) -> bool:
    """Whether a file begins as ONNX files do: field 1, the version of the format, a small number."""
    with path.open("rb") as file:
        head = file.read(2)
    return len(head) == 2 and head[0] == 0x08 and 3 <= head[1] <= 0x20


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
