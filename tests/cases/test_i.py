"""Kind I of the bug reports: pictures."""

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.cases.inputs import case, copied, counts, expected
from yolo.anchors import measure
from yolo.checkpoint import Model, load_model, save_model
from yolo.data import (
    Annotated,
    Augment,
    DetectionDataset,
    Item,
    Preprocess,
    image_size,
    load_image,
    read_yolo,
    to_float,
)
from yolo.evaluate import evaluate
from yolo.models import yolov3_tiny
from yolo.predict import Predictor, shots
from yolo.report import write_predictions
from yolo.types import Record

MOVING = Augment(flip=1.0)


def items(annotated: Annotated, preprocess: Preprocess) -> list[Item]:
    """The first picture as validation sees it and as training does."""
    return [DetectionDataset(annotated.records, preprocess, augment)[0] for augment in (None, MOVING)]


def small(preprocess: Preprocess) -> Model:
    torch.manual_seed(0)
    return Model(yolov3_tiny(num_classes=1, width=0.1).eval(), ["kite"], preprocess)


def test_i01_exif_turn_for_pixels_size_and_boxes() -> None:
    want = expected("I01")
    annotated = read_yolo(case("I01") / "images", ["kite"])
    (record,) = annotated.records
    width, height = want["upright_wh"]
    assert image_size(record.path) == load_image(record.path).shape[:2] == (height, width)
    assert record.truth.boxes.tolist() == [want["red_square_xyxy_upright"]]
    for item in items(annotated, Preprocess((height, width))):
        x1, y1, x2, y2 = map(int, item.boxes[0])
        inside = torch.zeros(height, width, dtype=torch.bool)
        inside[y1:y2, x1:x2] = True
        red = item.image[0].float()
        assert red[inside].mean() > 200
        assert red[~inside].mean() < 80


def test_i03_every_mode_has_three_channels() -> None:
    want = expected("I03")
    colours = {"l": want["l"], "one": want["one"], "rgba": [200, 10, 20], "palette": [200, 10, 20]}
    annotated = read_yolo(case("I03") / "images", ["kite"])
    assert counts(annotated) == (6, 6)
    dataset = DetectionDataset(annotated.records, Preprocess((32, 32)))
    for index, record in enumerate(annotated.records):
        image = dataset[index].image
        assert image.shape == (3, 32, 32)
        name = Path(record.path).stem
        if name in colours:
            slack = 8 if name == "palette" else 0
            assert (image.flatten(1).float().mean(1) - torch.tensor(colours[name])).abs().max() <= slack, name


def test_i04_names_of_any_letters(tmp_path: Path) -> None:
    want = expected("I04")
    folder = copied("I04", tmp_path)
    names = sorted(path.name for path in (folder / "images").iterdir())
    assert counts(read_yolo(folder / "images", ["kite"])) == (want["images"], want["boxes"])
    for on_disk in ("NFD", "NFC"):
        for path in [*(folder / "images").iterdir(), *(folder / "labels").iterdir()]:
            path.rename(path.with_name(unicodedata.normalize(on_disk, path.name)))
        for in_list in ("NFC", "NFD"):
            text = "\n".join(unicodedata.normalize(in_list, f"images/{name}") for name in names)
            (folder / "list.txt").write_text(text, "utf-8")
            assert counts(read_yolo(folder / "list.txt", ["kite"])) == (want["images"], want["boxes"])
    predictor = Predictor(small(Preprocess((64, 64))), score_threshold=0.5)
    write_predictions(predictor.stream(shots(folder / "images")), ["kite"], tmp_path / "out", save_txt=True)
    assert sorted(path.name for path in (tmp_path / "out" / "images").iterdir()) == names
    stems = sorted(Path(name).stem for name in names)
    assert sorted(path.stem for path in (tmp_path / "out" / "labels").iterdir()) == stems


def test_i04_under_the_c_locale() -> None:
    code = (
        "import sys; from yolo.data.formats import read_yolo; from yolo.data.image import load_image\n"
        "found = read_yolo(sys.argv[1], ['kite']); [load_image(one.path) for one in found.records]\n"
        "print(len(found.records), sum(len(one.truth.labels) for one in found.records))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(case("I04") / "images")],
        env={**os.environ, "LC_ALL": "C", "LANG": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["3", "3"]


def test_i05_damaged_pictures_are_found_while_reading() -> None:
    annotated = read_yolo(case("I05") / "images", ["kite"])
    assert [Path(record.path).name for record in annotated.records] == ["full.jpg"]
    found = {Path(one.file).name for one in annotated.lost if one.code == "unreadable-image"}
    assert found == {"half.jpg", "minus7.jpg", "empty.jpg", "text.jpg"}
    for name in found:
        with pytest.raises(ValueError, match=name):
            load_image(case("I05") / "images" / name)
    with pytest.raises(ValueError, match=r"4 problems in the data(.|\n)*half\.jpg"):
        read_yolo(case("I05") / "images", ["kite"], on_error="raise")


class _Seen:
    """Remembers what a network was fed."""

    def __init__(self, model: Model) -> None:
        self.inputs: list[Tensor] = []
        model.detector.register_forward_pre_hook(lambda _, given: self.inputs.append(given[0]))


def test_i06_red_is_the_first_channel_everywhere(tmp_path: Path) -> None:
    want = torch.tensor(expected("I06")["tensor_chw_mean"])
    folder = copied("I06", tmp_path)
    annotated = read_yolo(folder, ["kite"])
    preprocess = Preprocess((64, 64), "stretch")
    model = small(preprocess)
    seen = _Seen(model)
    evaluate(model, annotated, workers=0, device="cpu")
    list(Predictor(model, device="cpu").stream(shots(folder / "red.png")))
    fed = [*seen.inputs, *(to_float(item.image[None]) for item in items(annotated, preprocess))]
    assert len(fed) == 4  # val, predict, what validation and training batches hold
    for images in fed:
        torch.testing.assert_close(images.mean((0, 2, 3)), want)


@pytest.mark.parametrize("resize", ["letterbox", "stretch"])
def test_i07_one_setting_rules_all(tmp_path: Path, resize: str) -> None:
    """The picture, its boxes in training, the anchors, the checkpoint, the way back: one placement."""
    want = expected("I07")
    folder = copied("I07", tmp_path)
    preprocess = Preprocess((want["net"], want["net"]), resize)
    height, width = image_size(folder / "a.png")
    assert (width, height) == (1270, 780)
    rows, cols = preprocess.inner_size(height, width)
    assert [cols, rows] == want[resize]["inner_wh"]
    top = want["letterbox"]["pad_top"] if resize == "letterbox" else 0
    below = want["letterbox"]["pad_bottom"] if resize == "letterbox" else 0
    place = preprocess.placement(height, width)
    assert (place.pad_y, want["net"] - rows - place.pad_y) == (top, below)
    (folder / "a.txt").write_text("0 0.5 0.5 1 1\n")
    annotated = read_yolo(folder, ["kite"])
    for item in items(annotated, preprocess):
        np.testing.assert_allclose(item.boxes[0], [0, top, 416, 416 - below], atol=1e-3)
    np.testing.assert_allclose(measure(annotated, preprocess).all.wh, [[cols, rows]], atol=1e-3)
    save_model(small(preprocess), tmp_path / "a.ckpt")
    model = load_model(tmp_path / "a.ckpt")
    assert model.preprocess == preprocess
    shown = model.preprocess(load_image(folder / "a.png"))
    assert shown[1] == place
    record: Record = annotated.records[0]
    assert DetectionDataset([record], model.preprocess)[0].meta.placement == place
