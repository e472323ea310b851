"""Sources of every kind, order and names, what is written, and memory that does not grow."""

import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.metrics.sets import found, truth
from yolo.checkpoint import Model
from yolo.data import Annotated, Preprocess, load_image
from yolo.evaluate import evaluate
from yolo.models.detector import Detector
from yolo.ops.heads import HeadSpec
from yolo.predict import Predictor, Shot, shots
from yolo.report import write_predictions
from yolo.types import Found, Record

CLASSES = ["dark", "bright"]


class _Eye(nn.Module):
    """Logits of one 32-pixel anchor per 32-pixel cell: sure where the cell is bright, class by colour."""

    def forward(self, images: Tensor) -> list[Tensor]:
        cells = nn.functional.avg_pool2d(images, 32)
        bright = cells.mean(1, keepdim=True)
        zero = torch.zeros_like(bright)
        return [
            torch.cat(
                [
                    zero,
                    zero,
                    zero,
                    zero,
                    20 * bright - 10,
                    20 * (cells[:, 2:] - 0.5),
                    20 * (cells[:, :1] - 0.5),
                ],
                1,
            )
        ]


@pytest.fixture
def model() -> Model:
    spec = HeadSpec("yolo", 2, 32.0, ((32.0, 32.0),), (0,))
    detector = Detector(nn.Identity(), _Eye(), [spec], "v3")
    return Model(detector, CLASSES, Preprocess(size=(128, 128)))


def square(
    x: int, y: int, size: tuple[int, int] = (128, 128), colour: tuple[int, int, int] = (255, 0, 0)
) -> NDArray[np.uint8]:
    """A picture with one coloured 32-pixel square at cell x, y."""
    image = np.zeros((*size, 3), np.uint8)
    image[32 * y : 32 * y + 32, 32 * x : 32 * x + 32] = np.maximum(colour, 200)
    return image


def save(path: Path, image: NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, image[:, :, ::-1])[1].tobytes())
    return path


def names(source: Any, **options: Any) -> list[str]:
    return [shot.name.as_posix() for shot in shots(source, **options)]


def test_arrays_in_detections_out(model: Model) -> None:
    predictor = Predictor(model, batch_size=2, device="cpu")
    results = predictor([square(0, 0), square(2, 1), square(3, 3)])
    assert [one.boxes.round().tolist() for one in results] == [
        [[0, 0, 32, 32]],
        [[64, 32, 96, 64]],
        [[96, 96, 128, 128]],
    ]


def test_batches_change_nothing(model: Model) -> None:
    images = [square(i % 4, i // 4) for i in range(7)]
    one, many = (Predictor(model, batch_size=size, device="cpu")(images) for size in (1, 5))
    for a, b in zip(one, many, strict=True):
        np.testing.assert_array_equal(a.boxes, b.boxes)
        np.testing.assert_array_equal(a.scores, b.scores)


def test_detections_are_in_the_pixels_of_the_picture(model: Model) -> None:
    """256 x 128 pixels on a 128 canvas: scale 1/2 and 32 pixels of padding above."""
    image = np.zeros((128, 256, 3), np.uint8)
    image[0:64, 64:128] = 255
    boxes = Predictor(model, device="cpu")([image])[0].boxes
    assert boxes.round().tolist() == [[64, 0, 128, 64]]


@pytest.mark.parametrize(
    "image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))]
)
def test_other_arrays_are_refused(model: Model, image: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match=r"a picture must be \[H, W, 3\] uint8 RGB, got \[4, 4"):
        Predictor(model, device="cpu")([image])


def test_folder_in_order_of_names_with_subfolders(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", "sub/a.jpg", "sub/C.PNG", "notes.txt"):
        if name.endswith(".txt"):
            (tmp_path / name).write_text("x")
        else:
            save(tmp_path / name.lower(), square(0, 0)).rename(tmp_path / name)
    assert names(tmp_path) == ["a.jpg", "b.png", "sub/C.PNG", "sub/a.jpg"]


def test_globs(tmp_path: Path) -> None:
    for name in ("one/a.png", "two/a.png", "two/b.jpg", "c[1].png"):
        save(tmp_path / name, square(0, 0))
    assert names(f"{tmp_path}/*/*.png") == ["one/a.png", "two/a.png"]
    assert names(f"{tmp_path}/**/*.jpg") == ["two/b.jpg"]
    assert names(f"{tmp_path}/c[1].png") == ["c[1].png"]  # a file that looks like a glob


def test_equal_names_of_several_sources_do_not_meet(tmp_path: Path) -> None:
    first, second = save(tmp_path / "x/a.png", square(0, 0)), save(tmp_path / "y/a.png", square(1, 1))
    upper = save(tmp_path / "z/A.png", square(2, 2))
    assert names([str(second), str(first), str(upper)]) == ["a.png", "a_2.png", "A_3.png"]
    assert [shot.source for shot in shots([second, first])] == [str(second), str(first)]


def test_names_in_any_language(tmp_path: Path, model: Model) -> None:
    save(tmp_path / "in/子 犬.png", square(0, 0))
    done = write_predictions(
        Predictor(model, device="cpu").stream(shots(tmp_path / "in")), CLASSES, tmp_path / "out"
    )
    assert done.detections == 1
    assert load_image(tmp_path / "out/images/子 犬.png").shape == (128, 128, 3)
    assert json.loads((tmp_path / "out/predictions.json").read_text("utf-8"))[0]["name"] == "子 犬.png"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.jpg", "no such file, folder or camera"),
        ("*.xyz", "no picture or video in it"),
        ([], "names nothing"),
    ],
)
def test_nothing_to_look_at_is_said_at_once(
    source: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        shots(source)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"source={tmp_path}: no picture or video in it"):
        shots(tmp_path)


def test_unreadable_pictures_are_reported_and_skipped(tmp_path: Path, model: Model) -> None:
    save(tmp_path / "in/a.png", square(0, 0))
    (tmp_path / "in/b.jpg").write_bytes(b"not a picture")
    save(tmp_path / "in/c.png", square(2, 2))
    stream = Predictor(model, device="cpu", batch_size=2).stream(shots(tmp_path / "in"))
    done = write_predictions(stream, CLASSES, tmp_path / "out")
    assert (done.pictures, done.detections, len(done.problems)) == (2, 2, 1)
    entries = json.loads((tmp_path / "out/predictions.json").read_text())
    assert [entry["name"] for entry in entries] == ["a.png", "b.jpg", "c.png"]
    assert "b.jpg" in entries[1]["error"]
    assert [len(entry["detections"]) for entry in entries if "error" not in entry] == [1, 1]
    assert sorted(path.name for path in (tmp_path / "out/images").iterdir()) == ["a.png", "c.png"]


def make_video(path: Path, frames: int = 12) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (128, 128))
    for index in range(frames):
        writer.write(np.ascontiguousarray(square(index % 4, index // 4)[:, :, ::-1]))
    writer.release()
    return path


def test_video(tmp_path: Path, model: Model) -> None:
    clip = make_video(tmp_path / "clip.avi")
    stream = Predictor(model, device="cpu", batch_size=5).stream(shots(clip))
    done = write_predictions(stream, CLASSES, tmp_path / "out", save_txt=True)
    assert (done.pictures, done.detections) == (12, 12)
    entries = json.loads((tmp_path / "out/predictions.json").read_text())
    assert [entry["frame"] for entry in entries] == list(range(12))
    corner = [np.round(entry["detections"][0]["box"][:2]).tolist() for entry in entries]
    assert corner == [[32 * (i % 4), 32 * (i // 4)] for i in range(12)]
    film = cv2.VideoCapture(str(tmp_path / "out/images/clip.avi.mp4"))
    assert film.get(cv2.CAP_PROP_FRAME_COUNT) == 12
    assert film.get(cv2.CAP_PROP_FPS) == 10
    assert len(list((tmp_path / "out/labels/clip.avi").iterdir())) == 12


def test_a_video_stops_after_so_many_frames(tmp_path: Path) -> None:
    assert len(list(shots(make_video(tmp_path / "clip.avi"), frames=3))) == 3


def test_a_broken_video_and_a_camera_that_is_not_there_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    bad, camera = shots([tmp_path / "bad.mp4", 97])
    assert bad.image is None
    assert "bad.mp4: no frame can be read" in bad.problem
    assert "camera 97" in camera.problem


def test_a_stream_holds_one_batch(model: Model) -> None:
    """However long it is: pictures of earlier batches are gone."""
    alive: list[weakref.ref[Any]] = []
    most = 0

    def endless() -> Iterator[Shot]:
        nonlocal most
        for index in range(60):
            image = square(index % 4, 0)
            alive.append(weakref.ref(image))
            most = max(most, sum(one() is not None for one in alive))
            yield Shot("camera 0", Path("camera0.mp4"), image, frame=index)
            del image

    for _ in Predictor(model, device="cpu", batch_size=4).stream(endless()):
        pass
    assert most <= 9  # the batch at work, the one being filled, and what the loops still name


def two(folder: Path) -> Iterator[tuple[Shot, Found]]:
    """Two pictures of one stem with two detections each."""
    for name in ("a.jpg", "a.png"):
        image = load_image(save(folder / name, square(1, 1)))
        yield (
            Shot(name, Path(name), image),
            found([[32, 32, 64, 64], [0, 0, 10.4, 20.6]], [0.75, 0.5], [1, 0]),
        )


def test_yolo_txt(tmp_path: Path) -> None:
    write_predictions(two(tmp_path), CLASSES, tmp_path / "out", save_txt=True, save_images=False)
    assert (tmp_path / "out/labels/a.txt").read_text().splitlines()[
        0
    ] == "1 0.375000 0.375000 0.250000 0.250000"
    assert (tmp_path / "out/labels/a.png.txt").exists()
    write_predictions(two(tmp_path), CLASSES, tmp_path / "out", save_txt=True, save_confidence=True)
    assert (tmp_path / "out/labels/a.txt").read_text().splitlines()[1].split()[-1] == "0.500000"


def test_crops(tmp_path: Path) -> None:
    classes = ["../up", "license plate (rear)"]
    write_predictions(two(tmp_path), classes, tmp_path / "out", save_crops=True, save_images=False)
    files = sorted(
        str(path.relative_to(tmp_path / "out/crops")) for path in (tmp_path / "out/crops").rglob("*.*g")
    )
    assert files == [
        *("_up/a_1.jpg", "_up/a_1.png", "license plate (rear)/a_0.jpg", "license plate (rear)/a_0.png"),
    ]
    assert load_image(tmp_path / "out/crops/_up/a_1.png").shape == (21, 11, 3)
    assert (load_image(tmp_path / "out/crops/license plate (rear)/a_0.png") >= 200).all()


def test_predictions_are_whole_even_when_the_run_breaks(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[Shot, Found]]:
        yield from two(tmp_path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_predictions(broken(), CLASSES, tmp_path / "out")
    assert len(json.loads((tmp_path / "out/predictions.json").read_text())) == 2


def test_a_network_is_fed_darknets_pixels(model: Model, tmp_path: Path) -> None:
    """Predicting and scoring the same file: the same floats, from Darknet's own decoder."""
    path = save(tmp_path / "a.jpg", np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8))
    model = replace(model, preprocess=Preprocess((128, 128), interpolation="darknet"))
    fed: list[Tensor] = []
    model.detector.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0]))
    rounding = model.preprocess.rounding
    ((shot, _),) = Predictor(model, device="cpu").stream(shots(path, rounding=rounding))
    evaluate(model, Annotated([Record("a", str(path), truth([], []))], CLASSES), workers=0, device="cpu")
    wanted, _ = model.preprocess(load_image(path, "stb"))
    assert wanted.dtype == np.float32
    assert len(fed) == 2
    for images in fed:
        assert np.array_equal(images[0].permute(1, 2, 0).numpy(), wanted)
    assert shot.image is not None
    assert not np.array_equal(shot.image, load_image(path))
