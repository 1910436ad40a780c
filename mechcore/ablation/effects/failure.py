"""The failure out of domain, and how much of it a threshold or a set of components explains.

`FAILURE_SETS` says what is net, shown and confirmed; the rule is in docs/concepts/repair.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from mechcore.ablation.effects.changes import SET, Ablations, own_ends, p_column
from mechcore.ablation.effects.information import CORRECTED, information_table
from mechcore.ablation.sets import ComponentSet
from mechcore.data.examples import ALL
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.intervals import Interval, Sample, share_interval, weighted_sum
from mechcore.evaluation.p_values import ROUNDING, adjusted_p
from mechcore.evaluation.recalibration import (
    Effect,
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
from mechcore.tables import PLACE, SUBSET, Column, N, Schema
from mechcore.wording import SIGNIFICANT

PARTLY, MOSTLY = 0.25, 0.75
"""Shares of the gap from which on something explains it in part, and mostly."""

LEAST_EXAMPLES = 20
"""Fewer examples of a subset and label are not looked at by themselves."""

LABEL = Column("label", "text", "of the examples; ``all`` is every label")
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
FAILURE_SETS = Schema(
    "failure_sets",
    "Answers that ablating each set fixes and breaks out of domain, by subset and label. A net "
    "change is shown where it has the least size of interest and p_adjusted is under alpha.",
    (
        SET,
        Column("kind", "text", "``single``, ``pair`` or ``core``"),
        SUBSET,
        LABEL,
        Column("one_label", "flag", "whether it cannot be distinguished from a shifted threshold"),
        N,
        Column("fixed", "whole", "answers that are right without the set, and wrong with it"),
        Column("broken", "whole", "the other way round"),
        *own_ends("net", "points", "share fixed less share broken, labels weighed alike"),
        p_column("p", "of its being 0"),
        p_column("p_adjusted", CORRECTED),
        Column("halves_found", "whole", "halves of the examples, 0 to 2, that alone would show it"),
        Column("net_confirmed", "points", "net change on the halves opposite to these"),
        Column("confirmed", "flag", "whether it is shown, and holds opposite to each such half"),
        *own_ends("information", "points", "over all examples: change without the set"),
        Column("said", "text", "over all examples: the label whose share changes most"),
        Column("said_change", "points", "how much more often it is said without the set"),
    ),
)


def places(
    full: Evaluation, labels: Sequence[str]
) -> Iterator[tuple[str, str, Bool[np.ndarray, " example"]]]:
    """Subset, label and examples of all, each label, each subset and its labels, if not few."""
    of_label, every = np.asarray(labels, dtype=object), np.ones(len(labels), dtype=bool)
    for subset in dict.fromkeys([ALL, *full.subset_names]):
        rows = every if subset == ALL else full.subsets == subset
        there = list(dict.fromkeys(of_label[rows]))
        for label in [ALL, *there] if len(there) > 1 else there:
            chosen = rows if label == ALL else rows & (of_label == label)
            if chosen.sum() >= LEAST_EXAMPLES or subset == label == ALL:
                yield subset, label, chosen


def label_names(correct: Bool[np.ndarray, "example cls"], labels: Sequence[str]) -> list[str]:
    """The names of examples' labels, those of the same classes by one name."""
    number = labels_of(correct)[1]
    names: dict[int, str] = {}
    return [names.setdefault(int(i), name) for i, name in zip(number, labels, strict=True)]


def failure_table(
    full: Mapping[str, Evaluation],
    labels: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Accuracy of the full model by subset and label, as in `FAILURE`; all is given by split."""
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
    from sklearn.metrics import roc_curve

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


# -- sets of components ----------------------------------------------------------------------------


def net_table(
    ablations: Ablations,
    labels: Sequence[str],
    kinds: Mapping[ComponentSet, str],
    *,
    least: float = 0.01,
    n_resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Answers that ablating each set fixes and breaks; the columns of `FAILURE_SETS`.

    ``labels`` name every example's label, ``kinds`` are the sets to list with their kind, and
    ``least`` is the least effect of interest, a share.
    """
    full = ablations.full
    before = full.correct.astype(float)
    changes = np.stack([ablations.without[s].correct - before for s in kinds])
    number = labels_of(full.correct_classes.numpy())[1]
    half = folds_of(strata_of(full), seed, full.clusters, n_folds=2)
    tables = []
    for subset, label, rows in places(full, labels):
        whole = _effect(changes, number, full, rows)
        net, p = whole.changes, whole.p_values()
        shown = _shown(net, p, least)
        ends = whole.intervals(n_resamples=n_resamples, seed=seed)
        n_shown, opposite, held = _opposite(changes, number, full, rows, half, least)
        table = pd.DataFrame(
            {
                "set": list(map(str, kinds)),
                "kind": list(kinds.values()),
                "subset": subset,
                "label": label,
                "one_label": len(np.unique(number[rows])) == 1,
                "n": int(rows.sum()),
                "fixed": (changes[:, rows] > 0).sum(1),
                "broken": (changes[:, rows] < 0).sum(1),
                "net": net,
                "net_low": [end.low for end in ends],
                "net_high": [end.high for end in ends],
                "p": p,
                "p_adjusted": adjusted_p(p, "benjamini-hochberg"),
                "halves_found": n_shown,
                "net_confirmed": opposite,
                "confirmed": shown & (n_shown > 0) & held,
            }
        )
        tables.append(table)
    table = pd.concat(tables, ignore_index=True).reindex(columns=FAILURE_SETS.names)
    of_all = over_all(table).index
    table["said"] = table["said"].astype(object).fillna("")
    table.loc[of_all, ["said", "said_change"]] = _said(ablations, list(kinds), labels, number)
    if not reason_against(full.correct_classes.numpy()):
        sets = replace(ablations, without={one: ablations.without[one] for one in kinds})
        known = information_table(sets, subsets=[ALL], n_resamples=n_resamples, seed=seed)
        for end in ("", "_low", "_high"):
            table.loc[of_all, f"information{end}"] = known[f"information_change{end}"].to_numpy()
    return table


def strata_of(full: Evaluation) -> Int[np.ndarray, " example"]:
    """A number for the subset and label of every example."""
    number = labels_of(full.correct_classes.numpy())[1]
    kinds = np.stack([full.subsets.astype(str), number.astype(str)])
    return np.unique(kinds, axis=1, return_inverse=True)[1].reshape(-1)


def _shown(net: np.ndarray, p: np.ndarray, least: float) -> np.ndarray:
    small = np.abs(net) < least - ROUNDING
    return np.where(small, False, adjusted_p(p, "benjamini-hochberg") < SIGNIFICANT)


def _effect(
    changes: Float[np.ndarray, "set example"],
    number: Int[np.ndarray, " example"],
    full: Evaluation,
    rows: np.ndarray,
) -> Effect:
    """Changes of the mean over labels on some examples, against none."""
    label = np.unique(number[rows], return_inverse=True)[1].reshape(-1)
    values = np.concatenate([np.zeros((1, len(label))), changes[:, rows]])
    return effect_over_labels(values, label, across_labels(full.samples(rows)[""], label))


def _opposite(
    changes: np.ndarray,
    number: np.ndarray,
    full: Evaluation,
    rows: np.ndarray,
    half: np.ndarray,
    least: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By set: halves that show it, the mean change opposite to these, and whether all hold."""
    (n_shown, total), held = np.zeros((2, len(changes))), np.ones(len(changes), dtype=bool)
    on_half = [rows & (half == i) for i in (0, 1)]
    if any(len(np.unique(number[r])) < len(np.unique(number[rows])) for r in on_half):
        return n_shown.astype(int), np.full(len(changes), np.nan), held
    effects = [_effect(changes, number, full, r) for r in on_half]
    for here, there in (effects, effects[::-1]):
        if min(here.values.shape[1], there.values.shape[1]) < 2:
            continue
        claimed = _shown(here.changes, here.p_values(), least)
        p = np.where(claimed, there.p_values(), np.nan)
        holds = np.sign(here.changes) == np.sign(there.changes)
        holds &= adjusted_p(p, "benjamini-hochberg") < SIGNIFICANT
        held &= holds | ~claimed
        n_shown += claimed
        total += np.where(claimed, there.changes, 0)
    with np.errstate(invalid="ignore"):
        return n_shown.astype(int), total / n_shown, held


def _said(
    ablations: Ablations, sets: Sequence[ComponentSet], labels: Sequence[str], number: np.ndarray
) -> list[tuple[str, float]]:
    """Which label each set makes the model say how much less often, labels weighed alike."""
    correct = ablations.full.correct_classes.numpy()
    kinds = [correct[number == i][0] for i in range(number.max() + 1)]
    names = [labels[int(np.argmax(number == i))] for i in range(len(kinds))]

    def shares(logits: np.ndarray) -> np.ndarray:
        of_label = np.stack([classes[logits.argmax(-1)] for classes in kinds], axis=-1)
        return np.mean([of_label[number == i].mean(0) for i in range(len(kinds))], axis=0)

    before, said = shares(ablations.full.logits.numpy()), []
    for one in sets:
        change = shares(np.asarray(ablations.without[one].logits)) - before
        # Of equal changes, the label that is said more often.
        largest = int((np.abs(change) + 1e-12 * (change > 0)).argmax())
        said.append((names[largest], float(change[largest])))
    return said


def over_all(sets: pd.DataFrame) -> pd.DataFrame:
    """The rows of `net_table` over all examples; those of the only label where there is one."""
    whole = sets[sets["subset"] == ALL]
    return whole[whole["label"] == (ALL if (whole["label"] == ALL).any() else whole["label"])]


def hurting(sets: pd.DataFrame, *, beyond_threshold: bool = True) -> pd.DataFrame:
    """Rows of sets that are confirmed to hurt over all examples, those that hurt most first.

    Beyond the threshold are those without which information is not known to be lost.
    """
    whole = over_all(sets)
    only_moves = whole["information"] <= 0
    chosen = whole["confirmed"] & (whole["net"] > 0) & (only_moves != beyond_threshold)
    return whole[chosen].sort_values("net", ascending=False, kind="stable")


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
