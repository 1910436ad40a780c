"""A sparse model of the drops of random sets, whose coefficients are Moebius dividends.

D(S) is the sum of the dividends of all subsets of S (`mechcore.ablation.cooperative`). Few of them
are large, so that a lasso can tell them from the drops of far fewer sets than there are subsets:

1. Components are ablated alone, and in random sets. What is fitted is what these sets lose beyond
   their members, D(S) - sum of D({i}).
2. Pairs come first, all of them. Terms of three are grown from the pairs found, by one component
   each, and so on (weak heredity); of many the model takes those that its errors speak for most.
   A triple whose pairs do nothing is found nevertheless: without it, its pairs stand in for it.
3. Each order is judged on sets held out, for which terms were grown and fitted without them.
4. The largest terms are ablated exactly, with all their subsets, also on examples that the fit did
   not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from mechcore.ablation.cooperative import DIVIDENDS, MOST_EXACT, dividends
from mechcore.ablation.effects import (
    SET,
    SIZE,
    Ablations,
    ComponentSet,
    SetLike,
    as_sets,
)
from mechcore.ablation.searching import halves_of, two_or_more
from mechcore.ablation.sets import subsets
from mechcore.ablation.settings import DIVIDEND_SETS
from mechcore.ablation.sparse_fit import (
    containing,
    drops_of,
    fit_orders,
    largest_size,
    membership,
    random_sets,
    warn_if_poor,
)
from mechcore.ablation.sweeping import ablate
from mechcore.components import Component, ComponentLike
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import ALL
from mechcore.errors import InputError, warn
from mechcore.evaluation.cost import Cost
from mechcore.evaluation.evaluate import Metric, check_metric
from mechcore.evaluation.p_values import Correction
from mechcore.masking.fills import FillMaker
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.showing import Shown
from mechcore.tables import Column, Schema

FITTED = Column("fitted", "number", "dividend in the model, which the penalty makes smaller")
DIVIDEND_TERMS = Schema(
    "dividend_terms",
    "Terms of a sparse model of drops, largest first; shares for accuracy, nats for the margin.",
    (SET, SIZE, Column("n_sets", "whole", "random sets that contain it", header="sets"), FITTED),
)
VERIFIED_DIVIDENDS = DIVIDENDS.named(
    "verified_dividends",
    "The largest terms of a sparse model of drops, measured on the half of the data that it did "
    "not see; as ``dividends``.",
    FITTED,
    Column("dividend_in_fit", "number", "measured on the examples of the fit"),
)


@dataclass(frozen=True, eq=False, repr=False)
class DividendModel(Shown):
    """Drops as sums of a few dividends.

    Attributes:
        verified: the columns of `VERIFIED_DIVIDENDS`: the largest terms of two and more, measured
            with all their subsets on examples that the fit did not see, a row per term, subset of
            the data and metric; what was fitted stands beside the same metric over all examples.
        fit: the columns of `DIVIDEND_FIT`: a row per order, from single drops on.
        terms: the columns of `DIVIDEND_TERMS`.
        dividends: all terms; single ones are the measured drops.
        components: those that it is a model of.
        metric: whose drops it gives.
        cost: of the fit, without what was measured afterwards.
    """

    verified: pd.DataFrame
    fit: pd.DataFrame
    terms: pd.DataFrame
    dividends: Mapping[ComponentSet, float]
    components: Sequence[Component]
    metric: Metric
    cost: Cost

    def predict(self, sets: Mapping[str, SetLike] | Iterable[SetLike]) -> Float[np.ndarray, " set"]:
        """Drops without sets, nats or shares: of each the sum of the terms that it contains.

        Raises:
            InputError: a set is unreadable, given twice or has a component that the model lacks.
        """
        found = as_sets(sets)
        for each in found:
            if not isinstance(each, ComponentSet):
                raise InputError(f"dividends: {each} is a set of paths; expected components")
            for component in each.components:
                if component not in self.components:
                    raise InputError(
                        f"dividends: {each}: {component} is not among the components that the "
                        "model was fitted to; expected some of "
                        f"{', '.join(map(str, self.components))}"
                    )
        place = {c: i for i, c in enumerate(self.components)}
        terms = [tuple(place[c] for c in each.components) for each in self.dividends]
        present = membership([s for s in found if isinstance(s, ComponentSet)], self.components)
        return containing(present, terms) @ np.array(list(self.dividends.values()))

    def _summary(self) -> str:
        top = self.fit.iloc[-1]
        return (
            f"order {top['order']:.0f}, {top['terms']:.0f} terms of two and more, "
            f"R2 {top['r2']:.3f} on sets held out"
        )


def fit_dividends(
    model: Any,
    data: Any,
    means: MeanActivations | None = None,
    *,
    components: Iterable[ComponentLike] | None = None,
    order: int = 3,
    n_sets: int = DIVIDEND_SETS,
    set_size: int | None = None,
    n_verified: int = 20,
    subset: str = ALL,
    metric: Metric = "margin",
    correction: Correction = "benjamini-hochberg",
    n_resamples: int = 1000,
    seed: int = 0,
    fill: FillMaker = "mean",
    class_names: Sequence[str] | None = None,
    batch_size: int = 64,
    state: str | Path | None = None,
    **options: Any,
) -> DividendModel:
    """Fit a sparse model of drops to random sets, and measure its largest terms.

    Args:
        model: any TransformerLens model.
        data: labelled examples of any form, see `mechcore.data.given`; the model is fitted to half
            of them, by subset, and its terms are measured on either half.
        means: the model's mean activations; not needed for ``fill="zero"``.
        components: to fit; by default all heads and MLPs.
        order: components of the largest terms.
        n_sets: random sets to ablate; one drawn twice counts once.
        set_size: components of the largest of them, see `largest_size`. Larger ones tell more of
            terms of three and more, and have more of them that are not in the model.
        n_verified: terms of two and more to measure, those with the largest coefficients.
        subset: the subset of the data to look at.
        metric: what the model is of; terms are measured by both.
        correction: of the p-values for how many terms are measured, see `mechcore.interactions`.
        n_resamples: bootstrap resamples.
        seed: of the split, the sets, the resamples and fills.
        fill: what replaces ablated outputs, see `mechcore.ablate`.
        class_names: names of a classifier's classes, in place of its ``id2label``.
        batch_size: examples per batch.
        state: folder for files that keep what is finished, see `state_files`; an interrupted
            fit goes on from them. They stay when all is finished.
        options: see `mechcore.ablate`.

    Raises:
        InputError: there are too few components, examples or different sets, the subset is
            unknown, or a number is out of range; or ``state`` is that of another fit.

    >>> fit_dividends(model, hans, means, order=3).verified  # doctest: +SKIP
    """
    data = as_encoded(model, data, role=options.get("role", "id"))
    numbers: dict[str, Any] = {
        "order": order,
        "n_sets": n_sets,
        "set_size": set_size,
        "n_verified": n_verified,
    }
    chosen = check_fit(model, data, components=components, subset=subset, metric=metric, **numbers)
    halves = halves_of(data, subset, seed)
    files: list[Path] | list[None] = [None] * 3 if state is None else state_files(state)
    options |= {"fill": fill, "class_names": class_names, "batch_size": batch_size, "seed": seed}

    def without(sets: Sequence[ComponentSet], half: EncodedExamples, file: Any) -> Ablations:
        return ablate(model, sets, half, means, state=file, **options)

    size = set_size or largest_size(len(chosen), order, n_sets)
    sets = random_sets(chosen, n_sets, size, seed, "dividends", "fewer components and all subsets")
    ablated = without([*(ComponentSet((c,)) for c in chosen), *sets], halves[0], files[0])
    drops, alone = drops_of(ablated, sets, metric)
    present = membership(sets, chosen)
    stages = fit_orders(present, drops - alone, order)
    fit = pd.DataFrame([each.row(drops, alone) for each in stages])
    _warn(fit)
    fitted = {
        ComponentSet(tuple(chosen[i] for i in term)): float(value)
        for term, value in zip(stages[-1].terms, stages[-1].coefficients, strict=True)
        if value
    }
    fitted = dict(sorted(fitted.items(), key=lambda item: -abs(item[1])))
    every = fitted | {
        each: float(ablated.drops(each, metric).mean())
        for each in (ComponentSet((c,)) for c in chosen)
    }
    named = list(fitted)[:n_verified]
    parts = list(dict.fromkeys(part for each in named for part in subsets(each.components)))
    statistics: dict[str, Any] = {"correction": correction, "n_resamples": n_resamples}
    tables = [
        dividends(without(parts, half, file), sets=named, seed=seed, **statistics)
        for half, file in zip(halves, files[1:], strict=True)
        if named
    ]
    return DividendModel(
        verified=_verified(tables, fitted, metric),
        fit=fit,
        terms=_terms(every, present, chosen),
        dividends=every,
        components=chosen,
        metric=metric,
        cost=Cost(forwards=1 + len(ablated.sets)),
    )


def state_files(folder: str | Path) -> list[Path]:
    """The files of an interruptible fit, the one that it begins with first.

    Returns:
        Those of the sweep over random sets, and over the largest terms on either half.
    """
    names = ("sweep-sets", "sweep-fit", "sweep-report")
    return [Path(folder) / f"{name}.safetensors" for name in names]


def check_fit(
    model: Any,
    data: EncodedExamples,
    *,
    components: Iterable[ComponentLike] | None = None,
    subset: str = ALL,
    metric: Metric = "margin",
    order: int = 3,
    n_sets: int = DIVIDEND_SETS,
    set_size: int | None = None,
    n_verified: int = 20,
) -> list[Component]:
    """The components that `fit_dividends` would fit, all that is quick to check done.

    Raises:
        InputError: see `fit_dividends`.
    """
    chosen = two_or_more(model, components, "dividends")
    most = min(MOST_EXACT, len(chosen))
    if not 2 <= order <= most:
        raise InputError(
            f"dividends: order is {order}; expected 2 to {most}, of {len(chosen)} components"
        )
    if set_size is not None and not order <= set_size <= len(chosen):
        raise InputError(
            f"dividends: set_size is {set_size}; expected from the order, {order}, to the "
            f"{len(chosen)} components"
        )
    for name, value, least in (("n_sets", n_sets, 1), ("n_verified", n_verified, 0)):
        if value < least:
            raise InputError(f"dividends: {name} is {value}; expected at least {least}")
    check_metric(metric)
    halves_of(data, subset, 0)
    return chosen


def _warn(fit: pd.DataFrame) -> None:
    """Say that the model is poor, or better without its largest terms."""
    by_order = fit.set_index("order")["r2_interactions"]
    orders = fit["order"].tolist()
    top, best = orders[-1], orders[int(by_order.argmax())]
    warn_if_poor(
        "dividends: interactions",
        by_order[top],
        "terms that are not measured say little; draw more sets, or smaller ones",
    )
    if by_order[best] > by_order[top]:
        warn(
            f"dividends: with terms of up to {best} components R2 of interactions is "
            f"{by_order[best]:.3f} on sets held out, with those of up to {top} only "
            f"{by_order[top]:.3f}; take order {best}, or draw more sets"
        )


# -- tables ---------------------------------------------------------------------------------------


def _terms(
    found: Mapping[ComponentSet, float],
    present: Bool[np.ndarray, "set component"],
    components: Sequence[Component],
) -> pd.DataFrame:
    """All terms, the largest first."""
    place = {c: i for i, c in enumerate(components)}
    seen = containing(present, [tuple(place[c] for c in each.components) for each in found]).sum(0)
    rows = [
        {"set": str(each), "size": len(each), "n_sets": int(n), "fitted": value}
        for (each, value), n in zip(found.items(), seen, strict=True)
    ]
    return pd.DataFrame(rows).sort_values(
        "fitted", key=lambda column: -column.abs(), kind="stable", ignore_index=True
    )


def _verified(
    tables: Sequence[pd.DataFrame], fitted: Mapping[ComponentSet, float], metric: Metric
) -> pd.DataFrame:
    """What was measured on the other half, with what was fitted and measured on that of the fit."""
    if not tables:
        return pd.DataFrame(columns=VERIFIED_DIVIDENDS.required)
    in_fit, table = tables
    same = (table["metric"] == metric) & (table["subset"] == ALL)
    names = {str(each): value for each, value in fitted.items()}
    keys = ["set", "subset", "metric"]
    seen = in_fit[[*keys, "dividend"]].rename(columns={"dividend": "dividend_in_fit"})
    return table.assign(fitted=table["set"].map(names).where(same)).merge(seen, "left", on=keys)
