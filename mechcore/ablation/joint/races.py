"""Racing: how large each interaction is, by adaptive sampling of examples: docs/ablation.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechcore.ablation.effects.changes import Ablations
from mechcore.ablation.joint.decisions import Goal, Interactions
from mechcore.ablation.sets import ComponentSet, SetLike, as_sets
from mechcore.ablation.sweeps import ablate
from mechcore.components.names import PathSet
from mechcore.errors import InputError
from mechcore.evaluation.intervals import share_at_most
from mechcore.evaluation.metrics import ACCURACY, MARGIN, MetricLike, as_metric, data_for
from mechcore.masking.counterfactual import of_rows, with_pairs
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.showing import Shown

RARE = 0.02
"""Smallest share of the examples in which an effect above the least of interest cannot hide."""
AUDITED, AUDITED_SHARE = 20, 0.02
"""Default maximum number of audited sets, and maximum share of all sets."""


@dataclass(frozen=True, eq=False, repr=False)
class Race(Shown):
    """The decisions of a race, and their cost.

    Attributes:
        decisions: the columns of `DECISIONS`, in the order of the sets.
        audit: the columns of `AUDIT`, for the sets that ran to the end.
        n_looks: numbers of examples after which decisions were made.
        layers, exact_layers: evaluations of a layer on one example, and those of all sets on all.
        bound_source: the origin of the bound in ``goal``, in words.
        n_broken: number of sets that broke their bound.
    """

    sets: tuple[ComponentSet, ...]
    goal: Goal
    decisions: pd.DataFrame
    audit: pd.DataFrame
    n_examples: int
    n_looks: tuple[int, ...]
    layers: float
    exact_layers: float
    bound_source: str
    n_broken: int

    def decided(self, decision: str) -> list[ComponentSet]:
        """The sets with a decision, largest losses first."""
        made, effects = self.decisions["decision"], self.effects
        decided = [cut for cut, its in zip(self.sets, made, strict=True) if its == decision]
        return sorted(decided, key=lambda cut: -self.goal.metric.worse * effects[cut])

    @property
    def effects(self) -> dict[ComponentSet, float]:
        """Mean effect of every set over the examples seen."""
        return dict(zip(self.sets, self.decisions["effect"], strict=True))

    @property
    def wrong(self) -> tuple[int, float]:
        """Number of wrong decisions in the audit, and its 95 % upper bound as a share of all."""
        n_wrong = int((~self.audit["right"].astype(bool)).sum())
        return n_wrong, share_at_most(n_wrong, len(self.audit))

    def describe(self) -> str:
        """A summary of the decisions, their cost and their reliability."""
        goal, unit, sure = self.goal, "", ""
        if goal.has_tails:
            unit = f" {goal.metric.unit}" * bool(goal.metric.unit)
            sure = (
                " if no unseen example has an effect above the set's bound: "
                f"{goal.bound:.3g}{unit}, {self.bound_source}, and more for the {self.n_broken} "
                f"of {len(self.sets)} sets that broke it and restarted"
            )
        size = f" (size {goal.least:g}{unit} or less)" if goal.least is not None else ""
        counts = self.decisions["decision"].value_counts()
        sums = [f"{n} {name}{size * (name == 'within')}" for name, n in counts.items()]
        seen = self.decisions["n"]
        text = (
            f"{', '.join(sums)}; decided on {seen.min()} to {seen.max()} of {self.n_examples} "
            f"examples (median {seen.median():g}), with {self.layers / self.exact_layers:.1%} of "
            "the layer evaluations of all sets on all examples; for these examples, any decision "
            f"is wrong with a probability of at most {goal.error:g}{sure}"
        )
        if len(self.audit):
            n_wrong, most = self.wrong
            text += f"; {n_wrong} of {len(self.audit)} audited are wrong, so at most {most:.1%} are"
            if goal.bound is not None:
                text += f", and {int(self.audit['broken'].sum())} break the bound in other examples"
        return text

    _summary = describe


def race(
    model: Any,
    sets: Sequence[SetLike],
    data: Any,
    means: MeanActivations | None = None,
    *,
    metric: MetricLike = "margin",
    least: float | None = None,
    largest: int | None = None,
    error: float = 0.05,
    bound: float | None = None,
    n_audited: int | None = None,
    seed: int = 0,
    state: str | Path | None = None,
    **options: Any,
) -> Race:
    """Decide which interactions are larger than ``least``, or which are the ``largest`` losses.

    Decisions are on means over these examples of any ``metric``, see `mechcore.ablate`. Any of them
    is wrong with probability ``error``; except for accuracy, if no unseen example has an effect
    above the set's ``bound``, which a larger one raises: by default ``least / RARE``, and for
    ``largest`` the span of the full model's values. Of the sets, `AUDITED` or `AUDITED_SHARE`, or
    ``n_audited``, run to the end regardless, to count wrong decisions. All else is as in
    `mechcore.ablate`.

    Raises:
        InputError: see `Goal`; or a set is unreadable, has paths, or only one component, or the
            full model's values are all 0 and there is no ``bound``.
    """
    measure, split = as_metric(metric), options.get("split", "id")
    goal = Goal(least, largest, measure, error, bound)
    data = as_encoded(model, data_for(measure, model, data, split), split=split)
    # Of labelled examples these are measured anyway, which warns of a model below chance.
    if measure not in (ACCURACY, MARGIN) or data.correct is not None:
        options["metric"] = metric
    n_all, chosen = len(data), list[ComponentSet]()
    for cut in as_sets(sets, model):
        if isinstance(cut, PathSet) or len(cut) < 2:
            raise InputError(f"race: {cut} has no interaction; expected two components or more")
        chosen.append(cut)
    if n_audited is None:
        n_audited = min(AUDITED, int(AUDITED_SHARE * len(chosen)))
    if n_all < 2 or n_audited < 0 or not chosen:
        raise InputError(
            f"race: {n_all} examples, {len(chosen)} sets and n_audited is {n_audited}; expected at "
            "least 2, 1 and 0"
        )
    fill = with_pairs(options.pop("fill", "mean"), data, seed)  # pairs do not depend on the looks
    generator = np.random.default_rng(seed)
    order = generator.permutation(n_all)
    audited = np.zeros(len(chosen), dtype=bool)
    audited[generator.permutation(len(chosen))[:n_audited]] = True

    def ablated(sets: Sequence[ComponentSet], start: int, stop: int) -> Ablations:
        drawn = order[start:stop].tolist()
        own: dict[str, Any] = {"fill": of_rows(fill, drawn), "seed": seed, "state": state}
        return ablate(model, sets, data.part(drawn), means, **own, **options)

    layers, source = 0.0, "as given"
    if goal.has_tails and bound is None and least:
        bound, source = least / RARE, f"a mean of {least:g} concentrated in {RARE:.0%} of examples"
    elif goal.has_tails and bound is None:
        full = ablated([], 0, n_all)
        layers = (full.layers or 0) * n_all
        bound = span_of(full.full.values(measure.name))
        source = f"the span of the full model's {measure.name}"
        if not bound:
            raise InputError(
                f"race: {measure.name} of the full model is 0 for every example; expected a bound "
                "on an interaction's effect on one example (bound)"
            )
    known = Interactions(chosen, n_all, replace(goal, bound=bound))
    n_looks, spent, exact_layers = known.run(ablated, audited, looks(n_all))
    return Race(
        sets=tuple(chosen),
        goal=known.goal,
        decisions=known.table(data.examples.name, split),
        audit=known.audit(np.flatnonzero(audited)),
        n_examples=n_all,
        n_looks=tuple(n_looks),
        layers=layers + spent,
        exact_layers=exact_layers,
        bound_source=source,
        n_broken=int((known.steps > 0).sum()),
    )


def span_of(values: Float[np.ndarray, " example"]) -> float:
    """From the lowest to the highest value or 0 over all examples."""
    return float(max(values.max(), 0) - min(values.min(), 0))


def looks(n: int) -> Iterator[int]:
    """After how many examples to look, up to ``n``."""
    stop = 32.0  # of the first look, at every set
    while stop < n:
        yield int(stop)
        stop *= 1.4
    yield n
