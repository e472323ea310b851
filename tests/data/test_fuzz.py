"""Mutated files: every reader answers with a result or a ValueError, never with anything else."""

import logging
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.making import coco, picture, voc, voc_object, write
from yolo.data import load_image
from yolo.data.formats import read_coco, read_darknet, read_voc, read_yolo
from yolo.data.image import check_image

ROUNDS = int(os.environ.get("YOLO_FUZZ", "150"))  # per reader; 20000 for a long run
TOKENS = [
    b"<",
    b">",
    b"&",
    b"\0",
    b"\xff\xfe",
    b"{",
    b"[",
    b"-1",
    b"1e999",
    b"nan",
    b'"',
    b"\n",
    b"../",
    b"!!x",
    b"*a",
    b"\r",
]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat or insert a few times."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(result) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(result):
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del result[at : at + rng.randrange(1, 30)]
        elif kind == 2:
            result[at:at] = rng.choice(TOKENS)
        elif kind == 3:
            result[at:at] = result[at : at + rng.randrange(1, 40)]
        else:
            del result[at:]
    return bytes(result)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    logging.disable(logging.WARNING)
    monkeypatch.setattr("os.getcwd", lambda: str(tmp_path))
    picture(tmp_path / "images" / "a.jpg", 20, 16)
    picture(tmp_path / "images" / "a.png", 20, 16)
    write(
        tmp_path / "labels" / "a.txt", "0 0.5 0.5 0.25 0.25\n1 0.1 0.2 0.2 0.4\n0 0.1 0.2 0.5 0.2 0.5 0.6\n"
    )
    write(tmp_path / "list.txt", "images/a.jpg\n# x\n")
    write(tmp_path / "obj.names", "kite\nboat\n")
    write(tmp_path / "obj.data", "classes=2\ntrain=list.txt\nnames=obj.names\n")
    write(tmp_path / "data.yaml", "path: .\ntrain: images\nnc: 2\nnames: {0: kite, 1: 'boat'}\n")
    write(tmp_path / "images" / "a.xml", voc(voc_object("kite", (1, 2, 9, 9.5)), (20, 16), "a.jpg"))
    coco(tmp_path / "a.json", [{"category_id": 3, "bbox": [1, 1, 5, 5], "area": 3, "iscrowd": 0}])
    yield tmp_path
    logging.disable(logging.NOTSET)


def read_picture(path: Path) -> None:
    check_image(path)
    load_image(path)


CASES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "voc": ("images/a.xml", lambda home: read_voc(home / "images")),
    "coco": ("a.json", lambda home: read_coco(home / "a.json", home / "images")),
    "rows": ("labels/a.txt", lambda home: read_yolo(home / "images", ["kite", "boat"])),
    "list": ("list.txt", lambda home: read_yolo(home / "list.txt", ["kite", "boat"])),
    "names": ("obj.names", lambda home: read_darknet(home / "list.txt", home / "obj.names")),
    "data": ("obj.data", lambda home: read_darknet(home / "obj.data")),
    "yaml": ("data.yaml", lambda home: read_yolo(home / "data.yaml", split="train")),
    "jpeg": ("images/a.jpg", lambda home: read_picture(home / "images" / "a.jpg")),
    "png": ("images/a.png", lambda home: read_picture(home / "images" / "a.png")),
}


@pytest.mark.parametrize("name", CASES)
def test_mutated(home: Path, name: str) -> None:
    file, read = CASES[name]
    path, rng = home / file, random.Random(name)
    original = path.read_bytes()
    refused = 0
    for _ in range(ROUNDS):
        data = mutate(original, rng)
        path.write_bytes(data)
        try:
            read(home)
        except ValueError as error:
            refused += bool(str(error))
        except Exception as error:  # noqa: BLE001 - that is the finding
            pytest.fail(f"{type(error).__name__}: {error} for {data!r}")
    if name not in ("rows", "names", "list"):
        assert refused  # the mutations do reach the parser
