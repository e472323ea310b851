"""The same seed gives the same batches, whoever loads them; another seed or epoch gives others."""

import multiprocessing
import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.data.making import picture
from yolo.data import (
    Augment,
    DetectionDataset,
    Draw,
    ImageStore,
    Item,
    Preprocess,
    collate,
    coloured,
    load_image,
    to_bytes,
    to_float,
    undo,
)
from yolo.data.augment import largest_zoom
from yolo.data.store import available_memory, load_working
from yolo.ops import vary_colour
from yolo.types import Batch, Record, Truth

STRONG = Augment(
    flip=0.5, hue=0.1, saturation=0.5, exposure=0.5, scale=0.5, translate=0.1, mosaic=0.7, mixup=0.3
)


def record(
    path: Path, boxes: list[list[float]], crowd: list[bool] | None = None, difficult: bool = False
) -> Record:
    count = len(boxes)
    truth = Truth(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.arange(count, dtype=np.int64),
        np.array(crowd or [False] * count, np.bool_),
        np.full(count, difficult),
        np.ones(count, np.float32),
    )
    return Record(path.name, str(path), truth)


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    """Seven pictures of different shapes, two larger than the canvas, one without objects."""
    found = []
    for number in range(7):
        width, height = 40 + 17 * number, 90 - 9 * number
        path = picture(tmp_path / f"{number}.png", width, height, seed=number)
        boxes = [[1.0, 2.0, 20.0 + number, 30.0], [5.0, 5.0, 35.0, 33.0]][: number % 3]
        found.append(record(path, boxes))
    return found


def batches(
    dataset: DetectionDataset, workers: int, epoch: int = 0, *, mosaic: bool = True, **options: object
) -> list[Batch]:
    draws = [Draw(index, epoch, mosaic) for index in range(len(dataset))]
    return list(DataLoader(dataset, 3, sampler=draws, num_workers=workers, collate_fn=collate, **options))  # type: ignore[arg-type]


def same(one: list[Batch], other: list[Batch]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(
        torch.equal(a.images, b.images) and torch.equal(a.targets.boxes, b.targets.boxes) for a, b in pairs
    )


def test_plain_picture(records: list[Record]) -> None:
    """What evaluation sees is Preprocess, and the way back is in the batch."""
    preprocess = Preprocess((64, 96))
    dataset = DetectionDataset(records, preprocess)
    for index, wanted in enumerate(records):
        item = dataset[index]
        canvas, placement = preprocess(load_image(wanted.path))
        assert item.image.shape == (3, 64, 96)
        assert item.image.dtype == torch.uint8
        assert np.array_equal(item.image.permute(1, 2, 0), canvas)
        assert item.meta is not None
        assert item.meta.record is wanted
        assert item.meta.placement == placement
        back = undo(item.boxes, placement)
        torch.testing.assert_close(back, torch.tensor(wanted.truth.boxes), atol=1e-3, rtol=0)


def test_collate(records: list[Record]) -> None:
    """Flat objects with the index of their picture; a picture without objects is still there."""
    dataset = DetectionDataset(records, Preprocess((64, 64)))
    batch = collate([dataset[index] for index in (2, 0, 1)])
    assert batch.images.shape == (3, 3, 64, 64)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.targets.image.tolist() == [0, 0, 2]
    assert batch.targets.labels.tolist() == [0, 1, 0]
    assert [meta.record.image_id for meta in batch.meta] == ["2.png", "0.png", "1.png"]
    for position, index in enumerate((2, 0, 1)):
        assert torch.equal(batch.images[position], dataset[index].image)
    empty = collate([dataset[0], dataset[3]])
    assert empty.targets.boxes.shape == (0, 4)
    assert empty.targets.labels.dtype == empty.targets.image.dtype == torch.int64
    with pytest.raises(ValueError, match="at least one picture"):
        collate([])


def test_to_float_and_back() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)
    assert to_float(images).flatten().tolist() == pytest.approx([0, 0.2, 1])
    assert torch.equal(to_bytes(to_float(images)), images)
    assert to_bytes(torch.tensor([0.4, 0.6]) / 255).tolist() == [0, 1]


def test_red_is_the_first_channel(tmp_path: Path) -> None:
    """From file to tensor (xiaochus/YOLOv3#22)."""
    from PIL import Image

    Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "red.png")
    item = DetectionDataset([record(tmp_path / "red.png", [])], Preprocess((8, 8)))[0]
    assert to_float(item.image).mean(dim=(1, 2)).tolist() == [1, 0, 0]


def test_workers_do_not_matter_and_seeds_do(records: list[Record]) -> None:
    """Workers seeded by a constant, or by their number, are the classic mistake (ultralytics PR#25815)."""
    dataset = DetectionDataset(records, Preprocess((64, 64)), STRONG, seed=3)
    first = batches(dataset, 0)
    assert same(first, batches(dataset, 0))
    assert same(first, batches(dataset, 2))
    assert not same(first, batches(DetectionDataset(records, Preprocess((64, 64)), STRONG, seed=4), 0))
    second = batches(dataset, 0, epoch=1)
    assert not same(first, second)
    assert same(second, batches(dataset, 2, epoch=1))
    assert not same(second, batches(dataset, 0, epoch=1, mosaic=False))
    items = [dataset[0].image for _ in range(2)]
    assert torch.equal(*items)
    assert not torch.equal(dataset[3].image, dataset[4].image)


@pytest.mark.timeout(60)
def test_forked_workers_do_not_wait_for_threads_of_opencv(records: list[Record]) -> None:
    """OpenCV with threads of its own in the parent, then forked workers, which would wait for ever."""
    cv2.setNumThreads(4)
    cv2.resize(np.zeros((3000, 3000, 3), np.uint8), (2000, 2000))  # large enough to start its threads
    preprocess = Preprocess((640, 640))
    dataset = DetectionDataset(records, preprocess, STRONG, store=ImageStore(records, preprocess))
    loaders = [
        DataLoader(dataset, 3, num_workers=2, collate_fn=collate, persistent_workers=True) for _ in range(2)
    ]
    for loader in loaders:
        assert len(list(loader)) == 3
    assert cv2.getNumThreads() == 1


def test_without_mosaic_a_picture_is_alone(records: list[Record]) -> None:
    """mosaic=False leaves at most the picture's own objects."""
    dataset = DetectionDataset(records, Preprocess((64, 64)), Augment(mosaic=1.0, mixup=1.0))
    assert max(len(dataset[0].labels) for _ in range(1)) > 0  # picture 0 has none: they came with the mosaic
    alone = Draw(0, mosaic=False)
    assert len(dataset[alone].labels) == 0
    plain = DetectionDataset(records, Preprocess((64, 64)))
    assert torch.equal(dataset[Draw(5, mosaic=False)].image, plain[5].image)


def test_crowds_and_difficult_objects_are_not_trained_on(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png")
    crowd = record(path, [[1, 1, 9, 9], [20, 20, 50, 50]], [False, True])
    assert DetectionDataset([crowd], Preprocess((80, 100)))[0].labels.tolist() == [0]
    difficult = record(path, [[1, 1, 9, 9]], difficult=True)
    assert len(DetectionDataset([difficult], Preprocess((80, 100)))[0].labels) == 0
    assert len(DetectionDataset([difficult], Preprocess((80, 100)), use_difficult=True)[0].labels) == 1


def test_a_file_that_goes_bad_does_not_end_the_run(
    records: list[Record], caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on with the next picture and says so; evaluation must count every picture and stops."""
    Path(records[2].path).write_bytes(b"gone bad")
    dataset = DetectionDataset(records, Preprocess((64, 64)), Augment(flip=1.0))
    assert torch.equal(
        dataset[2].image, DetectionDataset(records[3:4], Preprocess((64, 64)), Augment(flip=1.0))[0].image
    )
    assert "2.png" in caplog.text
    with pytest.raises(ValueError, match=r"2\.png: not a picture"):
        DetectionDataset(records, Preprocess((64, 64)))[2]


@pytest.mark.parametrize("where", ["ram", "disk"])
@pytest.mark.parametrize("resize", ["letterbox", "stretch"])
def test_kept_pictures_change_nothing(records: list[Record], tmp_path: Path, where: str, resize: str) -> None:
    """The store gives the very pixels that decoding gives, small and large pictures alike."""
    preprocess = Preprocess((48, 64), resize)  # type: ignore[arg-type]
    for augment in (None, STRONG):
        zoom = largest_zoom(augment)
        store = ImageStore(records, preprocess, where, tmp_path / "kept", zoom=zoom)  # type: ignore[arg-type]
        kept = DetectionDataset(records, preprocess, augment, store=store)
        assert same(batches(kept, 0), batches(DetectionDataset(records, preprocess, augment), 0))
        assert same(batches(kept, 0), batches(kept, 2))
        image, size = store.load(6)
        assert size == load_image(records[6].path).shape[:2]
        assert np.array_equal(image, load_working(records[6].path, preprocess, zoom)[0])
        with pytest.raises(ValueError, match="read-only"):
            image[0] = 0


def test_what_will_be_enlarged_is_kept_as_large(tmp_path: Path) -> None:
    """400 x 200 pixels are 64 x 32 on the canvas: zooming in by up to half may show 96 x 48, but no invented pixel."""
    large, small = picture(tmp_path / "a.png", 400, 200), picture(tmp_path / "b.png", 50, 30)
    files = [record(path, [[0.0, 0.0, 25.0, 30.0]]) for path in (large, small)]
    canvas = Preprocess((64, 64))
    for augment, shape in ((None, (32, 64)), (Augment(flip=0.5), (32, 64)), (Augment(scale=0.5), (48, 96))):
        dataset = DetectionDataset(files, canvas, augment)
        assert dataset.sample(0).image.shape[:2] == shape
        box = [0, 0, 25 * shape[1] / 400, 30 * shape[0] / 200]
        assert dataset.sample(0).boxes[0].tolist() == pytest.approx(box)
        assert dataset.sample(1).image.shape[:2] == (30, 50)
    assert largest_zoom(Augment(scale=0.5, aspect=0.44)) == pytest.approx(1.5 * 1.2)


def test_darknets_pixels(tmp_path: Path) -> None:
    """What is scored is float32 from Darknet's decoder, kept pictures or not; what is augmented is bytes."""
    records = []
    for number in range(3):
        path = picture(tmp_path / f"{number}.jpg", 90, 70, seed=number)
        records.append(record(path, [[1.0, 2.0, 20.0, 30.0]]))
    preprocess = Preprocess((64, 64), interpolation="darknet")
    store = ImageStore(records, preprocess, "ram")
    fresh, kept = (DetectionDataset(records, preprocess, store=one) for one in (None, store))
    (batch,) = batches(fresh, 0)
    for index, one in enumerate(records):
        canvas, placement = preprocess(load_image(one.path, "stb"))
        item = fresh[index]
        image = item.image.permute(1, 2, 0).numpy()
        assert image.dtype == np.float32
        assert np.array_equal(image, canvas)
        assert not np.array_equal(image, preprocess(load_image(one.path))[0])
        assert torch.equal(kept[index].image, item.image)
        assert torch.equal(to_float(batch.images)[index], item.image)
        assert item.meta is not None
        assert item.meta.placement == placement
    varied = DetectionDataset(records, preprocess, STRONG, store=store)
    assert varied[0].image.dtype == torch.uint8


def _checksum(dataset: DetectionDataset) -> int:
    return sum(int(dataset[index].image.sum()) for index in range(len(dataset)))


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_store_reaches_started_processes(records: list[Record], tmp_path: Path, where: str) -> None:
    """Workers that are spawned, not forked, map the same pixels."""
    preprocess = Preprocess((48, 64))
    store = ImageStore(records, preprocess, where, tmp_path)  # type: ignore[arg-type]
    dataset = DetectionDataset(records, preprocess, store=store)
    assert len(pickle.dumps(store)) < 20_000  # the pixels do not travel
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_checksum, (dataset,)) == _checksum(dataset)


def test_store_on_disk_is_found_again_and_notices_changes(records: list[Record], tmp_path: Path) -> None:
    preprocess, folder = Preprocess((48, 64)), tmp_path / "kept"
    ImageStore(records, preprocess, "disk", folder)
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert [path.suffix for path in files] == [".pixels"]
    ImageStore(records, preprocess, "disk", folder)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == files
    picture(Path(records[0].path), 40, 90, seed=99)
    changed = ImageStore(records, preprocess, "disk", folder).load(0)[0]
    assert np.array_equal(changed, load_working(records[0].path, preprocess)[0])


def test_store_names_what_does_not_fit(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_memory() > 1_000_000
    monkeypatch.setattr("yolo.data.store.available_memory", lambda: 1000)
    with pytest.raises(MemoryError, match=r"data.cache=ram needs 0.0 GB for 7 pictures"):
        ImageStore(records, Preprocess((48, 64)))
    monkeypatch.undo()
    Path(records[2].path).write_bytes(b"gone bad")
    with pytest.raises(ValueError, match=r"2\.png: not a picture"):
        ImageStore(records, Preprocess((48, 64)))


def test_items_are_tensors_of_their_own(records: list[Record]) -> None:
    """Writing into an item does not reach the kept pictures."""
    preprocess = Preprocess((64, 64))
    store = ImageStore(records, preprocess)
    dataset = DetectionDataset(records, preprocess, store=store)
    item: Item = dataset[6]
    before = item.image.clone()
    item.image.zero_()
    assert torch.equal(dataset[6].image, before)


def test_colours_are_drawn_for_every_picture_and_applied_to_the_batch(records: list[Record]) -> None:
    dataset = DetectionDataset(records, Preprocess((64, 64)), Augment(hue=0.1, saturation=0.7, exposure=0.4))
    items = [dataset[index] for index in (2, 0, 1)]
    batch = collate(items)
    assert batch.colours is not None
    assert torch.equal(batch.colours, torch.tensor([item.colour for item in items]))
    assert len(batch.colours.unique(dim=0)) == 3
    done = coloured(batch)
    assert done.colours is None
    assert torch.equal(done.images, vary_colour(batch.images, batch.colours))
    assert not torch.equal(done.images, batch.images)
    assert coloured(done) is done
    assert dataset[Draw(0, 1)].colour != items[1].colour
