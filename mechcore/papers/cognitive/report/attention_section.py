"""The section of a run on the cognitive task on attention to the numbers of the prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.report.arms import (
    arm_name,
    basis,
    by_arm,
    fills_of,
    models_of,
    of_model,
)
from mechcore.papers.cognitive.report.figures import attention_and_drop, attention_by_layer
from mechcore.papers.cognitive.report.summary import CLAIMS
from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table, not_run
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import table_of, with_ends
from mechcore.wording import number, small, whole

_TOP = 5
"""Heads of a model in a table."""
_RATIO = ("ratio", "low_ratio", "high_ratio")
_ANSWER = ("answer_mass", "answer_uniform")


def attention_section(run: RunFolder, gallery: Gallery) -> Section:
    """How much heads attend to numbers, and whether those are the heads that matter."""
    section_id, title = "number-attention", "Attention to the numbers"
    attention = table_of(run, "cognitive_attention")
    if attention is None:
        return not_run(section_id, title, "the measure of attention to number tokens")
    ablation, drop = table_of(run, "cognitive_ablation"), table_of(run, "cognitive_attention_drop")
    counts = basis(attention, None)
    blocks: list[Block] = [*CLAIMS.lines(run, section_id)]
    if ablation is not None:
        fill = fills_of(ablation)[0]
        picture = gallery.add(
            attention_and_drop(attention, ablation[ablation["fill"] == fill]),
            "attention-drop",
            "A dot per head and seed: attention to number tokens, as a multiple of what a uniform "
            f"head would give, and the drop of accuracy without the head ({fill} ablation). "
            f"{counts}",
            "Scatter plots, one per arm, of attention to numbers against the drop without each "
            "head, coloured by layer; correlations are in the table below.",
        )
        blocks.append(picture)
    blocks.append(
        gallery.add(
            attention_by_layer(attention),
            "attention-layers",
            "Attention to number tokens as a multiple of what a uniform head would give, mean "
            "over the heads of a layer; thin lines are seeds, the dashed line is uniform "
            f"attention. {counts}",
            "Line chart of attention to numbers by layer, one line per arm; heads are in the "
            "table below.",
        )
    )
    blocks += [*_correlations(drop), _attending(attention)]
    files = ["cognitive_attention.csv", "cognitive_attention_drop.csv"]
    return Section(section_id, title, blocks, files)


def _correlations(table: pd.DataFrame | None) -> Iterator[Block]:
    if table is None:
        yield Paragraph("Not run: the correlation of attention with drops.", note=True)
        return
    rows = [
        [
            arm_name(row["arm"]),
            number(row["seed"], 0),
            row["fill"],
            whole(row["n_heads"]),
            number(row["rho"], signed=True),
            small(row["p"]),
            *(number(row[f"{name}_ratio"]) for name in ("first_layer", "other", "top")),
        ]
        for _, row in by_arm(table).iterrows()
    ]
    header = ["arm", "seed", "ablation", "heads", "Spearman's rho", "p", "first layer"]
    header += ["other layers", "weighted by drop"]
    caption = "Correlation over heads of attention to numbers with the drop, and attention to "
    caption += "numbers (times uniform): mean of the first layer, of all others, and of all heads "
    yield Table(f"{caption}weighted by their drop", header, rows, frozenset({0, 2}))


def _attending(attention: pd.DataFrame) -> Table:
    rows = []
    for arm, seed in models_of(attention):
        for _, row in of_model(attention, arm, seed).nlargest(_TOP, "ratio").iterrows():
            mass, low, high = (100 * row[name] for name in ("mass", "low", "high"))
            ratio, *ends = (row.get(name, math.nan) for name in _RATIO)
            rows.append(
                [
                    arm_name(arm),
                    number(seed, 0),
                    row["component"],
                    with_ends(mass, low, high, 1),
                    number(100 * row["uniform"], 1),
                    with_ends(ratio, *ends),
                    *(number(100 * row[name], 1) for name in _ANSWER if name in row),
                ]
            )
    header = ["arm", "seed", "head", "attention (%)", "uniform (%)", "ratio"]
    header += ["at the answer (%)", "uniform (%)"] if set(_ANSWER) <= {*attention} else []
    caption = f"The {_TOP} heads of every seed that attend to numbers most, with intervals: mean "
    caption += "over all tokens that see a number, and where it is measured at the last token alone"
    return Table(caption, header, rows, frozenset({0, 2}), folded=True)
