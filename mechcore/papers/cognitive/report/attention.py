"""The section of a run on the cognitive task on attention to the numbers of the prompt."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from mechcore.papers.cognitive.attention import ATTENTION, ATTENTION_CHANGE
from mechcore.papers.cognitive.report.arms import (
    CLAIMS,
    arm_name,
    arms_of,
    basis,
    by_arm,
    by_model,
    fills_of,
    of_models,
)
from mechcore.papers.pages import TOP, seed_tables
from mechcore.papers.seeds import rows_of
from mechcore.report.blocks import Block, Drawing, missing, table_of
from mechcore.report.drawing import (
    GREY,
    MAX_WIDTH,
    draw_by_layer,
    layer_bar,
    layer_norm,
    new_figure,
    styled,
)
from mechcore.report.run_folder import RunFolder


@CLAIMS.section(
    "number-attention",
    "Attention to the numbers",
    "the measure of attention to number tokens",
    "cognitive_attention",
    "cognitive_attention_change",
)
def number_attention(
    run: RunFolder, attention: pd.DataFrame, change: pd.DataFrame | None
) -> Iterator[Block]:
    """How much heads attend to numbers, and whether those are the heads that matter."""
    ablation, counts = run.filled("cognitive_ablation"), basis(attention, None)
    if ablation is not None:
        fill = fills_of(ablation)[0]
        yield Drawing(
            attention_and_change(attention, rows_of(ablation, fill=fill)),
            "attention-change",
            "A dot per head and seed: attention to number tokens, relative to uniform attention, "
            f"and the change in accuracy without the head ({fill} ablation). "
            f"{counts}",
            "Scatter plots, one per arm, of attention to numbers against the change without each "
            "head, coloured by layer; correlations are in the table below.",
        )
    if change is None:
        yield missing("the correlation of attention with changes")
    else:
        caption = "Correlation over heads of attention to numbers with the change, and attention "
        caption += "to numbers (times uniform): mean of the first layer, of all others, and of all "
        caption += "heads weighted by the cost of their ablation"
        columns = ["arm", "seed", "fill", "n_heads", "rho", "p"]
        columns += ["first_layer_ratio", "other_ratio", "top_ratio"]
        yield table_of(by_arm(change), of_models(ATTENTION_CHANGE), caption, columns)
    yield from seed_tables(
        by_model(attention),
        of_models(ATTENTION),
        ["arm", "component"],
        ["ratio", "mass", "uniform"],
        f"The {TOP} heads of each arm that attend to numbers most",
        largest_of=["arm"],
        by=lambda rows: rows["ratio"],
    )


@styled
def attention_and_change(attention: pd.DataFrame, changes: pd.DataFrame) -> Figure:
    """Attention to numbers against the change without the head, by one way of ablating."""
    head = ["arm", "seed", "component"]
    both = attention.merge(changes[[*head, "change"]], on=head)
    arms, layers = arms_of(both), layer_norm(both["layer"])
    figure = new_figure(min(1.6 + 2.9 * len(arms), MAX_WIDTH), 3.5)
    axes = figure.subplots(1, len(arms), sharex=True, sharey=True, squeeze=False)[0]
    for ax, arm in zip(axes, arms, strict=True):
        part = rows_of(both, arm=arm)
        ax.axvline(1, color=GREY, lw=0.9, ls=(0, (5, 2)))
        ax.axhline(0, color=GREY, lw=0.9)
        draw_by_layer(ax, part["ratio"], 100 * part["change"], part["layer"], layers)
        ax.set_title(arm_name(arm))
        ax.set_xlabel("attention to numbers (times uniform)")
    axes[0].set_ylabel("change without the head (points)")
    axes[0].set_xlim(left=0)
    layer_bar(figure, axes, layers)
    return figure
