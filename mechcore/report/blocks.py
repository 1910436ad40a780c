"""The building blocks of a section of the page."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote_from_bytes

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mechcore.errors import InputError
from mechcore.files import write_bytes
from mechcore.report.component_figures import Dot, Node
from mechcore.report.drawing import style
from mechcore.tables import Column, Schema
from mechcore.wording import visible

FIGURES_FOLDER = "figures"
FIGURE_FORMATS = ("png", "svg", "pdf")
AS_FIGURE = ", as a figure"
"""Ends the summary line of a folded, printable copy of an interactive drawing."""
PNG_DPI = 160
_CSS_PIXELS = 96  # per inch
SVG, CSV, JSON = "image/svg+xml", "text/csv;charset=utf-8", "application/json"
_IN_SCRIPTS = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(frozen=True)
class Paragraph:
    """One or more sentences; ``note`` marks a warning, ``lead`` the most important text."""

    text: str
    note: bool = False
    lead: bool = False


@dataclass(frozen=True)
class Table:
    """A table as text; the first cell of a row is its header; a ``folded`` one opens on request."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: frozenset[int] = frozenset({0})
    folded: bool = False


@dataclass(frozen=True)
class OverSeeds:
    """In a table of `means_over_seeds`, the range of a column; with a count if some lack it."""

    name: str


Shown: TypeAlias = str | Column | OverSeeds | tuple[str, Sequence[str]]
"""A column of a table on the page: its name, itself, or header and ready texts."""


def table_of(
    frame: pd.DataFrame,
    schema: Schema,
    caption: str,
    columns: Sequence[Shown],
    *,
    folded: bool = False,
) -> Table:
    """A table as its schema describes ``columns``, without optional ones that the rows lack."""
    header: list[str] = []
    cells: list[Sequence[str]] = []
    words: set[int] = set()
    for shown in columns:
        if isinstance(shown, tuple):
            title, texts = shown
        elif isinstance(shown, OverSeeds):
            title, texts = "over seeds", _ranges(frame, schema[shown.name])
        else:
            column = schema[shown] if isinstance(shown, str) else shown
            if column.optional and column.name not in frame:
                continue
            words |= {len(header)} if column.kind in ("text", "flag") else set()
            title, texts = column.heading, column.texts(frame)
        header.append(title)
        cells.append(texts)
    rows = [list(row) for row in zip(*cells, strict=True)]
    return Table(caption, header, rows, frozenset(words), folded)


def _ranges(frame: pd.DataFrame, column: Column) -> list[str]:
    parts = (frame[f"{column.name}_{part}"] for part in ("least", "most", "seeds"))
    return [
        column.between(least, most) + (f" ({n:.0f} of {n_seeds:.0f})" if 0 < n < n_seeds else "")
        for least, most, n, n_seeds in zip(*parts, frame["seeds"], strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure before it is placed in a page, see `Picture`; ``name`` is its file name.

    Artists whose ``gid`` is ``spot-I`` are the ``spots``, which can be hovered, selected and
    reached by keyboard; artists named ``edge-I-J`` are highlighted with either end.
    """

    figure: Figure
    name: str
    caption: str
    alt: str
    fold: str = ""
    spots: Sequence[Dot | Node] = ()


@dataclass(frozen=True)
class Picture:
    """A figure in the page, collapsed under its ``fold``; with spots, ``inline`` is its HTML."""

    name: str
    caption: str
    alt: str
    fold: str
    uri: str
    width: int
    height: int
    saved: Sequence[str] = ()
    inline: str = ""

    @property
    def svg(self) -> str:
        """Path, relative to the page, of its SVG file; empty if none was saved."""
        return f"{FIGURES_FOLDER}/{self.name}.svg" if "svg" in self.saved else ""


@dataclass(frozen=True)
class View:
    """An interactive drawing; the page that holds it needs circuitsvis once."""

    caption: str
    html: str


@dataclass(frozen=True)
class Command:
    """A line to type in a terminal."""

    text: str


@dataclass(frozen=True)
class Finding:
    """A sentence or two, the section with the details, and the question that is answered."""

    text: str
    section: str
    question: str = ""


@dataclass(frozen=True)
class Story:
    """What the run says, one answer a line; opens the page."""

    lines: Sequence[Finding]


Block: TypeAlias = Paragraph | Command | Table | Picture | View | Drawing | Story


@dataclass(frozen=True)
class Section:
    """A section of the page; ``files`` are the CSV tables it was made from."""

    id: str
    title: str
    blocks: Sequence[Block]
    files: Sequence[str] = ()


@dataclass(frozen=True)
class Tile:
    """One headline number."""

    label: str
    value: str
    note: str = ""


def missing(what: str) -> Paragraph:
    """A note that a step wrote no table."""
    return Paragraph(f"Not run: {what}.", note=True)


def not_run(section_id: str, title: str, what: str) -> Section:
    """The section of a step that wrote no table."""
    return Section(section_id, title, [missing(what)])


class Gallery:
    """Saves figures as files, in known formats or with an `InputError`, and as blocks."""

    def __init__(self, run: Path, formats: Sequence[str] = ("svg", "png")) -> None:
        for name in formats:
            if name not in FIGURE_FORMATS:
                known = ", ".join(FIGURE_FORMATS)
                raise InputError(f"figures: unknown format {name!r}; expected some of {known}")
        self.folder = run / FIGURES_FOLDER
        self.formats = tuple(dict.fromkeys(formats))

    def placed(self, section: Section) -> Section:
        """The section with its drawings saved and embedded as pictures."""
        blocks = [self.add(b) if isinstance(b, Drawing) else b for b in section.blocks]
        return replace(section, blocks=blocks)

    def add(self, drawing: Drawing) -> Picture:
        """Save a figure in every format and embed it as SVG."""
        figure, svg = drawing.figure, as_svg(drawing.figure)
        # The layout is final; computing it again would double the time.
        figure.set_layout_engine("none")
        for end in self.formats:
            content = svg if end == "svg" else _drawn(figure, end)
            write_bytes(self.folder / f"{drawing.name}.{end}", content)
        width, height = (round(_CSS_PIXELS * side) for side in figure.get_size_inches())
        named = (drawing.name, drawing.caption, drawing.alt, drawing.fold)
        inline = _inline(svg.decode("utf-8"), drawing) if drawing.spots else ""
        return Picture(*named, data_uri(svg, SVG), width, height, self.formats, inline)


def _inline(svg: str, drawing: Drawing) -> str:
    svg = re.sub(r"<metadata>.*?</metadata>| xmlns(:\w+)?=\"[^\"]*\"", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(id=\"|href=\"#|url\(#)", rf"\g<1>{drawing.name}-", svg[svg.index("<svg") :])
    for rank, spot in enumerate(drawing.spots):
        words = f'data-head="{escape(spot.name)}" aria-label="{escape(spot.words)}"'
        button = f'<g class="dot" role="button" data-rank="{rank}" {words}>'
        svg = svg.replace(f'<g id="{drawing.name}-spot-{rank}">', button)
    edge = rf'<g id="{drawing.name}-edge-(\d+)-(\d+)">'
    svg = re.sub(edge, r'<g class="edge" data-ends="\1 \2">', svg)
    return svg.replace("<svg", f'<svg role="group" aria-label="{escape(drawing.alt)}"', 1)


def as_svg(figure: Figure) -> bytes:
    """The figure as an SVG file, without the indentation."""
    return re.sub(rb"\n +", b"\n", _drawn(figure, "svg"))


def _drawn(figure: Figure, end: str) -> bytes:
    content = io.BytesIO()
    with style():
        if end == "png":
            # Figure.savefig would draw everything once more to compute the layout, now final.
            figure.set_dpi(PNG_DPI)
            FigureCanvasAgg(figure).print_png(content)
        else:
            # Without a date, the same figure gives the same bytes.
            date = {"svg": "Date", "pdf": "CreationDate"}[end]
            figure.savefig(content, format=end, metadata={date: None})
    return content.getvalue()


def script_json(content: Any) -> str:
    """JSON that is safe inside a script element; raises ValueError if a number is not finite."""
    # Everything except ASCII is escaped, including line separators that would end a script line.
    return json.dumps(content, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPTS)


def data_uri(content: bytes, kind: str) -> str:
    """A data URI with the content; tables, mostly digits and commas, are shorter if escaped."""
    encoded = f";base64,{base64.b64encode(content).decode('ascii')}"
    if kind == CSV:
        encoded = min(encoded, f",{quote_from_bytes(content, safe=',:()+')}", key=len)
    return f"data:{kind}{encoded}"


def download(path: Path, kind: str = CSV) -> dict[str, Any]:
    """A file to embed: its name, its size in bytes, and its content as a data URI."""
    content = path.read_bytes()
    return {"name": visible(path.name), "size": len(content), "uri": data_uri(content, kind)}
