"""Curves of a training draw its history."""

from __future__ import annotations

import pandas as pd
import pytest
from drawn import check_paper

from mechcore.report.subnetwork_figures import training_curves


def history(n_subsets: int) -> pd.DataFrame:
    """Two steps, with out-of-domain subsets."""
    rows = []
    for step, loss in ((10, 0.7), (20, 0.5)):
        rows.append((step, "m", loss, "id", "all", step / 25))
        rows.append((step, "h", loss, "ood", "all", 0.99))
        for i in range(n_subsets):
            rows.append((step, "h", loss, "ood", f"subset_{i}", step / 50 + 0.02 * i))
    columns = ["step", "data", "loss", "split", "subset", "accuracy"]
    return pd.DataFrame(rows, columns=columns)


def test_lines_are_the_mean_over_subsets_and_the_subsets() -> None:
    top, bottom = training_curves(history(4)).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in top.lines}
    assert lines["ID, all examples"] == [[10, 40], [20, 80]]
    mean = lines["OOD, mean of 4 subsets"]
    assert mean == [[10, pytest.approx(23)], [20, pytest.approx(43)]]
    assert lines["subset_1"] == [[10, pytest.approx(22)], [20, pytest.approx(42)]]
    assert len(top.lines) == 6
    assert bottom.lines[0].get_xydata().tolist() == [[10, 0.7], [20, 0.5]]


@pytest.mark.parametrize(("n", "named"), [(8, 8), (30, 0)])
def test_few_subsets_have_lines_of_their_own_look_and_very_many_are_counted(
    n: int, named: int
) -> None:
    figure = training_curves(history(n))
    check_paper(figure)
    names = [f"subset_{i}" for i in range(named)] or [f"{n} subsets of OOD"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["ID, all examples", f"OOD, mean of {n} subsets", *names]
    lines = figure.axes[0].lines[1 : n + 1]
    looks = {(line.get_color(), str(line._dash_pattern)) for line in lines}
    assert len(looks) == (named or 1)
