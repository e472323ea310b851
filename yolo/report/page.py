"""A report as one self-contained HTML file, and its plots as PNG beside it."""

import base64
import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import cv2
import jinja2
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

log = logging.getLogger(__name__)

TEMPLATE = "page.html"
WIDEST = 1600  # pixels of a picture in the page


@dataclass(frozen=True)
class Plot:
    """A picture in the page, embedded; also a file."""

    src: str  # data URI
    alt: str
    caption: str = ""
    kind: str = "plot"


@dataclass(frozen=True)
class Table:
    """Rows under headings; numbers are set to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    kind: str = "table"


@dataclass(frozen=True)
class Text:
    """Words, or with ``literal`` a block as it stands."""

    text: str
    literal: bool = False
    kind: str = "text"


Part = Plot | Table | Text


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part]
    folded: bool = False

    @property
    def anchor(self) -> str:
        """For links within the page."""
        return self.title.lower().replace(" ", "-")


@dataclass
class Page:
    """Collects the parts of a report.

    Args:
        folder: The run folder; the page is ``report.html`` in it, its pictures lie in ``report/``.
        title: Of the page.
        about: One line under the title.
    """

    folder: Path
    title: str
    about: str = ""
    numbers: list[tuple[str, str]] = field(default_factory=list)  # large, on top: name and value
    sections: list[Section] = field(default_factory=list)

    def plot(self, name: str, figure: Figure, caption: str = "") -> Plot:
        """Write a figure as ``report/<name>.png`` and give it back for the page."""
        FigureCanvasAgg(figure)  # no window, and no global state of pyplot
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        alt = next((axes.get_title() for axes in figure.axes if axes.get_title()), name)
        return self._picture(f"{name}.png", "image/png", buffer.getvalue(), alt, caption)

    def photo(self, name: str, image: NDArray[np.uint8], caption: str = "") -> Plot:
        """The same for ``[H, W, 3]`` RGB pixels, as JPEG, no wider than a screen."""
        height, width = image.shape[:2]
        if width > WIDEST:
            size = (WIDEST, max(1, round(height * WIDEST / width)))
            image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
        done, data = cv2.imencode(".jpg", image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 88])
        if not done:
            raise ValueError(f"{name}: a picture of {width}x{height} pixels cannot be written as JPEG")
        return self._picture(f"{name}.jpg", "image/jpeg", data.tobytes(), caption or name, caption)

    def file(self, path: Path, caption: str = "") -> Plot:
        """A picture that is written already."""
        mime = "image/png" if path.suffix == ".png" else "image/jpeg"
        return Plot(_uri(mime, path.read_bytes()), caption or path.stem, caption)

    def _picture(self, name: str, mime: str, data: bytes, alt: str, caption: str) -> Plot:
        path = self.folder / "report" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return Plot(_uri(mime, data), alt, caption)

    def add(self, title: str, *parts: Part | None, folded: bool = False) -> None:
        """A section of the parts that there are; none at all makes no section."""
        present = [part for part in parts if part is not None]
        if present:
            self.sections.append(Section(title, present, folded))

    def write(self, name: str = "report.html") -> Path:
        """Write the page and say where."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_environment().get_template(TEMPLATE).render(page=self), "utf-8")
        return path


def _uri(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@contextmanager
def never_fatal(what: str) -> Iterator[None]:
    """A drawing that fails must not cost a run its results: one warning line instead."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is
        log.warning("no %s: %s: %s", what, type(error).__name__, " ".join(str(error).split()))
