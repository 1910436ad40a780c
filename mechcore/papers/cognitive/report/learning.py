"""Sections of a run on the cognitive task on its trainings, and on the models compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from mechcore.papers.cognitive.compare import CURVE, MODELS, SAMPLES, TRAINING
from mechcore.papers.cognitive.report.arms import (
    BASE,
    CLAIMS,
    arm_look,
    arm_name,
    arms_of,
    basis,
    by_arm,
    in_percent,
)
from mechcore.papers.pages import seed_tables
from mechcore.papers.seeds import rows_of, seed_name, seeds_in
from mechcore.report.blocks import Block, Drawing, Paragraph, Shown, missing, table_of
from mechcore.report.drawing import BLACK, draw_over_seeds, legend_below, new_figure, styled
from mechcore.report.run_folder import RunFolder
from mechcore.tables import Column
from mechcore.wording import DASH, count, listed, number, sparsity, whole

_MOST_TICKS = 9


@CLAIMS.section("learning", "Learning curves", "", "cognitive_curve", "cognitive_training")
def learning(
    run: RunFolder, curve: pd.DataFrame | None, training: pd.DataFrame | None
) -> Iterator[Block]:
    """Accuracy by number of training samples."""
    if curve is None:
        yield missing("the trainings on samples of several sizes")
    else:
        yield from _curves(run, curve)
    if training is not None:
        caption = f"All {count(len(training), 'training')}: the learning rate and step are chosen "
        caption += "by accuracy on development trials"
        shown = ["arm", "seed", "n", "learning_rate", "chosen", "steps", "last_step"]
        shown += ["dev_accuracy", "accuracy", "incongruent"]
        yield table_of(training, TRAINING, caption, shown, folded=True)


def _curves(run: RunFolder, curve: pd.DataFrame) -> Iterator[Block]:
    if (curve["n"] > 0).any():
        samples = run.filled("cognitive_samples")
        threshold = None if samples is None else float(samples["threshold"].iloc[0])
        yield Drawing(
            learning_curves(curve, threshold),
            "learning-curves",
            "Test accuracy, restricted to the two answers, by number of training samples (log "
            "scale). Thin lines are seeds, thick lines their mean. A model that ignores the "
            f"context can reach 75 % on all trials; {basis(curve, 'n_test')}",
            "Two line charts over the number of training samples: accuracy on all trials and on "
            "incongruent trials for each arm; the numbers are in the table below.",
        )
    yield from seed_tables(
        by_arm(curve.sort_values(["n", "seed"])),
        CURVE,
        ["arm", "n"],
        ["accuracy", "incongruent", "congruent", "unrestricted"],
        "Test accuracy by number of training samples (unrestricted: over the whole vocabulary)",
    )


@styled
def learning_curves(curve: pd.DataFrame, threshold: float | None = None) -> Figure:
    """Accuracy on all and on incongruent trials by number of samples, and seeds of each arm."""
    curve = in_percent(curve, "accuracy", "incongruent")
    figure = new_figure(9.6, 4.4)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    panels = (("accuracy", "all trials"), ("incongruent", "incongruent trials"))
    handles: dict[str, Line2D] = {}
    for ax, (column, title) in zip(axes, panels, strict=True):
        for arm in arms_of(curve):
            colour, marker = arm_look(arm)
            part = rows_of(curve, arm=arm)
            trained, level = part[part["n"] > 0], part.loc[part["n"] == 0, column]
            if len(level):
                label = f"{arm_name(arm)}, without samples"
                handles[label] = ax.axhline(level.mean(), color=colour, lw=1.6, label=label)
            if len(trained):
                handles |= draw_over_seeds(ax, trained, "n", column, arm_name(arm), colour, marker)
        ax.set_title(title)
        ax.set_xlabel("training samples")
        ax.grid(axis="y")
        handles |= _references(ax, column, threshold)
    _log_axis(axes[0], sorted(curve.loc[curve["n"] > 0, "n"].unique()))
    least = float(np.nanmin(curve[["accuracy", "incongruent"]].to_numpy()))
    axes[0].set_ylim(min(45.0, least - 3), 102)
    axes[0].set_ylabel("accuracy (%)")
    legend_below(figure, list(handles.values()), columns=3)
    return figure


def _references(ax: Axes, column: str, threshold: float | None) -> dict[str, Line2D]:
    """Chance, the accuracy on all trials of ignoring the context, and the threshold."""
    lines: list[tuple[float, Any, str]] = [
        (0.5, (0, (1, 1.5)), "50 %: chance (incongruent trials: context ignored)")
    ]
    if column == "accuracy":
        lines.append((0.75, (0, (5, 2)), "75 %: context ignored"))
        if threshold is not None and np.isfinite(threshold):
            lines.append((threshold, (0, (5, 1.5, 1, 1.5)), f"{sparsity(threshold)}: threshold"))
    return {
        label: ax.axhline(100 * value, color=BLACK, lw=0.9, ls=dashes, label=label, zorder=1)
        for value, dashes, label in lines
    }


def _log_axis(ax: Axes, sizes: Sequence[float]) -> None:
    """A tick for every size that was tried, of many sizes for some."""
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    shown = sizes[:: -(-len(sizes) // _MOST_TICKS)]
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.set_xticks(shown, labels=[whole(size) for size in shown])
    ax.set_xlim(sizes[0] / 1.35, sizes[-1] * 1.35)


@CLAIMS.section(
    "samples",
    "Samples to threshold",
    "the count of samples that reach the threshold",
    "cognitive_samples",
)
def samples(_: RunFolder, table: pd.DataFrame) -> Iterator[Block]:
    """How many samples reach the threshold."""
    arms = by_arm(table.groupby("arm", sort=False)["largest"].max().reset_index())
    texts = table["samples"].map(whole, na_action="ignore").fillna("not reached")
    reached = table.assign(text=texts).pivot(index="arm", columns="seed", values="text")
    reached = reached.reindex(arms["arm"]).fillna(DASH)
    by_seed = [(seed_name(seed), reached[seed].tolist()) for seed in seeds_in(table)]
    threshold = sparsity(table["threshold"].iloc[0])
    yield Paragraph(
        "The smallest of the tried numbers of training samples from which on test accuracy is at "
        f"least {threshold}. The true minimum lies between that size and the next smaller one."
    )
    caption = f"Samples to a test accuracy of {threshold}, by seed"
    yield table_of(arms, SAMPLES, caption, ["arm", "largest", *by_seed])


@CLAIMS.section(
    "models", "The compared models", "the choice of the models to compare", "cognitive_models"
)
def models(_: RunFolder, table: pd.DataFrame) -> Iterator[Block]:
    """The models that all further sections are of, and whether they are matched."""
    trained = (table["arm"] != BASE) & table["gap"].notna()
    yield from _matching(table[trained])
    rows = table.assign(gap=table["gap"].where(trained), matched=MODELS["matched"].texts(table))
    rows["matched"] = rows["matched"].where(trained, DASH)
    shown: list[Shown] = ["arm", "seed", "n", "learning_rate"]
    shown += [MODELS["accuracy"].called("test accuracy"), "incongruent", "unrestricted"]
    caption = "The models in all sections below; the gap is between the two trained "
    caption += "models of a seed"
    yield table_of(rows, MODELS, caption, [*shown, "gap", Column("matched", "text")])


def _matching(pairs: pd.DataFrame) -> Iterator[Paragraph]:
    if len(pairs) == 0:
        text = "There is at most one trained arm, so nothing is matched, and comparisons of two "
        yield Paragraph(f"{text}arms lack one of them.", note=True)
        return
    by_seed = pairs.groupby("seed")["matched"].all()
    text = f"The two trained models have matched accuracy in {by_seed.sum()} of "
    yield Paragraph(f"{text}{count(len(by_seed), 'seed')}.")
    left = [number(seed, 0) for seed in by_seed.index[~by_seed]]
    if left:
        seeds = f"seed {left[0]}" if len(left) == 1 else f"seeds {listed(left)}"
        text = f"In {seeds} the accuracies differ too much: the two models may differ in how well "
        yield Paragraph(f"{text}they do the task, not in how they do it.", note=True)
