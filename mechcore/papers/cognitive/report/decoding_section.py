"""The section of a run on the cognitive task on what its states say about the trial."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.report.arms import (
    arm_name,
    basis,
    models_of,
    of_model,
    over_seeds,
    share,
)
from mechcore.papers.cognitive.report.decoding_figures import (
    VARIABLES,
    decoding_maps,
    decoding_over_prompt,
    main_rows,
    position_name,
    positions_of,
)
from mechcore.papers.cognitive.report.summary import CLAIMS
from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table, not_run
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import ends_of, in_order, table_of
from mechcore.wording import (
    listed,
    number,
    percent,
    percent_range,
    small,
    whole,
)

_LIMITS = ["floor", "chance", "shuffled_high"]


def decoding_section(run: RunFolder, gallery: Gallery) -> Section:
    """What can be decoded from the states, layer by layer and token by token."""
    section_id, title = "decoding", "Decoding"
    decoding, check = table_of(run, "cognitive_decoding"), table_of(run, "cognitive_check")
    if decoding is None:
        return not_run(section_id, title, "the decoding of variables from the states")
    rows = main_rows(decoding)
    kinds = f"Balanced: only trials in which that side is to be ignored; {basis(rows)}"
    blocks: list[Block] = [
        *CLAIMS.lines(run, "decoding"),
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
    means = over_seeds(last, ["variable", "subset"], ["accuracy", *_LIMITS])
    rows = [
        [
            variable,
            row["subset"],
            arm_name(row["arm"]),
            whole(row["seeds"]),
            percent(row["accuracy"]),
            percent_range(ends_of(row, "accuracy")),
            *(percent(row[name]) for name in _LIMITS),
        ]
        for variable in in_order(last["variable"], VARIABLES)
        for _, row in means[means["variable"] == variable].iterrows()
    ]
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
