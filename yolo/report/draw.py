"""Boxes and labels on pictures: exact edges, stable colours, text that can be read on any background."""

import colorsys
import unicodedata
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from yolo.types import Found, Truth

Image = NDArray[np.uint8]  # [H, W, 3], RGB
Color = tuple[int, int, int]
Rect = tuple[int, int, int, int]  # x1, y1, x2, y2, exclusive

FONT = cv2.FONT_HERSHEY_SIMPLEX
GOLDEN = 0.6180339887498949  # the fraction of a turn that keeps any number of hues apart
SMALLEST_TEXT = 9  # pixels of a capital letter


def color(label: int) -> Color:
    """The RGB colour of a class: the same in every picture and run, neighbours far apart in hue."""
    saturation, value = ((0.85, 1.0), (0.65, 0.85), (1.0, 0.75))[label // 7 % 3]
    red, green, blue = colorsys.hsv_to_rgb((0.02 + label * GOLDEN) % 1.0, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def line_width(height: int, width: int) -> int:
    """Pixels of a box's frame in a picture of that size."""
    return max(1, round((height * width) ** 0.5 / 300))


def draw(
    image: Image,
    boxes: NDArray[np.floating],
    labels: NDArray[np.integer],
    classes: Sequence[str],
    scores: NDArray[np.floating] | None = None,
    thickness: int | None = None,
) -> Image:
    """A copy of a picture with boxes on it.

    Args:
        image: ``[H, W, 3]`` uint8, RGB.
        boxes: ``[K, 4]`` x1, y1, x2, y2 in pixels, exclusive right and bottom edge; what lies outside is cut.
        labels: ``[K]`` indices into ``classes``.
        classes: Names.
        scores: ``[K]``, written behind the names; the best are drawn on top.
        thickness: Pixels of the frame, which lies inside the box; None follows the size of the picture.
    """
    canvas = np.array(image, np.uint8, order="C")
    thickness = thickness or line_width(*canvas.shape[:2])
    order = range(len(boxes)) if scores is None else np.argsort(scores, kind="stable").tolist()
    rects = {index: _pixels(boxes[index], canvas) for index in order}
    for index, rect in rects.items():
        if rect is not None:
            _frame(canvas, rect, color(int(labels[index])), thickness)
    taken: list[Rect] = []
    for index in reversed(list(order)):  # the best label gets the best place
        rect = rects[index]
        if rect is not None:
            text = label_text(classes, int(labels[index]), None if scores is None else float(scores[index]))
            _label(canvas, rect, text, color(int(labels[index])), thickness, taken)
    return canvas


def enlarged(image: Image, least: int = 320) -> tuple[Image, int]:
    """A small picture enlarged by a whole factor, so that labels leave room for what is on it; and the factor."""
    height, width = image.shape[:2]
    factor = -(-least // max(1, min(height, width)))
    if factor <= 1:
        return image, 1
    size = (width * factor, height * factor)
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_LINEAR), np.uint8), factor


def draw_truth_and_found(image: Image, truth: Truth, found: Found, classes: Sequence[str]) -> Image:
    """A picture twice, side by side: its annotated objects on the left, the detections on the right."""
    left = draw(image, truth.boxes, truth.labels, classes)
    right = draw(image, found.boxes, found.labels, classes, found.scores)
    sides = [_titled(left, f"truth: {len(truth.labels)}"), _titled(right, f"found: {len(found.labels)}")]
    gap = np.full((sides[0].shape[0], 2 * line_width(*image.shape[:2]), 3), 255, np.uint8)
    return np.concatenate([sides[0], gap, sides[1]], 1)


def label_text(classes: Sequence[str], label: int, score: float | None) -> str:
    """What stands at a box; OpenCV's fonts are ASCII: accents go, other scripts become a number."""
    name = classes[label]
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().strip()
    plain = plain if plain or not name else f"class {label}"
    return plain if score is None else f"{plain} {score:.2f}"


def _pixels(box: NDArray[np.floating], canvas: Image) -> Rect | None:
    """The pixels that a box covers, at least one each way; None if it lies outside or is not finite."""
    if not np.isfinite(box).all():
        return None
    height, width = canvas.shape[:2]
    x1, y1, x2, y2 = (int(value) for value in np.floor(np.asarray(box, np.float64) + 0.5).clip(-1e9, 1e9))
    x2, y2 = max(x2, x1 + 1), max(y2, y1 + 1)
    if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
        return None
    return x1, y1, x2, y2


def _frame(canvas: Image, rect: Rect, fill: Color, thickness: int) -> None:
    """Four bars inside the box: OpenCV's own rectangle straddles the edge."""
    height, width = canvas.shape[:2]
    x1, y1, x2, y2 = rect
    bars = [
        (x1, y1, x2, min(y1 + thickness, y2)),
        (x1, max(y2 - thickness, y1), x2, y2),
        (x1, y1, min(x1 + thickness, x2), y2),
        (max(x2 - thickness, x1), y1, x2, y2),
    ]
    for left, top, right, bottom in bars:
        canvas[max(top, 0) : max(min(bottom, height), 0), max(left, 0) : max(min(right, width), 0)] = fill


def _text_size(canvas: Image, text: str) -> tuple[float, int, int, int, int]:
    """Scale, stroke, width, height and descent of a text in a picture, pixels."""
    capital = max(SMALLEST_TEXT, round((canvas.shape[0] * canvas.shape[1]) ** 0.5 / 50))
    stroke = max(1, round(capital / 12))
    scale = cv2.getFontScaleFromHeight(FONT, capital, stroke)
    (width, height), descent = cv2.getTextSize(text, FONT, scale, stroke)
    return scale, stroke, width, height, descent


def _label(canvas: Image, rect: Rect, text: str, fill: Color, thickness: int, taken: list[Rect]) -> None:
    """Write on a plate of the class colour: above the box, inside or below, where no label stands yet."""
    rows, cols = canvas.shape[:2]
    scale, stroke, text_width, text_height, descent = _text_size(canvas, text)
    margin = max(2, stroke + 1)
    width, height = text_width + 2 * margin, text_height + descent + 2 * margin
    x1 = min(max(rect[0], 0), max(cols - width, 0))
    tops = [rect[1] - height, max(rect[1], 0) + thickness, rect[3]]
    places = [(x1, top, x1 + width, top + height) for top in tops if top >= 0 and top + height <= rows]
    free = [place for place in places if not any(_overlap(place, other) for other in taken)]
    place = (free or places or [(x1, max(0, min(tops[1], rows - height)), x1 + width, rows)])[0]
    taken.append(place)
    canvas[place[1] : place[1] + height, place[0] : place[2]] = fill
    at = (place[0] + margin, place[1] + margin + text_height)
    cv2.putText(canvas, text, at, FONT, scale, _ink(fill), stroke, cv2.LINE_AA)


def _overlap(a: Rect, b: Rect) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _ink(fill: Color) -> Color:
    """Black or white, whichever contrasts more (WCAG 2.1, relative luminance)."""
    linear = [
        (value / 255 / 12.92) if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in fill
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def _titled(image: Image, text: str) -> Image:
    """A picture with a white strip above it and a text in that."""
    scale, stroke, _, height, descent = _text_size(image, text)
    strip = np.full((height + descent + 8, image.shape[1], 3), 255, np.uint8)
    cv2.putText(strip, text, (4, height + 4), FONT, scale, (0, 0, 0), stroke, cv2.LINE_AA)
    return np.concatenate([strip, image])
