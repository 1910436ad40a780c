"""The failure out of domain, and how much of it a threshold or a set of components explains.

Definitions and the rule: docs/concepts/repair.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import roc_curve

from mechcore.ablation.effects.changes import own_ends
from mechcore.ablation.effects.net import LABEL, hurting, places
from mechcore.data.examples import ALL
from mechcore.evaluation.clusters import Sample
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.intervals import Interval, share_interval, weighted_sum
from mechcore.evaluation.p_values import ROUNDING
from mechcore.evaluation.recalibration import (
    across_labels,
    area_under_curve,
    effect_over_labels,
    fit_biases,
    folds_of,
    labels_of,
    reason_against,
    refitted,
    scores_of,
)
from mechcore.tables import PLACE, Column, N, Schema

PARTLY, MOSTLY = 0.25, 0.75
"""Shares of the gap from which on something explains it in part, and mostly."""

FAILURE = Schema(
    "failure",
    "Where the full model fails, by subset and label, and what a new threshold would give back.",
    (
        *(*PLACE, LABEL, N, *own_ends("accuracy", "share", "accuracy")),
        Column("wrong", "share", "share of the split's wrong answers", header="of all errors"),
        *own_ends("balanced_accuracy", "share", "of two labels or more", header="balanced"),
        Column("recalibrated", "share", "with one bias per label, fitted to other examples"),
        *own_ends("threshold", "points", "what that adds", header="given back by a threshold"),
        Column("ceiling", "share", "with the best biases for these examples"),
        Column("auc", "share", "area under the curve, where there are two labels", header="AUC"),
        Column("guessing", "share", "balanced accuracy of guessing"),
    ),
)


def failure_table(
    full: Mapping[str, Evaluation],
    labels: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Accuracy of the full model by subset and label; the columns of `FAILURE`.

    Answers, names of every example's label, and names of the data are by split.
    """
    rows = []
    for split, answers in full.items():
        n_wrong = max(1, int((~answers.correct).sum()))
        for subset, label, members in places(answers, labels[split]):
            part = answers.part(members)
            share = share_interval(part.correct, clusters=part.samples()[""])
            row: dict[str, Any] = {"data": names[split], "split": split, "subset": subset}
            row |= {"label": label, "n": len(part.correct), **share.columns("accuracy")}
            row["wrong"] = (~part.correct).sum() / n_wrong
            rows.append(row | (_calibration(part, n_resamples, seed) if label == ALL else {}))
    return FAILURE.frame(rows)


def _calibration(part: Evaluation, n_resamples: int, seed: int) -> dict[str, float]:
    """Balanced accuracy, and what biases make of it; nothing where there is one label."""
    correct = part.correct_classes.numpy()
    kinds, label = labels_of(correct)
    if len(kinds) < 2:
        return {}
    options: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
    sample = part.samples()[""]
    right = np.stack([np.zeros(len(label)), part.correct])
    (own,) = effect_over_labels(right, label, sample).intervals(**options)
    figures = own.columns("balanced_accuracy") | {"guessing": 1 / len(kinds)}
    if reason_against(correct):
        return figures
    logits = part.logits.numpy().astype(float)
    scores = scores_of(logits, kinds)
    right[0] = part.correct
    right[1] = refitted(scores[None], label, folds_of(label, seed, part.clusters))
    clusters = across_labels(Sample.of(part.clusters, len(label)), label)
    (change,) = effect_over_labels(right, label, clusters).drawn(sample).intervals(**options)
    figures |= change.columns("threshold") | {"recalibrated": own.mean + change.mean}
    fitted = (scores + fit_biases(scores[None], label)).argmax(-1) == label
    ceiling = np.mean([fitted[label == i].mean() for i in range(len(kinds))])
    if len(kinds) == 2:
        figures["auc"] = area_under_curve(logits, correct)
        wrong, hits, _ = roc_curve(label, scores[:, 1] - scores[:, 0])
        ceiling = ((1 + hits - wrong) / 2).max()
    return figures | {"ceiling": max(float(ceiling), figures["recalibrated"])}


# -- what explains it -----------------------------------------------------------------------------


class Gap(NamedTuple):
    """Accuracy, balanced if known, in domain less that out of domain, with its interval; shares."""

    inside: float
    outside: float
    size: float
    low: float
    high: float
    balanced: bool


def gap_of(failure: pd.DataFrame) -> Gap:
    """The gap, with an interval from those of both splits."""
    first = failure[failure["subset"] == ALL].drop_duplicates("split").set_index("split")
    balanced = bool(first["balanced_accuracy"].notna().all())
    name = "balanced_accuracy" if balanced else "accuracy"
    columns = [f"{name}{end}" for end in ("", "_low", "_high")]
    rows = first.loc[["id", "ood"], columns].to_numpy(float).tolist()
    inside, outside = (Interval(*row) for row in rows)
    gap = weighted_sum([inside, outside], [1, -1])
    return Gap(inside.mean, outside.mean, gap.mean, gap.low, gap.high, balanced)


class Explanation(NamedTuple):
    """What explains a failure: ``"none"`` if none is shown; the other share is the runner-up's."""

    kind: Literal["none", "threshold", "components", "unexplained"]
    share: float = 0.0
    name: str = ""
    other: float = 0.0


def explanation(failure: pd.DataFrame, sets: pd.DataFrame, least: float = 0.01) -> Explanation:
    """What explains the failure of `failure_table`, given `net_table` and the least gap."""
    gap = gap_of(failure)
    if not gap.low > 0 or gap.size < least - ROUNDING:
        return Explanation("none")
    harmful = hurting(sets)
    whole = failure[(failure["subset"] == ALL) & (failure["split"] == "ood")].iloc[0]
    given_back = whole["recalibrated"] - max(whole["balanced_accuracy"], whole["guessing"])
    moved = float(given_back) / gap.size if given_back > 0 else 0.0  # not where it is unknown
    worst = float(harmful.iloc[0]["net"]) / gap.size if len(harmful) else 0.0
    share, other = min(1.0, max(moved, worst)), min(1.0, moved, worst)
    if share < PARTLY:
        return Explanation("unexplained", share)
    if moved >= worst:
        return Explanation("threshold", share, other=other)
    return Explanation("components", share, harmful.iloc[0]["set"], other)
