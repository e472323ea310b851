"""Kind K of the bug reports in cases/CASES.md: anchors."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.paths import shared
from yolo.anchors import Study, describe, kmeans, measure
from yolo.data import Preprocess, read_yolo
from yolo.models import yolov3
from yolo.report.anchors import cfg_line

STRETCH = Preprocess((416, 416), "stretch")


def case(name: str) -> Path:
    return shared("cases", "inputs", name)


def study(folder: Path) -> Study:
    return Study(
        measure(read_yolo(folder / "images", ["object"]), STRETCH), yolov3(num_classes=1, width=0.05).specs
    )


def test_k01_same_seed_same_anchors() -> None:
    boxes = measure(read_yolo(case("K01") / "images", ["object"]), STRETCH)
    one, again, other = (kmeans(boxes.all, 9, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (np.diff(one.prod(axis=1)) >= 0).all()
    specs = yolov3(num_classes=1, width=0.05, anchors=one.tolist()).specs
    others = yolov3(num_classes=1, width=0.05, anchors=other.tolist()).specs
    assert describe(boxes, specs).average_iou == pytest.approx(describe(boxes, others).average_iou, abs=0.02)


def test_k02_fewer_boxes_than_clusters() -> None:
    with pytest.raises(ValueError, match="asked for 9 anchors, but there are only 4 boxes"):
        study(case("K02")).add_kmeans(9)
    with pytest.raises(ValueError, match="there are no boxes"):
        study(case("K02") / "empty")


def test_k03_all_boxes_of_one_size() -> None:
    one_size = study(case("K03"))
    assert one_size.boxes.all.wh == pytest.approx(np.full((len(one_size.boxes.all.wh), 2), 57.0), abs=0.01)
    assert "the 16 boxes have only 1 distinct size" in one_size.too_uniform
    assert one_size.add_kmeans(9) is None
    assert one_size.add_refined() is None
    assert one_size.verdict().name == "published"


def test_k05_cells_and_pixels() -> None:
    from yolo import darknet

    plan = darknet.plan(darknet.parse_cfg(darknet.read_cfg(case("K05") / "head.cfg")))
    network = darknet.build_network(plan)
    (spec,) = network.specs
    # the map of this cfg is as large as its input: 13 cells of a 32 pixel stride would make these 34.56,38.08
    pixels = np.array(spec.all_anchors) / spec.stride * 32
    np.testing.assert_allclose(pixels, [[34.56, 38.08], [109.44, 141.12]], rtol=1e-6)
    written = cfg_line(
        describe(measure(read_yolo(case("K01") / "images", ["object"]), STRETCH), network.specs)
    )
    assert written == "anchors=1.08,1.19, 3.42,4.41"


@pytest.mark.parametrize(("resize", "expected"), [("stretch", [208, 208]), ("letterbox", [208, 104])])
def test_k06_boxes_as_training_sees_them(resize: str, expected: list[float]) -> None:
    boxes = measure(read_yolo(case("K06") / "images", ["object"]), Preprocess((416, 416), resize))
    np.testing.assert_allclose(kmeans(boxes.all, 1)[0], expected, atol=0.01)
