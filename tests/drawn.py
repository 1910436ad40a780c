"""Figures as tests read them, and reports without any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from mechcore.report.blocks import Drawing, Gallery, Picture


def leave_out_figures(monkeypatch: pytest.MonkeyPatch, figures: Mapping[ModuleType, str]) -> None:
    """Draw nothing, which takes most of the time of a page.

    Args:
        monkeypatch: undoes it.
        figures: modules of sections, and the functions for figures that they import.
    """

    def add(_: Gallery, drawing: Drawing) -> Picture:
        named = (drawing.name, drawing.caption, drawing.alt)
        uri = f"data:image/svg+xml;base64,{drawing.name}"
        return Picture(*named, uri, 1, 1, ("svg",), drawing.fold)

    monkeypatch.setattr(Gallery, "add", add)
    for module, names in figures.items():
        for name in names.split():
            monkeypatch.setattr(module, name, lambda *_: None)


def visible_texts(figure: Figure) -> Iterator[Text]:
    """Texts on the paper; ticks outside the limits of their axis are never drawn."""
    unseen = []
    for ax in figure.axes:
        for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            low, high = sorted(limits)
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            outside = [tick for tick in ticks if not low <= tick.get_loc() <= high]
            unseen += [label for tick in outside for label in (tick.label1, tick.label2)]
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        shown = text.axes is None or text.axes.get_visible()
        if text.get_text() and text.get_visible() and shown and text not in unseen:
            yield text


def check_paper(figure: Figure) -> None:
    """No text leaves the paper, and the paper fits the page."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    paper = figure.bbox
    for text in visible_texts(figure):
        box = text.get_window_extent(canvas.get_renderer())
        inside = box.x0 >= paper.x0 - 1 and box.x1 <= paper.x1 + 1
        assert inside, text.get_text()
        assert box.y0 >= paper.y0 - 1, text.get_text()
        assert box.y1 <= paper.y1 + 1, text.get_text()
    assert figure.get_size_inches()[0] <= 12.5


def panel(figure: Figure, title: str) -> Axes:
    """The one panel of that title."""
    (ax,) = [ax for ax in figure.axes if ax.get_title() == title]
    return ax
