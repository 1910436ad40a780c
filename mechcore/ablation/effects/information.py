"""Changes from ablating each set, in information and by moving the threshold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import Unpack

from mechcore.ablation.effects.changes import SET, SIZE, Ablations, own_ends, p_column, place
from mechcore.ablation.sets import Cut
from mechcore.errors import InputError
from mechcore.evaluation.intervals import Sample, Statistics, degrees_of_freedom
from mechcore.evaluation.p_values import adjusted_p
from mechcore.evaluation.recalibration import Effect, decompose, reason_against
from mechcore.tables import CLUSTERS, PLACE, Column, N, Schema

FIGURES = {
    "balanced_accuracy": "change in balanced accuracy, the sum of information and threshold",
    "information": "change in balanced accuracy after one bias per label is refitted",
    "threshold": "the rest, which moving the threshold between the labels undoes",
    "shift": "change in how often the label whose share changes most is predicted, labels weighed "
    "alike; p and interval are corrected for the choice of the label",
    "auc": "change in the area under the ROC curve of the margin, for two labels",
}
CORRECTED = "corrected over the sets of a subset (Benjamini-Hochberg)"


def _change_columns(figure: str, meaning: str) -> tuple[Column, ...]:
    change = f"{figure}_change"
    return (
        *own_ends(change, "points", meaning, populations=True),
        Column(f"{change}_se", "share", f"standard error of {change}", shown="bare"),
        p_column(f"{figure}_p", f"p of {change} being 0, consistent with its interval"),
        p_column(f"{figure}_p_adjusted", CORRECTED),
    )


REASON = Column("reason", "text", "why values or their intervals are missing, if they are")
INFORMATION = Schema(
    "information",
    "Changes from ablating each set, in information and by a shifted threshold, on every subset "
    "and group of subsets; negative: worse without it.",
    (
        *(SET, SIZE, *PLACE, N, *CLUSTERS),
        Column("df", "number", "of standard errors over clusters", optional=True),
        *(column for described in FIGURES.items() for column in _change_columns(*described)),
        REASON,
    ),
)


def with_information(schema: Schema, name: str, meaning: str, *more: Column) -> Schema:
    """A schema of changes with those of `INFORMATION`, see `beside_changes`."""
    own = (column for column in INFORMATION.columns if column.name not in schema.names)
    return schema.named(name, meaning, *more, *(replace(column, optional=True) for column in own))


def beside_changes(information: pd.DataFrame, changes: pd.DataFrame) -> pd.DataFrame:
    """Changes in information and, except on groups of subsets, in accuracy and margin."""
    both = information.columns.intersection(changes.columns)
    table = information.merge(changes, "left", [*both])
    return table[[*changes, *(name for name in information if name not in both)]]


def information_table(
    ablations: Ablations,
    groups: Mapping[str, Sequence[str]] | None = None,
    *,
    subsets: Collection[str] | None = None,
    **statistics: Unpack[Statistics],
) -> pd.DataFrame:
    """Changes of every set in information and by a shifted threshold; the columns of `INFORMATION`.

    ``groups`` are subsets to pool under a name, with one threshold for all; ``subsets`` says which
    of both to list. The ``seed`` is also that of the folds.

    Raises:
        InputError: a group names an unknown subset, or logits were not kept.
    """
    rows: list[dict[str, Any]] = []
    for subset, members in ablations.full.groups(groups):
        if subsets is not None and subset not in subsets:
            continue
        correct = ablations.full.correct_classes.numpy()[members]
        samples = ablations.full.samples(members)
        clusters = next((s for s in samples.values() if s.clusters is not None), Sample())
        reason = reason_against(correct)
        placed = [place(ablations, str(s), len(s), subset, members) for s in ablations.without]
        if placed and not reason:
            full = ablations.full.logits.numpy()[members]
            without = np.stack([_logits(ablations, s)[members] for s in ablations.without])
            parts = decompose(
                full, without, correct, clusters=clusters, seed=statistics.get("seed", 0)
            )
            effects = (parts.accuracy, parts.information, parts.threshold, parts.shift, parts.auc)
            for figure, effect in zip(FIGURES, effects, strict=True):
                if effect is None:
                    continue
                columns = _columns(figure, effect, samples, statistics)
                for row, *values in zip(placed, *columns.values(), strict=True):
                    row.update(zip(columns, values, strict=True))
            sample = parts.accuracy.drawn(samples[""]).sample
            reason = sample.reason
            if sample.clusters is not None:
                sizes = np.unique(sample.clusters, return_counts=True)[1].astype(float)
                df = float("nan") if reason else degrees_of_freedom(sizes)
                placed = [row | {"df": df} for row in placed]
        rows += [row | {"reason": reason} for row in placed]
    return INFORMATION.frame(rows)


def _logits(ablations: Ablations, cut: Cut) -> np.ndarray:
    logits = ablations.without[cut].logits
    if logits is None:
        raise InputError(
            f"information: the logits without {cut} were not kept because the classes are a "
            "whole vocabulary; give the data's labels answer words"
        )
    return logits


def _columns(
    figure: str, effect: Effect, samples: Mapping[str, Sample], statistics: Statistics
) -> dict[str, Sequence[float] | np.ndarray]:
    answers = figure != "auc"
    columns: dict[str, Sequence[float] | np.ndarray] = {f"{figure}_change": effect.changes}
    for whose, sample in samples.items():
        intervals = effect.drawn(sample).intervals(answers=answers, **statistics)
        columns[f"{figure}_change_{whose}low"] = [interval.low for interval in intervals]
        columns[f"{figure}_change_{whose}high"] = [interval.high for interval in intervals]
    effect = effect.drawn(samples[""])
    p = effect.p_values(answers=answers)
    return columns | {
        f"{figure}_change_se": effect.errors(answers=answers),
        f"{figure}_p": p,
        f"{figure}_p_adjusted": adjusted_p(p, "benjamini-hochberg"),
    }
