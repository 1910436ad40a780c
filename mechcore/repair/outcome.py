"""Results of the ladder: accuracies, gains in balanced accuracy, and the recommended rung.

A gain is *shown* if its p, adjusted over the rungs (Holm), is below `SIGNIFICANT` and it has the
least size of interest. Its standard error is over examples and, with three or more runs, runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from mechcore.evaluation.intervals import Sample, degrees_of_freedom
from mechcore.evaluation.p_values import ROUNDING, adjusted_p
from mechcore.evaluation.recalibration import area_under_curve, effect_over_labels
from mechcore.repair import INSIDE, REPAIRED
from mechcore.repair.ladder import Labelled, Outcome
from mechcore.tables import Column, N, Schema, estimate
from mechcore.wording import ALL, SIGNIFICANT

BASELINES = {"none": "gain", "threshold": "over_threshold", "last-layer": "over_last_layer"}
"""Rungs that others are compared with, and columns of the differences."""
_COMPARED = ("random-heads",)  # never recommended

_RUNG = Column("rung", "text", "name of the repair")
_SIZE = Column("n_examples", "whole", "repair examples", header="repair examples")


def _gains() -> tuple[Column, ...]:
    columns: list[Column] = []
    for base, name in BASELINES.items():
        meaning = f"balanced accuracy less that of {base}, on the same examples"
        over = "over examples, draws and folds"
        low, high = f"{name}_low", f"{name}_high"
        columns += estimate(name, "points", meaning, low=low, high=high, over=over)
    return tuple(columns)


REPAIR = Schema(
    "repair",
    "Accuracy and gains of every rung of the ladder of repairs.",
    (
        _SIZE,
        _RUNG,
        Column("place", "text", "``repaired kinds``, ``held-out kinds`` or ``in domain``"),
        Column("label", "text", "of the examples; ``all`` weighs labels alike"),
        N,
        Column("runs", "whole", "draws and folds"),
        Column("accuracy", "share", "balanced over labels, mean over runs"),
        Column("auc", "share", "area under the curve, for two labels", header="AUC"),
        *_gains(),
        Column("p", "number", "of no gain over none", shown="small"),
        Column("p_adjusted", "number", "corrected over the rungs (Holm)", shown="small"),
        Column("shown", "text", "``gain`` or ``loss`` if shown, else empty"),
    ),
)
REPAIR_CHOICES = Schema(
    "repair_choices",
    "Settings chosen within the repair examples, by rung and run.",
    (
        _SIZE,
        _RUNG,
        Column("draw", "whole", "of repair examples"),
        Column("fold", "whole", "of subsets held out"),
        Column("rate", "number", "learning rate", shown="exact"),
        Column("penalty", "number", "weight of the penalty", shown="exact"),
        Column("steps", "whole", "of training; 0: unchanged"),
        Column("loss", "number", "on held-out folds of the repair examples, with the guard"),
        Column("before", "number", "the same for the unchanged model"),
        Column(
            "penalty_random", "number", "by folds of random examples", optional=True, shown="exact"
        ),
        Column("note", "text", "components removed, or trained"),
    ),
)
REPAIR_GATES = Schema(
    "repair_gates",
    "Gates as a diagnosis: components turned down or up, over runs, against permuted labels.",
    (
        Column("component", "text", "name of the head or MLP"),
        Column("gate", "number", "mean over runs; 1: unchanged, 0: replaced by its mean"),
        Column("low", "number", "lowest of all runs"),
        Column("high", "number", "highest of all runs"),
        Column("permuted", "number", "farthest from 1 with permuted labels"),
        Column("sign", "text", "``down`` or ``up`` where every run exceeds all permuted ones"),
    ),
)
REPAIR_TRANSFER = Schema(
    "repair_transfer",
    "Change in accuracy on each subset when the last layer is repaired on a single subset.",
    (
        Column("repaired", "text", "the subset repaired"),
        Column("tested", "text", "the subset tested, on unseen examples"),
        Column("change", "points", "accuracy less that of the unchanged model"),
    ),
)


def repair_table(
    runs: Sequence[Outcome],
    outside: Labelled,
    inside: Labelled,
    labels: dict[str, Sequence[str]],
    *,
    least: float = 0.01,
) -> pd.DataFrame:
    """The columns of `REPAIR`: accuracies and gains of all rungs; ``labels`` are by split."""
    tables = []
    for n in dict.fromkeys(outcome.run.n_examples for outcome in runs):
        some = [outcome for outcome in runs if outcome.run.n_examples == n]
        for place in dict.fromkeys(place for outcome in some for place in outcome.run.tested):
            of, split = (inside, "id") if place == INSIDE else (outside, "ood")
            label_names = np.asarray(labels[split], dtype=object)
            rows = [outcome.run.tested.get(place, np.array([], int)) for outcome in some]
            every = np.unique(np.concatenate(rows))
            for label in (ALL, *dict.fromkeys(label_names[every])):
                wanted = every if label == ALL else every[label_names[every] == label]
                table = pd.DataFrame(_rows(some, place, of, wanted))
                table["p_adjusted"] = adjusted_p(table["p"].to_numpy(), "holm")
                shown = (table["p_adjusted"] < SIGNIFICANT) & (
                    table["gain"].abs() >= least - ROUNDING
                )
                sign = np.where(table["gain"] > 0, "gain", "loss")
                table["shown"] = np.where(shown, sign, "")
                tables.append(table.assign(n_examples=n, place=place, label=label))
    return pd.concat(tables, ignore_index=True).reindex(columns=REPAIR.names)


def _rows(some: Sequence[Outcome], place: str, of: Labelled, wanted: np.ndarray) -> list[Any]:
    """One row per rung, on some examples of a place."""
    label, correct = of.label[wanted], of.correct.numpy()
    position = {int(row): i for i, row in enumerate(wanted)}
    right: dict[str, np.ndarray] = {}
    auc: dict[str, list[float]] = {}
    for r, outcome in enumerate(some):
        tested = outcome.run.tested.get(place, np.array([], int))
        kept = np.isin(tested, wanted)
        at = [position[int(row)] for row in tested[kept]]
        for name, answers in outcome.logits.items():
            values = right.setdefault(name, np.full((len(some), len(wanted)), np.nan))
            if at:
                logits = answers[place][kept]
                values[r, at] = correct[tested[kept], logits.argmax(-1)]
                auc.setdefault(name, []).append(area_under_curve(logits, correct[tested[kept]]))
    there = ~np.isnan(right["none"]).all(0)
    rows = []
    for name, values in right.items():
        row = {"rung": name, "n": int(there.sum()), "runs": len(some)}
        row |= {"accuracy": float(np.nanmean([_balanced(v, label) for v in values]))}
        row |= {"auc": float(np.mean(auc[name]))}
        for base, column in BASELINES.items():
            if base in right and name != base:
                row |= _difference(values - right[base], label, of, wanted, there, column)
        rows.append(row)
    return rows


def _balanced(values: np.ndarray, label: np.ndarray) -> float:
    known = ~np.isnan(values)
    means = [values[known & (label == i)].mean() for i in np.unique(label[known])]
    return float(np.mean(means)) if means else float("nan")


def _difference(
    values: np.ndarray,
    label: np.ndarray,
    of: Labelled,
    wanted: np.ndarray,
    there: np.ndarray,
    name: str,
) -> dict[str, float]:
    """A mean difference in balanced accuracy, its interval, and the p of no difference."""
    per_run = np.array([_balanced(v, label) for v in values])
    per_run = per_run[~np.isnan(per_run)]
    mean, n = float(per_run.mean()), int(there.sum())
    with np.errstate(invalid="ignore"):
        of_example = np.nansum(values, 0) / (~np.isnan(values)).sum(0)
    number = np.unique(label[there], return_inverse=True)[1].reshape(-1)
    effect = effect_over_labels(
        np.stack([np.zeros(n), of_example[there]]), number, _sample(of, wanted[there])
    )
    error, df = float(effect.errors()[0]), float(n - 1)
    if effect.sample.clusters is not None:
        sizes = np.unique(effect.sample.clusters, return_counts=True)[1].astype(float)
        df = degrees_of_freedom(sizes) if len(sizes) > 1 else float("nan")
    if len(per_run) > 2:
        over = float(per_run.std(ddof=1)) / len(per_run) ** 0.5
        parts = error**4 / df + over**4 / (len(per_run) - 1)
        df = (error**2 + over**2) ** 2 / parts if parts > 0 else df
        error = float(np.hypot(error, over))
    reach = float(stats.t.ppf(0.975, df)) * error
    row = {name: mean, f"{name}_low": mean - reach, f"{name}_high": mean + reach}
    if name == BASELINES["none"]:
        row["p"] = float(2 * stats.t.sf(abs(mean) / error, df)) if error > 0 else 1.0
    return row


def _sample(of: Labelled, rows: np.ndarray) -> Sample:
    examples = of.data.examples
    clusters = examples.clusters
    if clusters is None:
        return Sample()
    if examples.population == "texts":
        return Sample(strata=of.subset[rows])
    return Sample.of(clusters[rows], len(rows))


def choices_table(runs: Sequence[Outcome]) -> pd.DataFrame:
    """The columns of `REPAIR_CHOICES`."""
    rows = [
        {"n_examples": o.run.n_examples, "rung": name, "draw": o.run.draw, "fold": o.run.fold}
        | vars(choice)
        for o in runs
        for name, choice in o.choices.items()
        if name != "none"
    ]
    return pd.DataFrame(rows, columns=REPAIR_CHOICES.names)


def gates_table(runs: Sequence[Outcome], components: Sequence[Any], index: Any) -> pd.DataFrame:
    """The columns of `REPAIR_GATES`, farthest from 1 first; ``index`` finds a component's gate."""
    known = [(o.gates, o.permuted) for o in runs if o.gates is not None and o.permuted is not None]
    rows = []
    for component in components if known else ():
        own, mixed = np.array([[of[index(component)] for of in both] for both in known]).T
        farthest = np.abs(mixed - 1).max()
        sign = "down" * bool((own < 1 - farthest).all()) + "up" * bool((own > 1 + farthest).all())
        permuted = mixed[int(np.abs(mixed - 1).argmax())]
        rows.append([str(component), own.mean(), own.min(), own.max(), permuted, sign])
    table = pd.DataFrame(rows, columns=REPAIR_GATES.names)
    order = (table["gate"].astype(float) - 1).abs().sort_values(ascending=False, kind="stable")
    return table.loc[order.index].reset_index(drop=True)


def recommended(table: pd.DataFrame) -> str:
    """The cheapest rung shown to gain on repaired kinds and not shown to lose in domain, or ""."""
    whole = table[table["label"] == ALL].set_index(["place", "rung"])["shown"]
    for rung in table["rung"].unique():
        if rung != "none" and rung not in _COMPARED:
            inside = whole.get((INSIDE, rung), "")
            if whole.get((REPAIRED, rung), "") == "gain" and inside != "loss":
                return str(rung)
    return ""
