"""Figures of how well methods recover what is known to be true."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mechcore.report.drawing import BLUE, GREY, Dots, draw_dots, intervals, new_figure, styled

TITLES = {
    "auroc": "AUROC",
    "cmd": "CMD (0 is best)",
    "signs": "right signs of interactions (share)",
}


@styled
def recovery(table: pd.DataFrame, means: pd.DataFrame, columns: list[str]) -> Figure:
    """Every case as a dot, and the mean over cases with its interval, one row per method.

    ``means`` are of `mechcore.bench.recovery.over_cases`; there is one panel for each column.
    """
    methods = means["method"].tolist()
    place = {method: row for row, method in enumerate(methods)}
    figure = new_figure(1.6 + 3.2 * len(columns), 1.0 + 0.32 * len(methods))
    for i, (ax, column) in enumerate(
        zip(np.atleast_1d(figure.subplots(1, len(columns))), columns, strict=True)
    ):
        rows = table["method"].map(place).to_numpy()
        jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(rows))
        every = Dots("a case", GREY, ".", rows + jitter, table[column].to_numpy(), size=12)
        at = np.arange(len(methods))
        lines = intervals(at, means[f"{column}_low"], means[f"{column}_high"])
        mean = Dots("mean over cases", BLUE, "o", at, means[column].to_numpy(), lines)
        handles = draw_dots(ax, [every, mean], methods if i == 0 else [""] * len(methods))
        ax.set_xlabel(TITLES.get(column, column))
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure
