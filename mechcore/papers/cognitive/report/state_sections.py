"""The sections of a run on the cognitive task on single units and on the projection of states."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.report.arms import (
    basis,
    by_arm,
    by_model,
    of_models,
    over_seeds,
    seeds_of,
)
from mechcore.papers.cognitive.report.state_figures import MOST_SEEDS, projections, selectivity_bars
from mechcore.papers.cognitive.report.summary import CLAIMS
from mechcore.papers.cognitive.units import PROJECTION, SELECTIVITY, SILHOUETTE, TERMS
from mechcore.report.blocks import (
    Block,
    Gallery,
    OverSeeds,
    Paragraph,
    Section,
    Shown,
    Table,
    not_run,
    table_of,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import SEEDS, ordered
from mechcore.wording import count, listed, whole

_MOST_ROWS = 20
"""Rows of a table that is not folded."""


def selectivity_section(run: RunFolder, gallery: Gallery) -> Section:
    """How many variables single units follow."""
    section_id, title = "selectivity", "Mixed selectivity"
    table, terms = run.filled("cognitive_selectivity"), run.filled("cognitive_terms")
    if table is None:
        return not_run(section_id, title, "the regression of single units on the variables")
    alpha, units = SELECTIVITY["alpha"].show(table["alpha"].max()), table["n_units"].max()
    picture = gallery.add(
        selectivity_bars(table),
        "selectivity",
        f"Share of the {count(units, 'unit')} of the last layer, at the last token, that follow so "
        f"many of context, motion, colour and choice (permutation test, p at most {alpha} for each "
        "variable). Bars are means over seeds, dots seeds; black strokes are what is expected if "
        f"no unit follows anything; {basis(table)}",
        "Bar chart of the share of units by how many variables they follow, for each arm; the "
        "numbers are in the table below.",
    )
    blocks: list[Block] = [*CLAIMS.lines(run, section_id), picture, _unit_table(table)]
    if terms is not None:
        blocks.append(_term_table(terms))
    files = ["cognitive_selectivity.csv", "cognitive_terms.csv"]
    return Section(section_id, title, blocks, files)


def _unit_table(table: pd.DataFrame) -> Table:
    values = ["units", "share", "expected_correlated", "with_interaction"]
    caption = "Units by how many variables they follow, means over seeds; how many of them also "
    shown: list[Shown] = ["arm", "n_variables", SEEDS, *values[:2], OverSeeds("share"), *values[2:]]
    means = over_seeds(table, ["n_variables"], values)
    return table_of(means, of_models(SELECTIVITY), f"{caption}follow a product of variables", shown)


def _term_table(terms: pd.DataFrame) -> Table:
    means = over_seeds(terms, ["term"], ["share", "expected"])
    caption = "Share of units that follow each variable or product, mean and range over seeds"
    shown: list[Shown] = ["term", "arm", "share", OverSeeds("share"), "expected"]
    rows = ordered(means, term=dict.fromkeys(terms["term"]))
    return table_of(rows, of_models(TERMS), caption, shown, folded=True)


# -- projection ---------------------------------------------------------------------------------


def projection_section(run: RunFolder, gallery: Gallery) -> Section:
    """The states in two dimensions, and how far choices and contexts are apart in them."""
    section_id, title = "projection", "Projection of the states"
    table, apart = run.filled("cognitive_projection"), run.filled("cognitive_silhouette")
    files = ["cognitive_projection.csv", "cognitive_silhouette.csv"]
    blocks: list[Block] = [*CLAIMS.lines(run, section_id)]
    if table is None:
        blocks.append(Paragraph("Not run: the projection to two dimensions.", note=True))
    else:
        blocks += _projection(table, apart, gallery)
    if apart is None:
        blocks.append(Paragraph("Not run: the silhouettes of choices and contexts.", note=True))
    else:
        blocks.append(_silhouettes(apart))
    return Section(section_id, title, blocks, files)


def _projection(
    table: pd.DataFrame, apart: pd.DataFrame | None, gallery: Gallery
) -> Iterator[Block]:
    seeds, methods = seeds_of(table), list(dict.fromkeys(table["method"]))
    n = table.groupby(["arm", "seed"]).size()
    rest = f", of {len(seeds)} seeds the first {MOST_SEEDS}" if len(seeds) > MOST_SEEDS else ""
    words = listed([name.upper() for name in methods])
    yield gallery.add(
        projections(table, apart),
        "projection",
        f"States of the last layer at the last token in two dimensions by {words}: a panel per "
        f"model{rest}, a mark per test trial (n = {whole(n.max())} each), coloured by the model's "
        "answer, shaped by the context. Axes have no meaning of their own and differ between "
        "panels. A picture only: whether groups are apart is said by the silhouettes, which under "
        "the panels are those of the states.",
        f"Scatter plots of states in two dimensions by {words}, a panel per model; silhouettes are "
        "in the table below.",
    )
    made = table.drop_duplicates(["arm", "seed", "description"])
    shown = ["arm", "seed", "description"]
    schema, caption = of_models(PROJECTION), "How each panel was made"
    yield table_of(by_arm(made), schema, caption, shown, folded=True)


def _silhouettes(table: pd.DataFrame) -> Table:
    points = table["method"].str.upper() + " points"
    rows = by_model(table.assign(space=table["space"].where(table["space"] != "points", points)))
    caption = (
        "How far groups are apart: silhouette from \u22121 to 1, in the states themselves and in "
        "the projected points, beside shuffled labels"
    )
    shown = ["arm", "seed", "variable", "space", "silhouette", "null_mean", "null_95"]
    folded = len(rows) > _MOST_ROWS
    return table_of(rows, of_models(SILHOUETTE), caption, shown, folded=folded)
