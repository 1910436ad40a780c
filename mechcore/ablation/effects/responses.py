"""Which features of texts the changes in margin without sets depend on, within a label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from mechcore.ablation.effects import changes
from mechcore.ablation.effects.changes import Ablations, own_ends
from mechcore.ablation.effects.failure import LABEL, LEAST_EXAMPLES, label_names
from mechcore.ablation.sets import ComponentSet
from mechcore.evaluation.agreement import partial_values, rank_values
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.intervals import Sample, mean_intervals, ratio_intervals
from mechcore.evaluation.p_values import only_rounding, p_among, paired_p, selective_p
from mechcore.evaluation.recalibration import folds_of
from mechcore.tables import CLUSTERS, PLACE, Column, N, Schema
from mechcore.wording import ALL, FULL, INCONCLUSIVE, NOT_SUPPORTED, PLACES, SIGNIFICANT, SUPPORTED

CORE, COMPONENT, SUBNETWORK = "core", "component", "subnetwork"
LEAST_SHARE = 0.1
"""Share of the variance that features have to explain if the core is to compute them."""
PERMUTATIONS = 99

Margins: TypeAlias = Float[np.ndarray, "set example"]
Labels: TypeAlias = Int[np.ndarray, " example"]
Figures: TypeAlias = Iterator[tuple[int, dict[str, Any]]]
"""Number of the set, and columns."""

_P = "of rho and partial, the larger; 1 if they differ in sign; of the share of all features, with "
_P += "texts permuted within labels"
_ADJUSTED = "p of rho, corrected for features, labels, splits and sets of a kind as in ``roles``"
RESPONSES = Schema(
    "responses",
    "How the change in margin without a set, or the full model's margin, depends on each feature "
    "of texts that varies, within a label; and over all labels, how much of its variance within "
    "labels each feature, the best two, and all explain, by cross-validation.",
    (
        *(changes.SET, Column("kind", "text", f"{FULL}, {CORE}, {COMPONENT} or {SUBNETWORK}")),
        *(changes.SIZE, *PLACE, N, *CLUSTERS, LABEL),
        Column("classes", "text", "numbers of the classes that are correct for the label"),
        Column("feature", "text", "see `mechcore.data.features`; or two of them, or ``all``"),
        *own_ends("share", "share", "explained of the variance", header="explained"),
        *own_ends("rho", "number", "Spearman's rank correlation", signed=True),
        *own_ends("partial", "number", "rho, given the full model's margin", signed=True),
        *own_ends("slope", "number", "for a standard deviation of it", unit="nats", signed=True),
        changes.p_column("p", _P),
        changes.p_column("p_adjusted", _ADJUSTED),
    ),
)


def response_rows(
    ablations: Ablations,
    kinds: Mapping[ComponentSet, str],
    features: pd.DataFrame,
    labels: Sequence[str],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Rows of `RESPONSES` for `with_adjusted_p` on a split, without labels of few examples.

    ``kinds`` are the sets to list with their kind, ``features`` those of
    `mechcore.data.features.feature_table`, and ``labels`` name every example's label.
    """
    names = pd.Series(label_names(ablations.full.correct_classes.numpy(), labels))
    enough = np.flatnonzero(names.map(names.value_counts()) >= LEAST_EXAMPLES)
    if not len(enough):
        return
    ablations, features, names = ablations.part(enough), features.iloc[enough], names.iloc[enough]
    full, (number, known) = ablations.full, pd.factorize(names)
    y = np.stack([full.margin, *(ablations.changes(one, "margin") for one in kinds)])
    y = np.where(only_rounding(y)[:, None], 0.0, y)
    grouped = features.groupby(number)
    x = (features - grouped.transform("mean")) / grouped.transform("std", ddof=0)
    x = x.where(grouped.transform("nunique") > 1, 0.0)
    whose = [(FULL, FULL, 0), *((str(s), kind, len(s)) for s, kind in kinds.items())]

    def about(i: int, label: str, rows: np.ndarray) -> dict[str, Any]:
        name, kind, size = whose[i]
        return changes.place(ablations, name, size, ALL, rows) | {"kind": kind, "label": label}

    for label, name in enumerate(known):
        rows = number == label
        correct = np.flatnonzero(full.correct_classes[rows][0])
        options: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
        options["clusters"] = full.samples(rows)[""]
        for i, row in _correlations(x[rows], y[:, rows], **options):
            yield about(i, name, rows) | {"classes": " ".join(map(str, correct))} | row
    for i, row in _shares(x, y, number, full, seed):
        yield about(i, ALL, number >= 0) | {"classes": ""} | row


def _correlations(x: pd.DataFrame, y: Margins, clusters: Sample, **options: Any) -> Figures:
    """Of every set with every feature; the first set is the full model's margin itself."""
    y = y - y.mean(1, keepdims=True)
    with_margin = rank_values(y[0], y)
    for name in x.columns[x.any()]:
        z = x[name].to_numpy()
        rho, slope = rank_values(z, y), (y * z).mean(1, keepdims=True)
        partial = partial_values(rho, rho[:1], with_margin)
        partial[0] = np.nan
        values = np.concatenate([rho, partial, slope + z * (y - slope * z)])
        intervals = mean_intervals(values, clusters=clusters, **options)
        p, given = (paired_p(part, clusters=clusters) for part in (rho, partial))
        p[1:] = np.where(rho.mean(1) * partial.mean(1) < 0, 1.0, np.maximum(p, given))[1:]
        for i in range(len(y)):
            row = {"feature": name, "p": p[i]}
            for k, what in enumerate(("rho", "partial", "slope")):
                row |= intervals[i + k * len(y)].columns(what)
            yield i, row


def _shares(x: pd.DataFrame, y: Margins, number: Labels, full: Evaluation, seed: int) -> Figures:
    """Of the variance of every set within labels, by each feature, the best two, and all."""
    every, generator = [*x.columns[x.any()]], np.random.default_rng(seed)
    fold, sample = folds_of(number, seed, full.clusters), full.samples()[""]
    pairs = [*combinations(every, 2)]
    sets = {name: [name] for name in every} | {" and ".join(two): [*two] for two in pairs}

    def errors(names: Sequence[str], of: Margins = y) -> Margins:
        """Squared, of least squares with a ridge of 1, fitted to the other folds of a label."""
        values, left = x[[*names]].to_numpy(), np.full(of.shape, np.nan)
        for label, k in {*zip(number, fold, strict=True)}:
            train, test = (number == label) & (fold != k), (number == label) & (fold == k)
            if train.any():
                z, rest = values - values[train].mean(0), of - of[:, train].mean(1, keepdims=True)
                square = z[train].T @ z[train] + np.eye(len(names))
                fit = np.linalg.solve(square, z[train].T @ rest[:, train].T)
                left[:, test] = (rest[:, test] - (z[test] @ fit).T) ** 2
        return left

    before, by_chance = errors(()), []
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(PERMUTATIONS):
            other = y[:, _order(sample.clusters, number, generator)]
            by_chance.append(1 - errors(every, other).sum(1) / errors((), other).sum(1))
    shares = {
        name: ratio_intervals(before - errors(names), before, clusters=sample)
        for name, names in (sets | {ALL: every}).items()
    }
    for i in range(len(y)):
        best = sorted([*sets][len(every) :], key=lambda name: -shares[name][i].mean)[:1]
        for name in (*every, *best, ALL):
            row = {"feature": name} | shares[name][i].columns("share")
            if name == ALL and np.isfinite(row["share"]):
                row["p"] = p_among(row["share"], np.array(by_chance)[:, i])
            yield i, row


def _order(clusters: Labels | None, number: Labels, generator: np.random.Generator) -> Labels:
    """A random order within labels, with examples of a cluster next to one another as before."""
    cluster = np.arange(len(number)) if clusters is None else clusters
    drawn = generator.permutation(cluster.max() + 1)[cluster]
    order = np.empty(len(number), dtype=int)
    order[np.lexsort((cluster, number))] = np.lexsort((drawn, number))
    return order


def with_adjusted_p(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The table `RESPONSES` of the same sets' `response_rows` on one or both splits."""
    table = RESPONSES.frame(rows).assign(p_adjusted=np.nan)
    for _, part in table[table["label"] != ALL].groupby("kind"):
        p = part["p"].to_numpy(float).reshape(-1, part["set"].nunique())
        table.loc[part.index, "p_adjusted"] = selective_p(p.T).T.ravel()
    return table


def strongest(table: pd.DataFrame) -> pd.DataFrame:
    """The strongest response shown of every set on every split, the strongest of all first."""
    shown = table[table["p_adjusted"] < SIGNIFICANT]
    shown = shown.sort_values("rho", key=lambda rho: -rho.abs(), kind="stable")
    return shown.drop_duplicates(["kind", "set", "split"])


def verdict(table: pd.DataFrame) -> tuple[str, str]:
    """Whether the core computes shallow features, by the rule of the page on responses, and why."""
    core = table[table["kind"] == CORE]
    share: Any = core[core["feature"] == ALL].set_index("split").reindex([*PLACES])
    shown = core[core["p_adjusted"] < SIGNIFICANT]
    both: Any = shown[shown["split"] == "id"].merge(shown[shown["split"] == "ood"], on="feature")
    pairs = zip(both["classes_x"], both["classes_y"], strict=True)
    both = both[np.array([not {*a.split()}.isdisjoint(b.split()) for a, b in pairs], dtype=bool)]
    alike = both.loc[both["rho_x"] * both["rho_y"] > 0, "feature"].unique().tolist()
    some, few = f"{LEAST_SHARE:.0%} of the variance", share["share_high"] < LEAST_SHARE
    more = (share["share_low"] > LEAST_SHARE) & (share["p"] < SIGNIFICANT)
    if few.any():
        return NOT_SUPPORTED, f"features explain less than {some} {PLACES[few.idxmax()]}"
    if len(both) and not alike:
        return NOT_SUPPORTED, "every response shown on both changes its sign out of domain"
    if not more.all():
        place = PLACES[more.idxmin()]
        return INCONCLUSIVE, f"features are not shown to explain more than {some} {place}"
    if not alike:
        return INCONCLUSIVE, "no response to a feature is shown on both"
    return SUPPORTED, f"features explain more than {some} on both; alike are {', '.join(alike)}"
