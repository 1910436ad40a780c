"""The page of a study of extractive structures says what its tables say, whatever of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from drawn import check_paper, leave_out_figures, panel
from made_up_extractive import ExtractiveWorld, write_extractive_run
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from pages import Page, with_tables
from study_pages import (
    HOSTILE,
    Worlds,
    check_claims,
    check_hostile,
    check_in_browser,
    check_missing,
    page_of,
    put_in,
    saved,
    text_of,
)

from mechcore.papers.extractive.report import ranks, scores
from mechcore.papers.extractive.report.looks import GRAFTED, ORDERS, STATES
from mechcore.papers.extractive.report.scores import (
    head_map,
    localization,
    token_columns,
    token_map,
)
from mechcore.report import build_report
from mechcore.report.run_folder import RunFolder

FIGURES = {
    ranks: "freezing_lines seed_dots",
    scores: "token_maps head_maps localization",
}
WORLDS = {
    "small": ExtractiveWorld(),
    "alone": ExtractiveWorld(
        tasks=("second-hop",), seeds=(4,), replays=(False,), n_heads=1, n_layers=2, cuts=(1,)
    ),
    "many": ExtractiveWorld(seeds=tuple(range(7)), n_layers=2, n_heads=2, name_tokens=(1, 2)),
    "large": ExtractiveWorld(
        n_layers=24, n_heads=9, name_tokens=(5,), cuts=(8, 15, 20), seeds=(0, 1)
    ),
}


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_figures(monkeypatch, FIGURES)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """The tables of a world by its name."""
    return Worlds(tmp_path_factory.mktemp("worlds"), write_extractive_run, WORLDS)


@pytest.fixture(scope="module")
def small(runs: Worlds) -> RunFolder:
    return runs["small"]


@pytest.fixture(scope="module")
def page(small: RunFolder) -> Page:
    """The page of the small world, without figures."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_figures(patch, FIGURES)
        return page_of(small.path)


def rows_of(run: RunFolder, name: str, query: str) -> pd.DataFrame:
    return run.tables[f"extractive_{name}"].query(query)


def test_the_summary_leads_from_every_claim_to_its_section(page: Page) -> None:
    assert "Claims supported 8 of 11 1 not supported, 2 inconclusive" in page.text
    twice = ("recall", "scores", "freezing", "ordering")
    check_claims(page, [*np.repeat(twice, 2), "grafting", "localization", "sums"])
    assert "Claim 7: Implications before facts teach less. Verdict: not supported." in page.text


def test_headline_numbers_are_those_of_the_tables(small: RunFolder, page: Page) -> None:
    implied = "data == 'implications' and task == 'first-hop' and state == "
    before, after = (
        rows_of(small, "ranks", f"{implied}'{state}'")["mean_rank"] for state in STATES
    )
    assert (
        f"Implications, first-hop {before.mean():.2f} \u2192 {after.mean():.2f} mean rank before "
        f"and after; chance 9.5; mean of 3 seeds, {after.min():.2f} to {after.max():.2f} after"
    ) in page.text
    orders = rows_of(small, "ordering", "data == 'test implications' and replay")
    means = orders.groupby("order")["mean_rank"].mean()
    first, last = means["facts first"], means["implications first"]
    assert (
        f"Facts first, implications first {first:.2f}, {last:.2f} mean rank of test implications, "
        "with replay; chance 9.5; mean of 3 seeds"
    ) in page.text
    models = rows_of(small, "grafting", "data == 'other implications'")
    of_model = models.groupby("model")["mean_rank"].mean()
    assert (
        f"Without graft, with it {of_model['other facts']:.2f} \u2192 {of_model['graft']:.2f} mean "
        f"rank of implications of other facts; control {of_model['control graft']:.2f}; mean of 3"
    ) in page.text


def test_tables_have_means_and_ranges_over_seeds(small: RunFolder, page: Page) -> None:
    trained = "data == 'implications' and task == 'second-hop' and way == 'trained' and cut == 2"
    frozen = rows_of(small, "freezing", trained)
    means = frozen.groupby("frozen")["mean_rank"].mean()
    ranks = " ".join(f"{means[group]:.2f}" for group in ("early", "late", "none", "all"))
    assert f"second-hop not trained 2 {ranks}" in page.text
    orders = rows_of(small, "ordering", "data == 'test facts' and order == 'joint' and not replay")
    values = " ".join(f"{value:.2f}" for value in orders.sort_values("seed")["mean_rank"])
    mean = orders["mean_rank"].mean()
    assert f"test facts joint without replay {mean:.2f} {values} 9.5" in page.text
    scores = rows_of(
        small, "scores", "task == 'first-hop' and score == 'downstream' and kind == 'mlp'"
    )
    sums = scores.groupby("seed")["value"].sum()
    assert (
        f"first-hop downstream MLPs 3 {sums.mean():+.3f} {sums.min():.2f} to {sums.max():.2f}"
    ) in page.text
    top = scores.groupby(["component", "token"])["value"].mean()
    assert top.idxmax() == ("L3.MLP", "speak")
    assert f"first-hop downstream MLPs L3.MLP speak 3 {top.max():+.3f}" in page.text


@pytest.mark.usefixtures("no_drawing")
def test_the_sum_check_says_how_far_sum_and_gradient_are_apart(page: Page, runs: Worlds) -> None:
    assert "difference between the two is 2.0 \u00d7 10\u207b\u2076 logits." in page.text
    assert "published code" not in page.text
    run = runs["alone"]
    config = run.config | {"settings": run.config["settings"] | {"compat": "paper"}}
    assert "These are scores as in the published code" in text_of(replace(run, config=config))


def test_a_drawn_page_in_a_browser(runs: Worlds) -> None:
    """With all its figures, and nothing to complain of on a narrow screen."""
    run = runs["alone"].path
    path = build_report(run, figures=("svg",))
    page = Page(path.read_text(encoding="utf-8"))
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 11
    assert all(attrs.get("alt") for attrs in images)
    assert len(list((run / "figures").glob("*.svg"))) == 11
    ids = [value for _, attrs in page.tags if (value := attrs.get("id"))]
    assert len(ids) == len(set(ids))
    check_in_browser(path, "The same for facts")


# -- what may be missing --------------------------------------------------------------------------

NEEDED = {
    "extractive_verdicts": "the verdicts on the claims",
    "extractive_ranks": "the training on facts",
    "extractive_scores": "the scores of components",
    "extractive_sums": "the check that scores add up",
    "extractive_freezing": "the freezing of early and late layers",
    "extractive_ordering": "the trainings in three orders",
    "extractive_grafting": "the grafting of weight changes",
    "extractive_localization": "the scores of learning and of reading out",
    "extractive_localization_r2": "the correlation of the two scores",
}
"""Tables without which something is said not to have run; the grid leaves a gap of its own."""
MISSING = {
    "scores": ["value", "se"],
    "ranks": ["mean_rank", "low", "high"],
    "ordering": ["mean_rank", "chance"],
    "grafting": ["mean_rank", "chance"],
    "sums": ["gradient", "r"],
    "localization": ["downstream"],
    "localization_r2": ["r2", "r", "p"],
    "freezing": ["mean_rank"],
}
"""Columns whose numbers may be missing."""


@pytest.mark.usefixtures("no_drawing")
def test_a_missing_table_leaves_out_its_part_alone(runs: Worlds) -> None:
    check_missing(runs["alone"], NEEDED)


@pytest.fixture(scope="module")
def lacking(runs: Worlds) -> RunFolder:
    """Upstream scores without counterfactuals, ranks that were not measured, no correlation."""
    return put_in(runs["alone"], MISSING, np.nan)


@pytest.mark.usefixtures("no_drawing")
def test_numbers_that_are_missing_are_shown_as_such(lacking: RunFolder) -> None:
    text = text_of(lacking)
    assert "second-hop upstream MLPs 1 n/a n/a" in text
    assert "second-hop facts after 1 n/a n/a 9.5" in text
    assert "difference between the two is n/a logits" in text
    assert "nan" not in text.split()


@pytest.mark.usefixtures("no_drawing")
def test_hostile_strings_are_shown_as_they_are(runs: Worlds, tmp_path: Path) -> None:
    changes = {
        "verdicts": ("title", "verdict", "figure"),
        "ranks": ("task",),
        "scores": ("component", "token", "kind"),
        "freezing": ("way",),
        "ordering": ("order", "data"),
        "grafting": ("model",),
        "localization": ("component",),
    }
    check_hostile(saved(put_in(runs["alone"], changes, HOSTILE), tmp_path / "run"))


def test_missing_numbers_and_hostile_strings_can_be_drawn(lacking: RunFolder) -> None:
    changed = {"task", "token", "score", "way", "order", "data", "model"}
    tables = {
        name: frame.assign(**{c: HOSTILE + frame[c] for c in changed & {*frame.columns}})
        for name, frame in lacking.tables.items()
    }
    for draw in DRAW.values():
        FigureCanvasAgg(draw(with_tables(lacking, **tables))).draw()


SCORE = ("seed", "layer", "head", "place", "token", "value")


def test_a_map_sums_heads_and_averages_seeds_whose_names_differ_in_length() -> None:
    rows = [
        (0, 0, 0, 0, "the", 1.0),
        (0, 0, 1, 0, "the", 2.0),
        (0, 0, 0, 1, "subject -1", 4.0),
        (0, 1, 0, 2, "the", 8.0),
        (1, 0, 0, 0, "the", 5.0),
        (1, 0, 0, 1, "subject -2", 16.0),
        (1, 0, 0, 2, "subject -1", 6.0),
        (1, 1, 0, 3, "the", 10.0),
    ]
    scores = pd.DataFrame(rows, columns=SCORE).assign(score="informative", kind="head")
    columns = token_columns(scores)
    assert columns == [("the", 0), ("subject -2", 0), ("subject -1", 0), ("the", 1)]
    table = token_map(scores, columns, 2)
    assert list(table) == ["the", "subject -2", "subject -1", "the (2)"]
    nan = np.nan
    # "the": (1 + 2) and 5; "subject -2" has seed 1 alone.
    np.testing.assert_array_equal(table.values, [[4.0, 16.0, 5.0, nan], [nan, nan, nan, 9.0]])
    heads = head_map(scores, 2, 2)
    # Head 0 of layer 0: 1 + 4 and 5 + 16 + 6.
    np.testing.assert_array_equal(heads.values, [[16.0, 2.0], [9.0, nan]])


def _images(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.axes if ax.images]


def test_maps_are_centred_at_zero_and_name_their_scale(small: RunFolder) -> None:
    table = small.tables["extractive_scores"].query("task == 'first-hop'")
    figure = scores.token_maps(table, "First-hop")
    shown = _images(figure)
    assert [ax.get_title().split(":")[0] for ax in shown] == [
        f"{score}, {kind}"
        for kind in ("MLPs", "heads")
        for score in ("informative", "upstream", "downstream")
    ]
    mean = table.query("kind == 'mlp' and score == 'informative'")
    mean = mean.groupby(["layer", "place"])["value"].mean().unstack()
    image = shown[0].images[0]
    np.testing.assert_allclose(np.asarray(image.get_array()), mean.to_numpy())
    low, high = image.get_clim()
    assert -low == high == pytest.approx(np.abs(mean.to_numpy()).max())
    assert shown[0].get_title() == f"informative, MLPs: \u00b1{high:.2f}"
    red, _, blue, _ = image.cmap(image.norm(high))
    assert blue > red  # helps
    labels = [text.get_text() for text in shown[-1].get_xticklabels()]
    assert labels == table.query("seed == 0").drop_duplicates("place")["token"].tolist()


def _points(ax: Axes) -> list[tuple[float, float]]:
    dots = [c for c in ax.collections if isinstance(c, PathCollection)]
    return [tuple(xy) for c in dots for xy in np.asarray(c.get_offsets(), dtype=float)]


def test_dots_of_all_seeds_their_mean_and_chance(small: RunFolder) -> None:
    rows = small.tables["extractive_grafting"].query("data == 'other implications'")
    figure = ranks.seed_dots([("other", rows.assign(row=rows["model"]))], GRAFTED)
    ax = panel(figure, "other")
    names = ["without graft", "graft", "control graft"]
    assert [t.get_text() for t in ax.get_yticklabels()] == names
    for i, model in enumerate(GRAFTED):
        values = rows[rows["model"] == model]["mean_rank"]
        at = sorted(x for x, y in _points(ax) if round(y) == i)
        assert at == pytest.approx(sorted(values))
        strokes = [x for x, y in _segments(ax) if round(y) == i and np.isclose(x, values.mean())]
        assert len(strokes) == 2  # the ends of one
    (chance,) = {line.get_xdata()[0] for line in ax.lines}
    assert chance == 9.5
    legend = [t.get_text() for t in figure.legends[0].get_texts()]
    assert legend == ["seed 0", "seed 1", "seed 2", "mean of the seeds", "chance"]


def _segments(ax: Axes) -> Iterator[tuple[float, float]]:
    for collection in ax.collections:
        if isinstance(collection, LineCollection):
            for segment in collection.get_segments():
                yield from ((float(x), float(y)) for x, y in segment)


def test_freezing_has_means_seeds_and_references(small: RunFolder) -> None:
    rows = small.tables["extractive_freezing"].query("data == 'facts'")
    figure = ranks.freezing_lines(rows, {"first-hop": 9.5})
    ax = panel(figure, "first-hop: undone after training")
    part = rows.query("task == 'first-hop' and way == 'reverted'")
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]
    for group in ("early", "late"):
        lines = part[part["frozen"] == group]
        means = lines.groupby("cut")["mean_rank"].mean().to_numpy()
        seeds = [curve.sort_values("cut")["mean_rank"] for _, curve in lines.groupby("seed")]
        for expected in (means, *seeds):
            assert sum(len(y) == 3 and np.allclose(y, expected) for y in drawn) == 1
    flat = sorted(y[0] for y in drawn if len(y) == 2)
    levels = [part[part["frozen"] == name]["mean_rank"].mean() for name in ("none", "all")]
    assert flat == pytest.approx(sorted([*levels, 9.5]))
    without = panel(figure, "second-hop: undone after training")
    assert sum(len(line.get_ydata()) == 2 for line in without.lines) == 2


def _first_task(run: RunFolder) -> pd.DataFrame:
    scores = run.tables["extractive_scores"]
    return scores[scores["task"] == scores["task"].iloc[0]]


def _panels(frame: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    frame = frame.assign(row=frame[column])
    return [(str(data), rows) for data, rows in frame.groupby("data")]


DRAW: dict[str, Callable[[RunFolder], Figure]] = {
    "ranks": lambda run: ranks.seed_dots(_panels(run.tables["extractive_ranks"], "state"), STATES),
    "freezing": lambda run: ranks.freezing_lines(run.tables["extractive_freezing"], {}),
    "ordering": lambda run: ranks.seed_dots(
        _panels(run.tables["extractive_ordering"], "order"), ORDERS
    ),
    "grafting": lambda run: ranks.seed_dots(
        _panels(run.tables["extractive_grafting"], "model")[:1], GRAFTED
    ),
    "tokens": lambda run: scores.token_maps(_first_task(run), "First-hop, mean over seeds"),
    "heads": lambda run: scores.head_maps(_first_task(run), "First-hop, seed 0"),
    "localization": lambda run: localization(
        run.tables["extractive_localization"], run.tables["extractive_localization_r2"]
    ),
}


@pytest.mark.parametrize("name", sorted(DRAW))
@pytest.mark.parametrize("world", ["alone", "large"])
def test_no_text_leaves_the_paper(name: str, world: str, runs: Worlds) -> None:
    check_paper(DRAW[name](runs[world]))
