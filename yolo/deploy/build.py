"""From a model and what is wanted of it to the module and the description that are exported."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from yolo.checkpoint import Model
from yolo.deploy.graph import Deployed, InputType, Network, Suppression, spare_rows
from yolo.deploy.metadata import Metadata, checksum
from yolo.deploy.precision import folded, halve
from yolo.models.detector import Detector

Precision = Literal["fp32", "fp16", "int8"]


@dataclass(frozen=True)
class Wanted:
    """What the graph must be able to do.

    Args:
        precision: Of the network; decoding and suppression are always float32.
        rule: Suppress in the graph; None leaves every prediction.
        batch: Pictures per run; None for any number.
        size: Height and width; None for any multiple of the stride.
        input_type: ``uint8`` 0 to 255 or ``float32`` 0 to 1.
    """

    precision: Precision = "fp32"
    rule: Suppression | None = None
    batch: int | None = None
    size: tuple[int, int] | None = None
    input_type: InputType = "uint8"

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ValueError(
                f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}"
            )
        if self.input_type not in get_args(InputType):
            raise ValueError(
                f"input must be one of {', '.join(get_args(InputType))}, got {self.input_type!r}"
            )
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"batch must be dynamic or at least 1, got {self.batch}")


def describe(model: Model, wanted: Wanted, source: Path | None = None) -> Metadata:
    """The description of what will be exported.

    Raises:
        ValueError: The network cannot take that size.
    """
    detector = model.detector
    if wanted.size is None and detector.fixed_size is not None:
        height, width = detector.fixed_size
        raise ValueError(
            f"this model takes only {height}x{width} pixels, got size=dynamic; say size=[{height},{width}]"
        )
    detector.check_size(*(wanted.size or model.preprocess.size))
    return Metadata(
        classes=list(model.classes),
        preprocess=model.preprocess,
        specs=detector.specs,
        rule=wanted.rule,
        input_type=wanted.input_type,
        precision=wanted.precision,
        batch=wanted.batch,
        size=wanted.size,
        stride=detector.stride,
        source={} if source is None else {"file": source.name, "sha256": checksum(source)},
        versions={"torch": torch.__version__},
    )


def deployed(
    detector: Detector, wanted: Wanted, *, half: bool, keep: dict[str, str] | None = None
) -> tuple[Deployed, dict[str, str]]:
    """The module to export, batch norms folded, and the layers that stayed in float32 with the reasons.

    Args:
        detector: Stays as it is.
        wanted: Size, input and suppression count here.
        half: Layers in float16. (Those of an int8 network are quantised afterwards, in the graph.)
        keep: Layers of a float16 network that must stay in float32, and why.
    """
    network = folded(detector)
    kept = halve(network, keep) if half else {}
    spare = 0
    if wanted.rule is not None:
        smallest = wanted.size or (detector.stride, detector.stride)
        spare = spare_rows(detector.specs, wanted.rule, *smallest)
    module = Deployed(
        Network(network),
        detector.specs,
        wanted.rule,
        wanted.input_type,
        torch.float16 if half else torch.float32,
        spare,
    )
    return module.eval(), kept
