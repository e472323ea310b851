"""Mutated files: every reader answers with a result or a ValueError, never with anything else, in little memory.

The default run takes about a quarter of a minute of a core; the slow one feeds 100,000 inputs in all.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.making import coco, picture, voc, voc_object, write
from yolo import darknet
from yolo.checkpoint import Model, load_model, save_model
from yolo.data import Preprocess, load_image
from yolo.data.formats import read_coco, read_darknet, read_voc, read_yolo
from yolo.data.image import check_image
from yolo.models import yolov2_tiny

QUICK, LONG = 80, 100_000
ROOM = 500  # MiB that a reader may need beyond what the process had
TOKENS = [
    *(b"<", b">", b"&", b"\0", b"\xff\xfe", b"{", b"[", b"]", b'"', b"\n", b"\r", b",", b"=", b"#", b"- ", b": "),
    *(b"-1", b"1e999", b"nan", b"2147483647", b"99999999999999999999", b"../", b"!!x", b"*a", b"\xed\xa0\x80"),
    *(b"[yolo]\n", b"from=-9\n", b"layers=99\n", b"groups=3\n", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"),
]  # fmt: skip
NAMES = ["kite", "boat"]
CFG = """[net]
width=32
height=32
channels=3
[convolutional]
batch_normalize=1
filters=4
size=3
stride=2
pad=1
activation=mish
[maxpool]
size=2
stride=1
[route]
layers=-1,-2
[shortcut]
from=-2
activation=linear
[upsample]
stride=2
[convolutional]
filters=14
size=1
stride=1
activation=linear
[yolo]
mask=0,1
anchors=4,5, 10,12, 20,16
classes=2
num=3
scale_x_y=1.05
"""

Edit = tuple[int, int, int, bytes]  # what is done, where, to how many bytes, and what is put there
EDITS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1 << 20), st.integers(1, 40), st.sampled_from(TOKENS)),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, edits: list[Edit]) -> bytes:
    """Flip a bit, cut out, insert, repeat, replace or cut off."""
    result = bytearray(data)
    for kind, place, length, token in edits:
        at = place % (len(result) + 1)
        if kind == 0 and at < len(result):
            result[at] ^= 1 << length % 8
        elif kind == 1:
            del result[at : at + length]
        elif kind == 2:
            result[at:at] = token
        elif kind == 3:
            result[at:at] = result[at : at + length] * (length % 4 + 1)
        elif kind == 4:
            result[at : at + len(token)] = token
        else:
            del result[at:]
    return bytes(result)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of every kind."""
    folder = tmp_path_factory.mktemp("fuzz")
    for name in ("a.jpg", "a.png"):
        picture(folder / "images" / name, 20, 16)
    image = Image.open(folder / "images" / "a.png")
    for suffix in ("gif", "webp", "bmp", "tif", "ppm"):
        image.save(write(folder / "other" / f"a.{suffix}", ""))
    image.convert("CMYK").save(folder / "other" / "cmyk.jpg")
    Image.fromarray(np.full((6, 5), 0x4DFF, np.uint16)).save(folder / "other" / "deep.png")
    image.convert("P").save(folder / "other" / "palette.png", transparency=0)
    write(folder / "labels" / "a.txt", "0 0.5 0.5 0.25 0.25\n1 0.1 0.2 0.2 0.4\n0 0.1 0.2 0.5 0.2 0.5 0.6\n")
    write(folder / "list.txt", "images/a.jpg\n# x\n")
    write(folder / "obj.names", "kite\nboat\n")
    write(folder / "obj.data", "classes=2\ntrain=list.txt\nnames=obj.names\n")
    write(folder / "data.yaml", "path: .\ntrain: images\nnc: 2\nnames: {0: kite, 1: 'boat'}\n")
    write(folder / "images" / "a.xml", voc(voc_object("kite", (1, 2, 9, 9.5)), (20, 16), "a.jpg"))
    rows = [{"category_id": 3, "bbox": [1, 1, 5, 5], "area": 3, "iscrowd": 0}]
    coco(folder / "a.json", rows, images=[{"id": 1, "file_name": "a.jpg", "width": 20, "height": 16}])
    write(folder / "net.cfg", CFG)
    darknet.save_weights(darknet.build_cfg(CFG).slots, folder / "net.weights")
    torch.manual_seed(0)
    detector = yolov2_tiny(num_classes=2, width=0.02)
    save_model(Model(detector, NAMES, Preprocess((32, 32))), folder / "a.ckpt")
    read_yolo(folder / "images", NAMES, cache_dir=folder / "cache")
    next((folder / "cache" / "annotations").iterdir()).rename(folder / "kept.npz")
    return folder


def read_picture(path: Path) -> None:
    check_image(path)
    load_image(path)


def read_kept(home: Path) -> None:
    """The cache is never a reason to fail: what is damaged is read anew."""
    cache = home / "cache" / "annotations"
    read_yolo(home / "images", NAMES, cache_dir=home / "cache")
    (kept,) = cache.iterdir()
    kept.write_bytes((home / "kept.npz").read_bytes())
    assert len(read_yolo(home / "images", NAMES, cache_dir=home / "cache").records) == 2


def cfg_of(home: Path) -> None:
    darknet.plan(darknet.parse_cfg(darknet.read_cfg(home / "net.cfg"), "net.cfg"))


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "voc": ("images/a.xml", lambda home: read_voc(home / "images")),
    "coco": ("a.json", lambda home: read_coco(home / "a.json", home / "images")),
    "rows": ("labels/a.txt", lambda home: read_yolo(home / "images", NAMES)),
    "list": ("list.txt", lambda home: read_yolo(home / "list.txt", NAMES)),
    "names": ("obj.names", lambda home: read_darknet(home / "list.txt", home / "obj.names")),
    "data": ("obj.data", lambda home: read_darknet(home / "obj.data")),
    "yaml": ("data.yaml", lambda home: read_yolo(home / "data.yaml", split="train")),
    "cache": ("kept.npz", read_kept),
    "cfg": ("net.cfg", cfg_of),
    "weights": ("net.weights", lambda home: darknet.load_darknet(home / "net.weights", home / "net.cfg")),
    "checkpoint": ("a.ckpt", lambda home: load_model(home / "a.ckpt")),
    **{
        name: (name, lambda home, name=name: read_picture(home / name))
        for name in ("images/a.jpg", "images/a.png", "other/a.gif", "other/a.webp", "other/a.bmp", "other/a.tif",
                     "other/a.ppm", "other/cmyk.jpg", "other/deep.png", "other/palette.png")
    },
}  # fmt: skip
COSTLY = {"checkpoint": 10, "weights": 4}  # get a smaller share of the long run
NEVER_REFUSED = ("rows", "cache")
SHARES = sum(1 / COSTLY.get(name, 1) for name in READERS)


def peak() -> float:
    """MiB of the process at its largest since :func:`forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def feed(home: Path, name: str, examples: int) -> None:
    file, read = READERS[name]
    path = home / file
    original = path.read_bytes()
    refused = fed = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(EDITS)
    def every_input(edits: list[Edit]) -> None:
        nonlocal refused, fed
        path.write_bytes(mutate(original, edits))
        fed += 1
        try:
            read(home)
        except ValueError as error:
            refused += bool(str(error))

    forget_peak()
    before = peak()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about metadata
            every_input()
    finally:
        path.write_bytes(original)
    assert fed >= examples
    assert refused or name in NEVER_REFUSED  # the mutations do reach the parser
    assert peak() - before < ROOM


@pytest.fixture(autouse=True)
def quiet(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(home)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", READERS)
def test_mutated(home: Path, name: str) -> None:
    feed(home, name, math.ceil(QUICK / COSTLY.get(name, 1)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", READERS)
def test_a_hundred_thousand_mutated(home: Path, name: str) -> None:
    feed(home, name, math.ceil(LONG / SHARES / COSTLY.get(name, 1)))
