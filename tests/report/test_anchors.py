from pathlib import Path

import cv2
import numpy as np
import pytest
from rich.console import Console

from yolo.anchors import Boxes, Study
from yolo.models import yolov2, yolov3
from yolo.report.anchors import anchors_table, cfg_line, plot_cloud, plot_curve, plot_heads, sets_table


@pytest.fixture(scope="module")
def study() -> Study:
    generator = np.random.default_rng(0)
    boxes = Boxes.of(60 * np.exp(generator.normal(0, 0.6, (500, 2))))
    result = Study(boxes, yolov3(num_classes=1, width=0.05).specs)
    result.add_kmeans(restarts=2)
    return result


def text(*tables: object) -> str:
    console = Console(width=160, record=True, file=None, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(*tables, sep="\n")
    return captured.get()


def test_tables_have_pixels_and_cells(study: Study) -> None:
    lines = text(anchors_table("published", study.fits["published"])).splitlines()
    row = next(line.split() for line in lines if "116.00" in line)
    assert row[:5] == ["32", "116.00", "90.00", "3.625", "2.812"]
    sets = text(sets_table(study.fits))
    assert "published" in sets
    assert f"{study.fits['kmeans'].average_iou:.3f}" in sets


def test_cfg_line_is_in_the_units_of_its_section(study: Study) -> None:
    assert cfg_line(study.fits["published"]).startswith("anchors=10,13, 16,30, 33,23")
    region = Study(study.boxes, yolov2(num_classes=1, width=0.05).specs)
    assert cfg_line(region.fits["published"]).startswith("anchors=0.57273,0.677385, 1.87446,2.06253")


def test_pictures_are_drawn(study: Study, tmp_path: Path) -> None:
    plot_curve({1: 0.5, 2: 0.6, 9: 0.8}, study.fits, tmp_path / "a" / "curve.png")
    plot_cloud(study.seen, study.fits, tmp_path / "cloud.png")
    plot_heads(study.fits, tmp_path / "heads.png")
    for path in (tmp_path / "a" / "curve.png", tmp_path / "cloud.png", tmp_path / "heads.png"):
        picture = cv2.imread(str(path))
        assert picture.shape[0] > 400
        assert picture.std() > 5  # not an empty page
