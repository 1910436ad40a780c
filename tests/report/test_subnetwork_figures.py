"""Figures that compare subnetworks, and those of a training, draw what their tables hold."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from drawn import check_paper
from matplotlib.colors import to_rgba

from mechcore.bench.methods import RANKERS
from mechcore.report import subnetwork_figures as figures


def test_overlap_is_symmetric_with_ones_on_the_diagonal() -> None:
    columns = ["first", "second", "jaccard"]
    rows = [("a", "b", 0.25), ("a", "c", 0.5), ("b", "c", 0.75)]
    figure = figures.head_overlap(pd.DataFrame(rows, columns=columns))
    values = figure.axes[0].images[0].get_array()
    expected = [[1, 0.25, 0.5], [0.25, 1, 0.75], [0.5, 0.75, 1]]
    np.testing.assert_array_equal(np.asarray(values), expected)
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["a", "b", "c"]


def test_many_subnetworks_have_no_numbers_in_cells() -> None:
    names = [f"s{i}" for i in range(30)]
    rows = [(a, b, 0.5) for a, b in itertools.combinations(names, 2)]
    figure = figures.head_overlap(pd.DataFrame(rows, columns=["first", "second", "jaccard"]))
    assert not figure.axes[0].texts


def test_lines_of_methods_are_means_over_seeds() -> None:
    rows = [("l0", 0.3, 0.2), ("l0", 0.7, 0.5), ("random", 0.3, 1.0)]
    columns = ["method", "target_sparsity", "kl"]
    table = pd.DataFrame(rows, columns=columns)
    ax = figures.kl_by_sparsity(table.assign(kl_low=0.1, kl_high=1.0)).axes[0]
    lines = {line.get_label(): line.get_xydata().tolist() for line in ax.lines}
    assert lines["l0"] == [[30, pytest.approx(0.2)], [70, 0.5]]
    assert lines["random"] == [[30, 1.0]]
    assert len(lines) == 2


def test_every_method_has_a_line_of_its_own_look() -> None:
    methods = [*RANKERS, "late-first", "early-first"]  # two are another package's
    rows = [(method, share, i + share) for i, method in enumerate(methods) for share in (0.3, 0.7)]
    table = pd.DataFrame(rows, columns=["method", "target_sparsity", "kl"])
    figure = figures.kl_by_sparsity(table.assign(kl_low=0.0, kl_high=table["kl"]))
    lines = figure.axes[0].lines
    assert len({line.get_label() for line in lines}) == len(methods)
    assert {"late-first", "early-first", "eap-ig"} <= {line.get_label() for line in lines}
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(methods)
    [legend] = figure.legends
    assert len(legend.get_texts()) == len(methods)


def sizes(rows: list[tuple]) -> pd.DataFrame:
    columns = ["group", "checkpoint", "effective_size", "low", "high", "n_seeds", "n_faithful"]
    return pd.DataFrame(rows, columns=columns).assign(full_accuracy=[0.9, 0.95, 0.1, 0.5])


@pytest.mark.parametrize("checkpoints", [[100, 200], ["early", "late"]])
def test_effective_sizes_and_which_are_not_faithful(checkpoints: list) -> None:
    first, last = checkpoints
    rows = [("ID", first, 0.5, 0.4, 0.6, 3, 3), ("ID", last, 0.4, 0.4, 0.4, 3, 3)]
    rows += [("OOD", first, 1.0, 1.0, 1.0, 3, 0), ("OOD", last, 0.9, 0.8, 1.0, 3, 3)]
    figure = figures.effective_sizes(sizes(rows))
    left, right = figure.axes
    xs = checkpoints if first == 100 else [0, 1]
    assert [line.get_xydata().tolist() for line in left.lines] == [
        [[xs[0], 90], [xs[1], 95]],
        [[xs[0], 10], [xs[1], 50]],
    ]
    lines = [line for line in right.lines if line.get_marker() == "None"]
    assert [line.get_ydata().tolist() for line in lines] == [[50, 40], [100, 90]]
    open_markers = [
        line.get_xydata().tolist()
        for line in right.lines
        if line.get_marker() != "None"
        and to_rgba(line.get_markerfacecolor()) == to_rgba("white")
        and len(line.get_xdata())
    ]
    assert open_markers == [[[xs[0], 100]]]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["ID", "OOD", "not faithful for every seed"]


def test_every_group_has_a_look_of_its_own() -> None:
    groups = ["ID", "OOD", "mixed", "main text"]
    figure = figures.effective_sizes(sizes([(group, 1, 0.5, 0.4, 0.6, 3, 3) for group in groups]))
    left = figure.axes[0]
    looks = {(line.get_color(), line.get_marker()) for line in left.lines}
    assert len(looks) == len(left.lines) == len(groups)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == groups


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
    top, bottom = figures.training_curves(history(4)).axes
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
    figure = figures.training_curves(history(n))
    check_paper(figure)
    names = [f"subset_{i}" for i in range(named)] or [f"{n} subsets of OOD"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["ID, all examples", f"OOD, mean of {n} subsets", *names]
    lines = figure.axes[0].lines[1 : n + 1]
    looks = {(line.get_color(), str(line._dash_pattern)) for line in lines}
    assert len(looks) == (named or 1)
