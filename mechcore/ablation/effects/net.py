"""Answers that ablating sets of components fixes and breaks, by subset and label.

`FAILURE_SETS` says what is net, shown and confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from mechcore.ablation.cuts import ComponentSet
from mechcore.ablation.effects.changes import SET, Ablations, own_ends, p_column
from mechcore.ablation.effects.information import CORRECTED, information_table
from mechcore.data.examples import ALL
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.p_values import ROUNDING, adjusted_p
from mechcore.evaluation.recalibration import (
    Effect,
    across_labels,
    effect_over_labels,
    folds_of,
    labels_of,
    reason_against,
)
from mechcore.tables import SUBSET, Column, N, Schema
from mechcore.wording import SIGNIFICANT

LEAST_EXAMPLES = 20
"""Fewer examples of a subset and label are not looked at by themselves."""

LABEL = Column("label", "text", "of the examples; ``all`` is every label")
FAILURE_SETS = Schema(
    "failure_sets",
    "Answers that ablating each set fixes and breaks out of domain, by subset and label. A net "
    "change is shown where it has the least size of interest and p_adjusted is under alpha.",
    (
        SET,
        Column("kind", "text", "``single``, ``pair`` or ``core``"),
        SUBSET,
        LABEL,
        Column("one_label", "flag", "whether it cannot be told from a moved threshold"),
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


class Place(NamedTuple):
    """Some examples: those of a subset and a label, each of which may be all."""

    subset: str
    label: str
    rows: Bool[np.ndarray, " example"]


def places(full: Evaluation, labels: Sequence[str]) -> Iterator[Place]:
    """All examples, each label, each subset, and the labels of each; without very small ones."""
    of_label, every = np.asarray(labels, dtype=object), np.ones(len(labels), dtype=bool)
    for subset in dict.fromkeys([ALL, *full.subset_names]):
        rows = every if subset == ALL else full.subsets == subset
        there = list(dict.fromkeys(of_label[rows]))
        for label in [ALL, *there] if len(there) > 1 else there:
            chosen = rows if label == ALL else rows & (of_label == label)
            if chosen.sum() >= LEAST_EXAMPLES or subset == label == ALL:
                yield Place(subset, label, chosen)


def label_names(correct: Bool[np.ndarray, "example cls"], labels: Sequence[str]) -> list[str]:
    """The names of examples' labels, those of the same classes by one name."""
    number = labels_of(correct)[1]
    names: dict[int, str] = {}
    return [names.setdefault(int(i), name) for i, name in zip(number, labels, strict=True)]


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
    for place in places(full, labels):
        rows = place.rows
        whole = _effect(changes, number, full, rows)
        net, p = whole.changes, whole.p_values()
        shown = _shown(net, p, least)
        ends = whole.intervals(n_resamples=n_resamples, seed=seed)
        n_shown, opposite, held = _opposite(changes, number, full, rows, half, least)
        table = pd.DataFrame(
            {
                "set": list(map(str, kinds)),
                "kind": list(kinds.values()),
                "subset": place.subset,
                "label": place.label,
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
