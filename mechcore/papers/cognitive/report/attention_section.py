"""The section of a run on the cognitive task on attention to the numbers of the prompt."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.attention import ATTENTION, ATTENTION_DROP
from mechcore.papers.cognitive.report.arms import (
    basis,
    by_arm,
    by_model,
    fills_of,
    of_models,
)
from mechcore.papers.cognitive.report.figures import attention_and_drop, attention_by_layer
from mechcore.papers.cognitive.report.summary import CLAIMS
from mechcore.report.blocks import (
    Block,
    Gallery,
    Paragraph,
    Section,
    Shown,
    Table,
    not_run,
    table_of,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import strongest
from mechcore.tables import COMPONENT

HEAD = COMPONENT.called("head")
_TOP = 5
"""Heads of a model in a table."""


def attention_section(run: RunFolder, gallery: Gallery) -> Section:
    """How much heads attend to numbers, and whether those are the heads that matter."""
    section_id, title = "number-attention", "Attention to the numbers"
    attention = run.filled("cognitive_attention")
    if attention is None:
        return not_run(section_id, title, "the measure of attention to number tokens")
    ablation, drop = run.filled("cognitive_ablation"), run.filled("cognitive_attention_drop")
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
    caption = "Correlation over heads of attention to numbers with the drop, and attention to "
    caption += "numbers (times uniform): mean of the first layer, of all others, and of all heads "
    shown = ["arm", "seed", "fill", "n_heads", "rho", "p"]
    shown += ["first_layer_ratio", "other_ratio", "top_ratio"]
    schema = of_models(ATTENTION_DROP)
    yield table_of(by_arm(table), schema, f"{caption}weighted by their drop", shown)


def _attending(attention: pd.DataFrame) -> Table:
    caption = f"The {_TOP} heads of every seed that attend to numbers most, with intervals: mean "
    caption += "over all tokens that see a number, and where it is measured at the last token alone"
    rows = by_model(strongest(attention, ["arm", "seed"], "ratio", _TOP))
    shown: list[Shown] = ["arm", "seed", HEAD, "mass", "uniform", "ratio", "answer_mass"]
    schema = of_models(ATTENTION)
    return table_of(rows, schema, caption, [*shown, "answer_uniform"], folded=True)
