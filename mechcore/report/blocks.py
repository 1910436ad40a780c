"""What a section of the page is made of."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from matplotlib.figure import Figure

from mechcore.files import write_atomically
from mechcore.report.drawing import style

FIGURES_FOLDER = "figures"
PNG_DPI = 160
_CSS_PIXELS = 96  # per inch


@dataclass(frozen=True)
class Paragraph:
    """A sentence or more; ``note`` sets it apart as a warning to the reader."""

    text: str
    note: bool = False
    kind: str = field(default="paragraph", init=False)


@dataclass(frozen=True)
class Table:
    """A table as text.

    Attributes:
        caption: what it shows, with units.
        header: column names.
        rows: cells; the first of a row is its header.
        text_columns: columns of words; all others hold numbers.
        folded: whether it is closed until the reader opens it.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: frozenset[int] = frozenset({0})
    folded: bool = False
    kind: str = field(default="table", init=False)


@dataclass(frozen=True)
class Picture:
    """A figure inside the page, and where its files lie, relative to the page, if it is saved."""

    name: str
    caption: str
    alt: str
    uri: str
    width: int
    height: int
    saved: bool = True
    kind: str = field(default="picture", init=False)

    @property
    def files(self) -> list[tuple[str, str]]:
        """(format, path) of the saved figure; nothing if it is not saved."""
        if not self.saved:
            return []
        return [(end.upper(), f"{FIGURES_FOLDER}/{self.name}.{end}") for end in ("svg", "png")]


@dataclass(frozen=True)
class View:
    """An interactive drawing; the page that holds it needs circuitsvis once."""

    caption: str
    html: str
    kind: str = field(default="view", init=False)


Block: TypeAlias = Paragraph | Table | Picture | View


@dataclass(frozen=True)
class Section:
    """A part of the page; ``files`` are the CSV tables it was made from."""

    id: str
    title: str
    blocks: Sequence[Block]
    files: Sequence[str] = ()


def not_run(section_id: str, title: str, what: str) -> Section:
    """The section of a step that left no table."""
    return Section(section_id, title, [Paragraph(f"Not run: {what}.", note=True)])


class Gallery:
    """Saves figures to the run's folder and hands them out as blocks."""

    def __init__(self, run: Path) -> None:
        self.folder = run / FIGURES_FOLDER

    def add(self, figure: Figure, name: str, caption: str, alt: str) -> Picture:
        """Save ``figure`` as SVG and PNG and embed the SVG."""
        drawing = _svg(figure)
        with style():
            # The layout is settled now; working it out again would double the time.
            figure.set_layout_engine("none")
            pixels = io.BytesIO()
            figure.savefig(pixels, format="png", dpi=PNG_DPI)
        for end, content in (("svg", drawing), ("png", pixels.getvalue())):
            _write_bytes(self.folder / f"{name}.{end}", content)
        return _picture(figure, drawing, name, caption, alt)


def embedded(figure: Figure, name: str, caption: str, alt: str) -> Picture:
    """A figure that is in the page alone."""
    return replace(_picture(figure, _svg(figure), name, caption, alt), saved=False)


def _svg(figure: Figure) -> bytes:
    drawing = io.BytesIO()
    with style():
        figure.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue()


def _picture(figure: Figure, drawing: bytes, name: str, caption: str, alt: str) -> Picture:
    width, height = (round(_CSS_PIXELS * side) for side in figure.get_size_inches())
    uri = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode('ascii')}"
    return Picture(name, caption, alt, uri, width, height)


def _write_bytes(path: Path, content: bytes) -> None:
    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)
