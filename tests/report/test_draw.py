import numpy as np
import pytest
from numpy.typing import NDArray

from tests.metrics.sets import found, truth
from yolo.report.draw import color, draw, draw_truth_and_found, label_text, line_width

CLASSES = ["kite", "boat"]


def canvas(height: int = 60, width: int = 80, value: int = 90) -> NDArray[np.uint8]:
    return np.full((height, width, 3), value, np.uint8)


def test_edges_lie_exactly_on_the_pixels() -> None:
    """Box 20, 30 to 60, 50: columns 20 to 59 and rows 30 to 49 are framed, pixels outside are untouched."""
    drawn = draw(canvas(), np.array([[20, 30, 60, 50]]), np.array([0]), [""], thickness=1)
    same = (drawn == color(0)).all(2)
    assert same[49, 20:60].all()  # bottom: no label there
    assert same[40, [20, 59]].all()
    assert not same[50:, :].any()
    assert not same[:, :20].any()
    assert not same[:, 60:].any()
    assert (drawn[45, 21:59] == 90).all()  # the inside stays


@pytest.mark.parametrize("thickness", [1, 2, 3])
def test_frame_grows_inwards(thickness: int) -> None:
    drawn = draw(canvas(), np.array([[20, 30, 60, 50]]), np.array([1]), CLASSES, thickness=thickness)
    row = (drawn[45] == color(1)).all(1)
    assert np.flatnonzero(row).tolist() == [*range(20, 20 + thickness), *range(60 - thickness, 60)]


def test_fractions_round_to_the_nearest_edge() -> None:
    drawn = draw(canvas(), np.array([[19.6, 30.4, 60.49, 49.5]]), np.array([0]), [""], thickness=1)
    assert np.flatnonzero((drawn[40] == color(0)).all(1)).tolist() == [20, 59]
    assert (drawn[49, 30] == color(0)).all()


def test_the_picture_itself_is_not_drawn_on() -> None:
    image = canvas()
    draw(image, np.array([[0, 0, 80, 60]]), np.array([0]), CLASSES)
    assert (image == 90).all()


@pytest.mark.parametrize(
    "box",
    [
        [-50, -50, 200, 200],
        [70, 50, 300, 300],
        [-90, -90, -10, -10],
        [200, 200, 300, 300],
        [10, 10, 10, 10],
        [79.9, 59.9, 80, 60],
        [np.nan, 0, 10, 10],
        [0, 0, np.inf, 10],
        [-1e30, 0, 1e30, 5],
    ],
)
def test_any_box_can_be_drawn(box: list[float]) -> None:
    drawn = draw(canvas(), np.array([box], np.float32), np.array([0]), CLASSES, np.array([0.5]))
    assert drawn.shape == (60, 80, 3)
    assert drawn.dtype == np.uint8


@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (200, 3), (8, 8)])
def test_any_picture_can_be_drawn_on(shape: tuple[int, int]) -> None:
    assert draw(canvas(*shape), np.array([[0, 0, 5, 5]]), np.array([0]), CLASSES).shape == (*shape, 3)


def test_no_detections_leave_the_picture_as_it_is() -> None:
    drawn = draw(canvas(), np.zeros((0, 4)), np.zeros(0, int), CLASSES, np.zeros(0))
    assert (drawn == canvas()).all()


def test_colours_are_stable_and_apart() -> None:
    assert color(0) == color(0)
    colours = np.array([color(label) for label in range(20)], float)
    distance = np.linalg.norm(colours[:, None] - colours[None], axis=2)[~np.eye(20, dtype=bool)]
    assert distance.min() > 35
    assert len({color(label) for label in range(80)}) == 80


@pytest.mark.parametrize("value", [0, 128, 255])
@pytest.mark.parametrize("label", range(21))
def test_text_contrasts_with_its_plate(value: int, label: int) -> None:
    """Ink and plate differ by at least 4.5 to 1 (WCAG 2.1, AA), whatever lies under the plate."""
    drawn = draw(canvas(120, 200, value), np.array([[10, 60, 190, 110]]), np.array([label]), ["kite"] * 21)
    filled = (drawn[:60] == color(label)).all(2)
    rows, columns = np.flatnonzero(filled[:, 10]), np.flatnonzero(filled[59])
    plate = drawn[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].reshape(-1, 3).astype(int)
    ink = min(([0, 0, 0], [255, 255, 255]), key=lambda tone: np.abs(plate - tone).sum(1).min())
    assert np.abs(plate - np.array(ink)).sum(1).min() < 60  # strokes reach their full tone
    assert contrast(np.array(color(label)), np.array(ink)) >= 4.5


def contrast(a: NDArray[np.integer], b: NDArray[np.integer]) -> float:
    def luminance(rgb: NDArray[np.integer]) -> float:
        part = rgb / 255
        return float(
            np.where(part <= 0.03928, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
            @ [0.2126, 0.7152, 0.0722]
        )

    light, dark = sorted([luminance(a), luminance(b)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_lines_grow_with_the_picture() -> None:
    assert line_width(100, 100) == 1
    assert line_width(1080, 1920) > line_width(480, 640) >= 2


def test_label_text() -> None:
    assert label_text(["traffic light"], 0, 0.876) == "traffic light 0.88"
    assert label_text(["Würfel"], 0, None) == "Wurfel"
    assert label_text(["犬", "子"], 1, None) == "class 1"


def test_truth_and_found_stand_side_by_side() -> None:
    drawn = draw_truth_and_found(
        canvas(100, 120), truth([[10, 40, 50, 90]]), found([[20, 45, 70, 80]], [0.9]), CLASSES
    )
    strip = drawn.shape[0] - 100
    right = drawn.shape[1] - 120
    assert right >= 120
    left_column = (drawn[strip + 60 :, 10] == color(0)).all(1)
    assert left_column[:30].all()
    assert (drawn[strip + 70, right + 20] == color(0)).all()
    assert not (drawn[strip + 70, 20] == color(0)).all()
