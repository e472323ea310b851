"""From `import yolo` to results in every form."""

import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageShow

import yolo
from tests.helpers.paths import shared
from yolo import models
from yolo.api.model import chosen_labels
from yolo.checkpoint import Model, load_model, save_model
from yolo.data import Preprocess, load_image
from yolo.deploy import Wanted, export
from yolo.deploy.pictures import images_of
from yolo.report import write_image

CLASSES = ("kite", "boat", "bird")


def result(**other: Any) -> yolo.Result:
    """Two detections on a grey picture of 40 x 30 pixels."""
    values: dict[str, Any] = {
        "boxes": np.array([[1, 2, 11, 22], [5, 5, 30, 15]], np.float32),
        "scores": np.array([0.9, 0.5], np.float32),
        "labels": np.array([2, 0]),
        "classes": CLASSES,
        "image": np.full((30, 40, 3), 90, np.uint8),
    }
    return yolo.Result(**{**values, **other})


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "small.ckpt"
    detector = models.yolov2_tiny(num_classes=3, width=0.0625)
    save_model(Model(detector, list(CLASSES), Preprocess((96, 96))), path)
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    paths = [folder / f"{index}.png" for index in range(3)]
    for path, image in zip(paths, images_of(None, 3), strict=True):
        write_image(path, image)
    return paths


def test_import_alone_loads_nothing() -> None:
    code = "import sys, yolo; print([n for n in ('torch', 'cv2', 'matplotlib', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="module 'yolo' has no attribute 'lode'"):
        yolo.lode  # noqa: B018
    assert {"load", "Result", "Yolo"} <= set(dir(yolo))


def test_numbers_and_names() -> None:
    one = result()
    assert one.names == ["bird", "kite"]
    assert len(one) == 2
    np.testing.assert_allclose(one.numpy(), [[1, 2, 11, 22, 0.9, 2], [5, 5, 30, 15, 0.5, 0]])
    assert repr(one) == "<Result of array, 40x30: bird 0.90, kite 0.50>"
    assert one.json()[0] == {"box": [1.0, 2.0, 11.0, 22.0], "score": 0.9, "label": 2, "class": "bird"}


def test_coco_entries() -> None:
    first = result().coco(image_id=7, category_ids=[10, 20, 30])[0]
    assert first == {
        "image_id": 7,
        "category_id": 30,
        "bbox": [1, 2, 10, 20],
        "score": pytest.approx(0.9),
    }
    assert [row["category_id"] for row in result().coco()] == [2, 0]
    with pytest.raises(ValueError, match="each of the 3 classes, got 1"):
        result().coco(category_ids=[1])


@pytest.mark.parametrize("count", [0, 2])
def test_pandas(count: int) -> None:
    pandas = pytest.importorskip("pandas")
    full = result()
    one = result(boxes=full.boxes[:count], scores=full.scores[:count], labels=full.labels[:count])
    table = one.pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table) == ["x1", "y1", "x2", "y2", "score", "label", "name"]
    assert table["name"].tolist() == ["bird", "kite"][:count]
    assert table["x2"].tolist() == [11, 30][:count]


@dataclass
class _Detections:
    """The arguments that supervision's Detections takes."""

    xyxy: NDArray[np.float32]
    confidence: NDArray[np.float32]
    class_id: NDArray[np.int64]
    data: dict[str, NDArray[np.str_]]


@pytest.mark.parametrize("real", [False, True])
def test_supervision(real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if real:
        pytest.importorskip("supervision", reason="supervision is not installed (it brings another OpenCV)")
    else:
        monkeypatch.setitem(sys.modules, "supervision", types.SimpleNamespace(Detections=_Detections))
    found = result().supervision()
    assert found.xyxy.tolist() == [[1, 2, 11, 22], [5, 5, 30, 15]]
    assert found.class_id.tolist() == [2, 0]
    assert found.confidence.tolist() == pytest.approx([0.9, 0.5])
    assert found.data["class_name"].tolist() == ["bird", "kite"]


@pytest.mark.parametrize("package", ["pandas", "supervision"])
def test_what_is_missing_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"this needs the package {package}: pip install {package}"):
        getattr(result(), package)()


def test_pictures_of_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = result()
    saved = load_image(one.save(tmp_path / "deep/er.png"))
    np.testing.assert_array_equal(saved, one.draw())
    assert (saved != one.image).any()
    with pytest.raises(ValueError, match=r"er\.xyz"):
        one.save(tmp_path / "er.xyz")
    shown: list[Image.Image] = []
    monkeypatch.setattr(ImageShow, "show", lambda image: bool(shown.append(image)) or len(shown) == 1)
    one.show()
    np.testing.assert_array_equal(np.asarray(shown[0]), saved)
    with pytest.raises(OSError, match="no viewer"):
        one.show()


def test_sources_of_every_kind_find_the_same(weights: Path, pictures: list[Path]) -> None:
    model = yolo.load(weights, device="cpu")
    assert (model.classes, model.size) == (list(CLASSES), (96, 96))
    pixels = load_image(pictures[0])
    sources: list[Any] = [pictures[0], str(pictures[0]), pixels, Image.fromarray(pixels)]
    results = model.predict(sources, score_threshold=0.0005, max_detections=7)
    assert {one.source for one in results} == {str(pictures[0]), "array", "Image"}
    assert len(results[0]) == 7
    for other in results[1:]:
        np.testing.assert_array_equal(other.numpy(), results[0].numpy())
        np.testing.assert_array_equal(other.image, pixels)
    assert len(model(pictures[0].parent)) == 3
    some = model.predict(pixels, score_threshold=0.0005, classes=["boat"])[0]
    assert set(some.names) <= {"boat"}


def test_an_exported_file_finds_the_same(weights: Path, pictures: list[Path], tmp_path: Path) -> None:
    model = yolo.load(weights, device="cpu")
    wanted = Wanted(batch=None, size=(96, 96))
    export(load_model(weights), tmp_path / "x.onnx", wanted, images_of(None, 2))
    exported = yolo.load(tmp_path / "x.onnx")
    options: dict[str, Any] = {"score_threshold": 0.0005, "max_detections": 5}
    for a, b in zip(model(pictures, **options), exported(pictures, **options), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-2)


def test_unreadable_pictures(weights: Path, pictures: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"not a picture")
    model = yolo.load(weights, device="cpu")
    with pytest.raises(ValueError, match=r"bad\.jpg"):
        model.predict([pictures[0], bad])
    assert len(model.predict([pictures[0], bad], skip_unreadable=True)) == 1


@pytest.mark.parametrize("source", [[], "nowhere.jpg"])
def test_nothing_to_look_at(weights: Path, source: Any) -> None:
    with pytest.raises(ValueError, match=r"names nothing|no such file"):
        yolo.load(weights, device="cpu").predict(source)


def test_a_source_of_another_kind(weights: Path) -> None:
    with pytest.raises(TypeError, match="got dict"):
        yolo.load(weights, device="cpu").predict([{}])  # type: ignore[list-item]


def test_classes_by_name_and_label() -> None:
    assert chosen_labels(None, CLASSES) is None
    labels = chosen_labels(["bird", 1], CLASSES)
    assert labels is not None
    assert labels.tolist() == [2, 1]
    for wrong in ("bear", 3, -1):
        with pytest.raises(ValueError, match=r"has no class .*kite, boat, bird"):
            chosen_labels([wrong], CLASSES)


def test_real_weights_on_a_real_picture() -> None:
    """The published yolov3-tiny finds the dog of Darknet's sample picture."""
    model = yolo.load(next(shared("weights").rglob("yolov3-tiny.weights")), device="cpu")
    dog = model.predict(next(shared("darknet").rglob("dog.jpg")))[0]
    assert "dog" in dog.names


def test_darknets_pixels_where_the_model_wants_them(tmp_path: Path) -> None:
    """A JPEG file is decoded as the model's preparation says; a picture in memory stays what it is."""
    detector = models.yolov2_tiny(num_classes=3, width=0.0625)
    save_model(
        Model(detector, list(CLASSES), Preprocess((96, 96), interpolation="darknet")), tmp_path / "d.ckpt"
    )
    path = tmp_path / "noise.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)).save(path)
    model = yolo.load(tmp_path / "d.ckpt", device="cpu")
    from_file, from_array = model.predict([path, load_image(path, "stb")], score_threshold=0.001)
    assert np.array_equal(from_file.image, load_image(path, "stb"))
    assert not np.array_equal(from_file.image, load_image(path))
    assert len(from_file.scores) > 0
    assert np.array_equal(from_file.scores, from_array.scores)
