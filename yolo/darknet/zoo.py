"""The published weights by name: where they are, how large, and which network they belong to."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from yolo import models
from yolo.darknet.convert import load_into
from yolo.darknet.fetch import check, fetch
from yolo.darknet.names import COCO, VOC
from yolo.darknet.weights import Header, Slot, load_weights, read_header
from yolo.models.classifier import Classifier
from yolo.models.detector import Detector
from yolo.models.v2 import TINY_VOC_ANCHORS, VOC_ANCHORS

REDMON = "https://pjreddie.com/media/files"
ALEXEY = "https://github.com/AlexeyAB/darknet/releases/download"


@dataclass(frozen=True)
class Published:
    """A weights file and its network.

    Args:
        url: Official address.
        floats: Numbers after the header, as the published cfg needs them; the header has 16 or 20 bytes.
        build: Function of :mod:`yolo.models`.
        size: Height and width of the input in its cfg, pixels.
        arguments: Of ``build``.
        classes: Names; those of ImageNet are not kept here.
        sha256: Of the file, where one is known.
        cutoff: A backbone file holds the layers before this index of the cfg.
    """

    url: str
    floats: int
    build: Callable[..., Detector | Classifier]
    size: tuple[int, int]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    sha256: str = ""
    cutoff: int | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes that the file may have: with the header of version 0.1 or 0.2."""
        return 16 + 4 * self.floats, 20 + 4 * self.floats


_COCO: dict[str, Any] = {"classes": tuple(COCO)}
_VOC: dict[str, Any] = {"classes": tuple(VOC)}
_VOC2 = {"num_classes": 20, "anchors": VOC_ANCHORS}
_TINY_VOC2 = {"num_classes": 20, "anchors": TINY_VOC_ANCHORS, "hidden": 1024}

# Addresses: pjreddie.com/darknet and the README of AlexeyAB/darknet. Checksums: those that public downloaders
# use for these addresses; yolov3-tiny's was compared with a copy of the file.
ZOO: dict[str, Published] = {
    "yolov1": Published(
        f"{REDMON}/yolov1/yolov1.weights", 197_328_243, models.yolov1, (448, 448), **_VOC,
        sha256="df414df832ed10e3f2788df1e0e0ae573976573b97b5eec2c824ab9e5a8ae6d6",
    ),
    "yolov1-tiny": Published(
        f"{REDMON}/yolov1/tiny-yolov1.weights", 27_099_950, models.yolov1_tiny, (448, 448), **_VOC
    ),
    "yolov2": Published(
        f"{REDMON}/yolov2.weights", 50_983_561, models.yolov2, (608, 608), **_COCO,
        sha256="d9945162ed6f54ce1a901e3ec537bdba4d572ecae7873087bd730e5a7942df3f",
    ),
    "yolov2-voc": Published(
        f"{REDMON}/yolov2-voc.weights", 50_676_061, models.yolov2, (416, 416), _VOC2, **_VOC
    ),
    "yolov2-tiny": Published(
        f"{REDMON}/yolov2-tiny.weights", 11_237_145, models.yolov2_tiny, (416, 416), **_COCO
    ),
    "yolov2-tiny-voc": Published(
        f"{REDMON}/yolov2-tiny-voc.weights", 15_867_885, models.yolov2_tiny, (416, 416), _TINY_VOC2, **_VOC
    ),
    "yolov3": Published(
        f"{REDMON}/yolov3.weights", 62_001_757, models.yolov3, (416, 416), **_COCO,
        sha256="523e4e69e1d015393a1b0a441cef1d9c7659e3eb2d7e15f793f060a21b32f297",
    ),
    "yolov3-spp": Published(
        f"{REDMON}/yolov3-spp.weights", 63_052_381, models.yolov3_spp, (608, 608), **_COCO,
        sha256="87a1e8c85c763316f34e428f2295e1db9ed4abcec59dd9544f8052f50de327b4",
    ),
    "yolov3-tiny": Published(
        f"{REDMON}/yolov3-tiny.weights", 8_858_734, models.yolov3_tiny, (416, 416), **_COCO,
        sha256="dccea06f59b781ec1234ddf8d1e94b9519a97f4245748a7d4db75d5b7080a42c",
    ),
    "yolov4": Published(
        f"{ALEXEY}/darknet_yolo_v3_optimal/yolov4.weights", 64_429_405, models.yolov4, (608, 608), **_COCO,
        sha256="e8a4f6c62188738d86dc6898d82724ec0964d0eb9d2ae0f0a9d53d65d108d562",
    ),
    "yolov4-tiny": Published(
        f"{ALEXEY}/darknet_yolo_v4_pre/yolov4-tiny.weights", 6_062_814, models.yolov4_tiny, (416, 416),
        **_COCO,
        sha256="037676f0d929c24e1bd9a0037fe30dc416fc26e0ca2a4491a44d024873316061",
    ),
    "darknet19": Published(f"{REDMON}/darknet19.weights", 20_856_776, models.darknet19, (224, 224)),
    "darknet19_448": Published(f"{REDMON}/darknet19_448.weights", 20_856_776, models.darknet19, (448, 448)),
    "darknet53": Published(f"{REDMON}/darknet53.weights", 41_645_640, models.darknet53, (256, 256)),
    "darknet19_448.conv.23": Published(
        f"{REDMON}/darknet19_448.conv.23", 19_831_776, models.yolov2, (416, 416), **_COCO, cutoff=23
    ),
    "darknet53.conv.74": Published(
        f"{REDMON}/darknet53.conv.74", 40_620_640, models.yolov3, (416, 416), **_COCO, cutoff=74
    ),
    "yolov4.conv.137": Published(
        f"{ALEXEY}/darknet_yolo_v3_optimal/yolov4.conv.137", 42_509_664, models.yolov4, (608, 608), **_COCO,
        cutoff=137,
    ),
    "yolov4-tiny.conv.29": Published(
        f"{ALEXEY}/darknet_yolo_v4_pre/yolov4-tiny.conv.29", 4_947_424, models.yolov4_tiny, (416, 416),
        **_COCO, cutoff=29,
    ),
}  # fmt: skip


def cache_folder() -> Path:
    """Where fetched weights are kept: ``$YOLO_CACHE/weights``, by default in ``~/.cache/yolo-lightning``."""
    return Path(os.environ.get("YOLO_CACHE", "~/.cache/yolo-lightning")).expanduser() / "weights"


def published(name: str) -> Published:
    """The entry of ``name``.

    Raises:
        ValueError: There is none, with the names that there are.
    """
    if name not in ZOO:
        raise ValueError(f"no published weights are called {name!r}; known are {', '.join(ZOO)}")
    return ZOO[name]


def locate(entry: Published, folder: Path | None = None, download: bool = False) -> Path:
    """The weights file of ``entry`` in the cache, fetched there if it may be.

    Args:
        entry: Of the zoo.
        folder: The cache.
        download: Allow fetching; a file that is there already is only measured and verified.

    Raises:
        ValueError: It is not there and may not be fetched, or is another file than published.
    """
    path = (folder or cache_folder()) / entry.url.rpartition("/")[2]
    if path.is_file():
        check(path, str(path), entry.sizes, entry.sha256)
        return path
    if not download:
        raise ValueError(
            f"{path}: not there; download=true fetches it from {entry.url} ({entry.sizes[1] / 1e6:.0f} MB)"
        )
    return fetch(entry.url, path, entry.sizes, entry.sha256)


class BackboneFile(NamedTuple):
    """A weights file that holds only the layers before ``cutoff``, an index of the cfg."""

    path: Path
    cutoff: int


def backbone_file(weights: str, *, download: bool = False, folder: Path | None = None) -> BackboneFile | None:
    """What ``weights`` is, if it is such a file: by its ending ``.conv.74``, or by a name of the zoo."""
    ending = re.search(r"\.conv\.(\d+)$", weights)
    if Path(weights).is_file():
        return BackboneFile(Path(weights), int(ending[1])) if ending else None
    cutoff = ZOO[weights].cutoff if weights in ZOO else None
    return None if cutoff is None else BackboneFile(locate(ZOO[weights], folder, download), cutoff)


def load_backbone(slots: Sequence[Slot], file: BackboneFile) -> Header:
    """Fill the first layers of a network.

    Args:
        slots: Those before the cutoff.
        file: Must hold exactly as many numbers: another backbone would be loaded as garbage.

    Raises:
        ValueError: It does not fit.
    """
    header = read_header(file.path)
    floats, wanted = (file.path.stat().st_size - header.size) / 4, sum(slot.floats for slot in slots)
    if floats != wanted:
        raise ValueError(
            f"{file.path}: {floats:,.0f} floats, the layers before {file.cutoff} of this model hold {wanted:,}: "
            "it is the backbone of another architecture"
        )
    return load_weights(slots, file.path)


def load_published(
    name: str, *, download: bool = False, folder: Path | None = None
) -> tuple[Detector | Classifier, list[str]]:
    """The native network of published weights, filled with them, and its class names."""
    entry = published(name)
    path = locate(entry, folder, download)
    network = entry.build(**entry.arguments)
    load_into(network, path, entry.cutoff)
    return network.eval(), list(entry.classes) or [f"class{index}" for index in range(network.num_classes)]
