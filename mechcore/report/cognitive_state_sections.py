"""The sections of a run on the cognitive task that are about states and units."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table, not_run
from mechcore.report.cognitive_arms import (
    arm_name,
    arms_of,
    basis,
    by_arm,
    in_order,
    models_of,
    of_model,
    over_seeds,
    seeds_of,
    share,
    table_of,
)
from mechcore.report.cognitive_state_figures import (
    MOST_SEEDS,
    VARIABLES,
    decoding_maps,
    decoding_over_prompt,
    main_rows,
    position_name,
    positions_of,
    projections,
    selectivity_bars,
)
from mechcore.report.cognitive_summary import claim_lines
from mechcore.report.run_folder import RunFolder
from mechcore.report.wording import (
    count,
    listed,
    number,
    percent,
    percent_range,
    small,
    whole,
)

_MOST_ROWS = 20
"""Rows of a table that is not folded."""


def decoding_section(run: RunFolder, gallery: Gallery) -> Section:
    """What can be decoded from the states, layer by layer and token by token."""
    section_id, title = "decoding", "Decoding"
    decoding, check = table_of(run, "cognitive_decoding"), table_of(run, "cognitive_check")
    if decoding is None:
        return not_run(section_id, title, "the decoding of variables from the states")
    rows = main_rows(decoding)
    kinds = f"Balanced: only trials in which that side is to be ignored; {basis(rows)}"
    blocks: list[Block] = [
        *claim_lines(run, 4),
        gallery.add(
            decoding_over_prompt(decoding),
            "decoding-prompt",
            "Cross-validated accuracy of logistic regression on the states of the last layer, "
            "token by token as the prompt is read; thick lines are means over seeds. In the grey "
            f"area nothing of the variable was read yet, so it must be at chance. {kinds}",
            "Line charts, one per variable, of decoding accuracy by position in the prompt for "
            "each arm; the numbers at the last position are in the table below.",
        ),
        gallery.add(
            decoding_maps(decoding),
            "decoding-layers",
            "The same for all layers, mean over seeds. Colours go from chance to 100 %. A red dot: "
            "not above the floor and the shuffled labels. Left of the dashed line nothing of the "
            f"variable was read yet. {kinds}",
            "Heatmaps, layer by position, of decoding accuracy by arm and variable.",
        ),
        _last_position(decoding),
        _last_of_seeds(decoding),
        *_check(check),
    ]
    files = ["cognitive_decoding.csv", "cognitive_check.csv"]
    return Section(section_id, title, blocks, files)


def _last(decoding: pd.DataFrame) -> pd.DataFrame:
    """The rows of the last layer at the last position."""
    last = decoding[decoding["layer"] == decoding["layer"].max()]
    return last[last["position"] == positions_of(decoding)[-1]]


def _last_position(decoding: pd.DataFrame) -> Table:
    last = _last(decoding)
    values = ["accuracy", "floor", "chance", "shuffled_high"]
    means = over_seeds(last, ["variable", "subset"], values)
    rows = []
    for variable in in_order(last["variable"], VARIABLES):
        for arm in arms_of(last):
            part = means[(means["variable"] == variable) & (means["arm"] == arm)]
            for _, row in part.iterrows():
                chosen = (last["arm"] == arm) & (last["variable"] == variable)
                found = last[chosen & (last["subset"] == row["subset"])]
                rows.append(
                    [
                        variable,
                        row["subset"],
                        arm_name(arm),
                        whole(len(seeds_of(found))),
                        percent(row["accuracy"]),
                        percent_range(found["accuracy"]),
                        *(percent(row[name]) for name in values[1:]),
                    ]
                )
    header = ["variable", "trials", "arm", "seeds", "accuracy", "over seeds", "floor", "chance"]
    where = position_name(positions_of(decoding)[-1])
    layer = number(decoding["layer"].max(), 0)
    caption = f"Decoding from the last layer ({layer}) at the last position ({where}): means over "
    caption += "seeds; the floor is what the best of the other variables alone gives away"
    return Table(caption, [*header, "shuffled, 95 %"], rows, frozenset({0, 1, 2}))


def _last_of_seeds(decoding: pd.DataFrame) -> Table:
    last = _last(decoding)
    rows = []
    for arm, seed in models_of(last):
        for _, row in of_model(last, arm, seed).iterrows():
            rows.append(
                [
                    arm_name(arm),
                    number(seed, 0),
                    row["variable"],
                    row["subset"],
                    whole(row["n"]),
                    share(row["accuracy"], row["low"], row["high"]),
                    percent(row["floor"]),
                    percent(row["shuffled_high"]),
                    small(row["p"]),
                ]
            )
    header = ["arm", "seed", "variable", "trials", "n", "accuracy", "floor", "shuffled, 95 %", "p"]
    caption = "Every seed, at the same place, with intervals"
    return Table(caption, header, rows, frozenset({0, 2, 3}), folded=True)


def _check(check: pd.DataFrame | None) -> Iterator[Block]:
    """Whether what has not been read is at chance."""
    if check is None:
        yield Paragraph("Not run: the check that what is not read yet is at chance.", note=True)
        return
    broken = check[~check["holds"]]
    if len(broken) == 0:
        yield Paragraph(
            "The built-in check holds in every model: attention is causal, so what has not been "
            "read must be at chance, and it is."
        )
    else:
        models = [f"{arm_name(arm)}, seed {number(seed, 0)}" for arm, seed in models_of(broken)]
        text = "The built-in check fails: more is decoded before it is read than chance allows, in "
        yield Paragraph(f"{text}{listed(models)}. Distrust the decoding there.", note=True)
    rows = [
        [
            arm_name(row["arm"]),
            number(row["seed"], 0),
            whole(row["n_rows"]),
            whole(row["n_above"]),
            number(row["expected"], 1),
            small(row["p"]),
            "holds" if row["holds"] else "fails",
        ]
        for _, row in check.iterrows()
    ]
    header = ["arm", "seed", "not read yet", "above chance", "expected", "p", "check"]
    caption = "The built-in check: variables, positions and layers where nothing is read yet, how "
    caption += "many are above chance and would be by chance, and p of the most accurate of them"
    yield Table(caption, header, rows, frozenset({0, 6}), folded=len(broken) == 0)


# -- single units -------------------------------------------------------------------------------


def selectivity_section(run: RunFolder, gallery: Gallery) -> Section:
    """How many variables single units follow."""
    section_id, title = "selectivity", "Mixed selectivity"
    table, terms = table_of(run, "cognitive_selectivity"), table_of(run, "cognitive_terms")
    if table is None:
        return not_run(section_id, title, "the regression of single units on the variables")
    alpha, units = number(table["alpha"].max(), 3).rstrip("0"), table["n_units"].max()
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
    blocks: list[Block] = [*claim_lines(run, 5), picture, _unit_table(table)]
    if terms is not None:
        blocks.append(_term_table(terms))
    files = ["cognitive_selectivity.csv", "cognitive_terms.csv"]
    return Section(section_id, title, blocks, files)


def _unit_table(table: pd.DataFrame) -> Table:
    values = ["units", "share", "expected_correlated", "with_interaction"]
    means = over_seeds(table, ["n_variables"], values)
    rows = []
    for arm in arms_of(table):
        for _, row in means[means["arm"] == arm].iterrows():
            chosen = (table["arm"] == arm) & (table["n_variables"] == row["n_variables"])
            rows.append(
                [
                    arm_name(arm),
                    number(row["n_variables"], 0),
                    whole(len(seeds_of(table[chosen]))),
                    number(row["units"], 1),
                    percent(row["share"]),
                    percent_range(table.loc[chosen, "share"]),
                    percent(row["expected_correlated"]),
                    number(row["with_interaction"], 1),
                ]
            )
    header = ["arm", "variables", "seeds", "units", "share", "over seeds", "expected"]
    caption = "Units by how many variables they follow, means over seeds; how many of them also "
    caption += "follow a product of variables"
    return Table(caption, [*header, "with an interaction"], rows)


def _term_table(terms: pd.DataFrame) -> Table:
    means = over_seeds(terms, ["term"], ["share", "expected"])
    rows = []
    for term in dict.fromkeys(terms["term"]):
        for arm in arms_of(terms):
            for _, row in means[(means["arm"] == arm) & (means["term"] == term)].iterrows():
                chosen = (terms["arm"] == arm) & (terms["term"] == term)
                spread = percent_range(terms.loc[chosen, "share"])
                cells = [term, arm_name(arm), percent(row["share"]), spread]
                rows.append([*cells, percent(row["expected"])])
    header = ["term", "arm", "units", "over seeds", "expected"]
    caption = "Share of units that follow each variable or product, mean and range over seeds"
    return Table(caption, header, rows, frozenset({0, 1}), folded=True)


# -- projection ---------------------------------------------------------------------------------


def projection_section(run: RunFolder, gallery: Gallery) -> Section:
    """The states in two dimensions, and how far choices and contexts are apart in them."""
    section_id, title = "projection", "Projection of the states"
    table, apart = table_of(run, "cognitive_projection"), table_of(run, "cognitive_silhouette")
    files = ["cognitive_projection.csv", "cognitive_silhouette.csv"]
    blocks: list[Block] = [*claim_lines(run, 7)]
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
