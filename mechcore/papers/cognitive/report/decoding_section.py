"""The section of a run on the cognitive task on what its states say about the trial."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.decoding import CHECK, DECODING
from mechcore.papers.cognitive.report.arms import (
    arm_name,
    basis,
    by_model,
    models_of,
    of_models,
    over_seeds,
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
from mechcore.wording import listed, number

_LIMITS = ["floor", "chance", "shuffled_high"]


def decoding_section(run: RunFolder, gallery: Gallery) -> Section:
    """What can be decoded from the states, layer by layer and token by token."""
    section_id, title = "decoding", "Decoding"
    decoding, check = run.filled("cognitive_decoding"), run.filled("cognitive_check")
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
    where = position_name(positions_of(decoding)[-1])
    layer = number(decoding["layer"].max(), 0)
    caption = f"Decoding from the last layer ({layer}) at the last position ({where}): means over "
    caption += "seeds; the floor is what the best of the other variables alone gives away"
    shown: list[Shown] = [
        "variable",
        "subset",
        "arm",
        SEEDS,
        "accuracy",
        OverSeeds("accuracy"),
        *_LIMITS,
    ]
    return table_of(ordered(means, variable=VARIABLES), of_models(DECODING), caption, shown)


def _last_of_seeds(decoding: pd.DataFrame) -> Table:
    shown = ["arm", "seed", "variable", "subset", "n", "accuracy", "floor", "shuffled_high", "p"]
    caption = "Every seed, at the same place, with intervals"
    rows = by_model(_last(decoding))
    return table_of(rows, of_models(DECODING), caption, shown, folded=True)


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
    caption = "The built-in check: variables, positions and layers where nothing is read yet, how "
    caption += "many are above chance and would be by chance, and p of the most accurate of them"
    shown = ["arm", "seed", "n_rows", "n_above", "expected", "p", "holds"]
    yield table_of(check, of_models(CHECK), caption, shown, folded=len(broken) == 0)
