"""The sections of a run on the cognitive task on single units and on the projection of states."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.report.arms import (
    arm_name,
    basis,
    by_arm,
    models_of,
    of_model,
    over_seeds,
    seeds_of,
)
from mechcore.papers.cognitive.report.state_figures import MOST_SEEDS, projections, selectivity_bars
from mechcore.papers.cognitive.report.summary import CLAIMS
from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table, not_run
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import ends_of, plain_number, table_of
from mechcore.wording import (
    count,
    listed,
    number,
    percent,
    percent_range,
    whole,
)

_MOST_ROWS = 20
"""Rows of a table that is not folded."""


def selectivity_section(run: RunFolder, gallery: Gallery) -> Section:
    """How many variables single units follow."""
    section_id, title = "selectivity", "Mixed selectivity"
    table, terms = table_of(run, "cognitive_selectivity"), table_of(run, "cognitive_terms")
    if table is None:
        return not_run(section_id, title, "the regression of single units on the variables")
    alpha, units = plain_number(table["alpha"].max()), table["n_units"].max()
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
    rows = [
        [
            arm_name(row["arm"]),
            number(row["n_variables"], 0),
            whole(row["seeds"]),
            number(row["units"], 1),
            percent(row["share"]),
            percent_range(ends_of(row, "share")),
            percent(row["expected_correlated"]),
            number(row["with_interaction"], 1),
        ]
        for _, row in over_seeds(table, ["n_variables"], values).iterrows()
    ]
    header = ["arm", "variables", "seeds", "units", "share", "over seeds", "expected"]
    caption = "Units by how many variables they follow, means over seeds; how many of them also "
    caption += "follow a product of variables"
    return Table(caption, [*header, "with an interaction"], rows)


def _term_table(terms: pd.DataFrame) -> Table:
    means = over_seeds(terms, ["term"], ["share", "expected"])
    rows = [
        [
            term,
            arm_name(row["arm"]),
            percent(row["share"]),
            percent_range(ends_of(row, "share")),
            percent(row["expected"]),
        ]
        for term in dict.fromkeys(terms["term"])
        for _, row in means[means["term"] == term].iterrows()
    ]
    header = ["term", "arm", "units", "over seeds", "expected"]
    caption = "Share of units that follow each variable or product, mean and range over seeds"
    return Table(caption, header, rows, frozenset({0, 1}), folded=True)


# -- projection ---------------------------------------------------------------------------------


def projection_section(run: RunFolder, gallery: Gallery) -> Section:
    """The states in two dimensions, and how far choices and contexts are apart in them."""
    section_id, title = "projection", "Projection of the states"
    table, apart = table_of(run, "cognitive_projection"), table_of(run, "cognitive_silhouette")
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
    rows = [
        [arm_name(row["arm"]), number(row["seed"], 0), row["description"]]
        for _, row in by_arm(made).iterrows()
    ]
    header = ["arm", "seed", "method"]
    yield Table("How each panel was made", header, rows, frozenset({0, 2}), folded=True)


def _silhouettes(table: pd.DataFrame) -> Table:
    rows = []
    for arm, seed in models_of(table):
        for _, row in of_model(table, arm, seed).iterrows():
            points = row["space"] == "points"
            rows.append(
                [
                    arm_name(arm),
                    number(seed, 0),
                    row["variable"],
                    f"{row['method'].upper()} points" if points else row["space"],
                    number(row["silhouette"], 3, signed=True),
                    number(row["null_mean"], 3, signed=True),
                    number(row["null_95"], 3, signed=True),
                ]
            )
    header = ["arm", "seed", "groups by", "space", "silhouette", "shuffled", "shuffled, 95 %"]
    caption = (
        "How far groups are apart: silhouette from \u22121 to 1, in the states themselves and "
    )
    caption += "in the projected points, beside shuffled labels"
    return Table(caption, header, rows, frozenset({0, 2, 3}), folded=len(rows) > _MOST_ROWS)
