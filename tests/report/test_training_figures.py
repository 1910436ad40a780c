"""Curves of a training draw its history, and their names do not touch."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation, Text

from mechcore.report.training_figures import spread, training_curves


def history(n_subsets: int, ends: float = 0.02) -> pd.DataFrame:
    """Two steps; out-of-domain subsets that end close together."""
    rows = []
    for step, loss in ((10, 0.7), (20, 0.5)):
        rows.append((step, "m", loss, "id", "all", step / 25))
        rows.append((step, "h", loss, "ood", "all", 0.99))
        for i in range(n_subsets):
            rows.append((step, "h", loss, "ood", f"subset_{i}", step / 50 + ends * i))
    columns = ["step", "data", "loss", "split", "subset", "accuracy"]
    return pd.DataFrame(rows, columns=columns)


def test_lines_are_the_mean_over_subsets_and_the_subsets() -> None:
    top, bottom = training_curves(history(4)).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in top.lines}
    assert lines["ID, all examples"] == [[10, 40], [20, 80]]
    mean = lines["OOD, mean of 4 subsets"]
    assert mean == [[10, pytest.approx(23)], [20, pytest.approx(43)]]
    assert len(top.lines) == 6
    assert bottom.lines[0].get_xydata().tolist() == [[10, 0.7], [20, 0.5]]


def test_names_at_the_ends_of_lines_are_inside_and_apart() -> None:
    figure = training_curves(history(8))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    names = [text for text in figure.axes[0].texts if isinstance(text, Annotation)]
    assert sorted(text.get_text() for text in names) == sorted(
        ["ID", "OOD", *(f"subset_{i}" for i in range(8))]
    )
    # The box of an annotation would have its arrow in it.
    arrowless = [Text.get_window_extent(text, canvas.get_renderer()) for text in names]
    boxes = sorted(arrowless, key=lambda box: box.y0)
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(boxes))


def test_very_many_subsets_are_counted_and_not_named() -> None:
    figure = training_curves(history(30))
    assert {text.get_text() for text in figure.axes[0].texts} == {"ID", "OOD"}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["ID, all examples", "OOD, mean of 30 subsets", "30 subsets of OOD"]


@pytest.mark.parametrize("n", [0, 1, 12])
def test_spread_keeps_order_and_distance(n: int) -> None:
    places = np.random.default_rng(n).uniform(0, 100, n)
    found = spread(places, 5, 0, 100)
    ordered = found[np.argsort(places)]
    assert np.all(np.diff(ordered) >= 5 - 1e-9)
    assert np.all((found >= 0) & (found <= 100))


def test_places_far_apart_stay() -> None:
    assert spread(np.array([90.0, 10.0, 50.0]), 5, 0, 100).tolist() == [90, 10, 50]
    assert spread(np.array([99.0, 100.0]), 5, 0, 100).tolist() == [95, 100]
