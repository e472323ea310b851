"""Small pictures of findings, with the place that they are about."""

import base64

import cv2
import numpy as np
from numpy.typing import NDArray

from yolo.data import load_image
from yolo.doctor.findings import Box, Finding
from yolo.report import draw

SIDE = 240  # pixels of the longer side
CONTEXT = 5.0  # a small box is shown in a window of so many times its size
SEEN = 6.0  # pixels of a thumbnail that a box is drawn with at least
JPEG_QUALITY = 80

Image = NDArray[np.uint8]  # [H, W, 3], RGB


def thumbnails(finding: Finding) -> list[str]:
    """The pictures of a finding as ``data:`` addresses; those that cannot be decoded are left out."""
    found = []
    for path, box in ((finding.picture, finding.box), (finding.other, None)):
        if path:
            try:
                image = load_image(path)
            except (OSError, ValueError):
                continue
            found.append(address(shrink(image) if box is None else close_up(image, box, finding.code)))
    return found


def shrink(image: Image) -> Image:
    """The whole picture."""
    factor = SIDE / max(image.shape[:2])
    size = [max(1, round(side * factor)) for side in (image.shape[1], image.shape[0])]
    method = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, size, interpolation=method), np.uint8)


def close_up(image: Image, box: Box, label: str) -> Image:
    """The neighbourhood of a box with the box drawn; a place outside is shown at the nearest edge."""
    height, width = image.shape[:2]
    limits = (width, height, width, height)
    x1, y1, x2, y2 = np.clip(np.nan_to_num(np.array(box, np.float64)), 0, limits).tolist()
    longest = float(max(height, width))
    side = min(max(CONTEXT * max(abs(x2 - x1), abs(y2 - y1)), longest / 4), longest)
    left = min(max(round((x1 + x2 - side) / 2), 0), max(0, width - round(side)))
    top = min(max(round((y1 + y2 - side) / 2), 0), max(0, height - round(side)))
    part = np.ascontiguousarray(image[top : top + round(side), left : left + round(side)])
    small = shrink(part)
    factor = small.shape[1] / part.shape[1], small.shape[0] / part.shape[0]
    placed = (np.array([[x1, y1, x2, y2]]) - (left, top, left, top)) * (*factor, *factor)
    middle, half = (placed[:, :2] + placed[:, 2:]) / 2, np.abs(placed[:, 2:] - placed[:, :2]) / 2
    half = half.clip(SEEN / 2)
    placed = np.concatenate([middle - half, middle + half], axis=1)
    return draw(small, placed, np.zeros(1, np.int64), [label], thickness=2)


def address(image: Image) -> str:
    """A picture inside a page."""
    done, data = cv2.imencode(".jpg", image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert done
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode()
