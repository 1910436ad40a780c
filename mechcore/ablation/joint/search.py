"""The most superadditive sets, found on one half of the data and reported on the other."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mechcore.ablation.effects.changes import SET, Ablations
from mechcore.ablation.effects.stability import interaction_stability
from mechcore.ablation.joint.decisions import Goal
from mechcore.ablation.joint.exact import INTERACTIONS, interactions
from mechcore.ablation.joint.predictors import (
    INTERACTION_METHODS,
    PairRequest,
    Predictions,
    mean_interactions,
)
from mechcore.ablation.joint.races import Race, race
from mechcore.ablation.sets import ComponentSet
from mechcore.ablation.settings import SCREENING_EXAMPLES
from mechcore.ablation.sweeps import ablate
from mechcore.components import Component, ComponentLike, ModelShape, parse_components
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import ALL, half_rows
from mechcore.errors import InputError
from mechcore.evaluation.cost import Cost
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.session import plain_session
from mechcore.showing import Shown
from mechcore.tables import Column, Schema
from mechcore.wording import count

SUPERADDITIVE = INTERACTIONS.named(
    "superadditive",
    "The sets that a search found, measured on the half of the data that it did not see; columns "
    "as in ``interactions``.",
    Column("interaction_in_search", "number", "over all examples of the other half", optional=True),
)
SCREENING = Schema(
    "screening",
    "Every pair of components that a search screened, best first.",
    (
        SET,
        Column("predicted", "number", "interaction on the margin by screening", "nats"),
        Column("interaction", "number", "on the searched half; missing if not ablated"),
    ),
)

SAMPLED = 60
"""Number of screened-out pairs that are raced anyway; no hit leaves at most 5 % missed."""
FOUND, BEAM = 10, 20
"""Number of sets of each size to report and to grow larger ones from."""


@dataclass(frozen=True, eq=False, repr=False)
class Search(Shown):
    """The results of a search for superadditive sets.

    Attributes:
        superadditive: the columns of `SUPERADDITIVE`, in search order.
        screening: the columns of `SCREENING`.
        n_tested: number of sets of two or more components ablated in the search.
        stability: of the order of the sets, on data that the search did not see.
        races: with a guarantee, the decisions, by size of the sets.
        missed: with a guarantee, how many of how many pairs sampled from those screened out
            are what the search looks for.
    """

    superadditive: pd.DataFrame
    screening: pd.DataFrame
    n_pairs: int
    n_screened_out: int
    n_tested: int
    cost: Cost
    stability: pd.DataFrame
    races: Mapping[int, Race] = field(default_factory=dict)
    missed: tuple[int, int] = (0, 0)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name; that of races only if there were any."""
        tables = {"superadditive": self.superadditive, "screening": self.screening}
        tables["stability"] = self.stability
        if self.races:
            decisions = [raced.decisions for raced in self.races.values()]
            tables["race"] = pd.concat(decisions, ignore_index=True)
        return tables

    def _summary(self) -> str:
        best = f", best {self.superadditive['set'].iloc[0]}" if len(self.superadditive) else ""
        return f"{self.n_tested} sets tested, {self.n_pairs} pairs screened{best}"


@plain_session()
def find_superadditive(
    model: Any,
    data: Any,
    means: MeanActivations | None,
    *,
    components: Iterable[ComponentLike] | None = None,
    subset: str = ALL,
    max_size: int = 3,
    n_pairs: int | None = 100,
    n_found: int | None = None,
    guarantee: float | None = None,
    least: float | None = None,
    largest: int | None = None,
    bound: float | None = None,
    screening_by: str = "screening",
    screening_examples: int = SCREENING_EXAMPLES,
    n_resamples: int = 1000,
    seed: int = 0,
    fill: str = "mean",
    class_names: Sequence[str] | None = None,
    batch_size: int = 64,
    state: str | Path | None = None,
    **options: Any,
) -> Search:
    """Search for the sets whose ablation costs most margin beyond the sum of their members.

    Half of each subset of the labelled ``data`` selects, the other half reports. ``components`` are
    the candidates, by default all; ``subset`` is the one to search on. Of the pairs the best
    ``n_pairs`` by ``screening_by`` (of `INTERACTION_METHODS`, averaged over ``screening_examples``)
    are ablated exactly, None for all; larger sets, up to ``max_size``, grow from the best smaller
    ones. ``n_found`` sets of each size are reported, by default `FOUND`, or ``largest`` if more.

    With a ``guarantee``, sets are raced with this probability of any wrong decision about the
    selecting half, see `race` for ``least``, ``largest`` and ``bound``; `SAMPLED` of the
    screened-out pairs are, too, to see how many were missed. Fills are ``"mean"`` and ``"zero"``;
    everything else is as in `mechcore.ablate`.

    Raises:
        InputError: there are fewer than two components, too few examples, the subset is unknown, or
            a number is out of range.
    """
    data = as_encoded(model, data, split=options.get("split", "id"))
    n_found = max(FOUND, largest or 0) if n_found is None else n_found
    goal: dict[str, Any] = {"least": least, "largest": largest, "bound": bound}
    sizes: dict[str, Any] = {"max_size": max_size, "n_pairs": n_pairs, "guarantee": guarantee}
    own = {"subset": subset, "screening_by": screening_by, "n_found": n_found, "fill": fill}
    chosen = check_search(model, data, components, **own, **sizes, **goal)
    searched, reported = halves_of(data, subset, seed)
    given = (model, searched, means, chosen, screening_examples, seed)
    request = PairRequest(*given, fill, class_names, batch_size, state, options)
    growth = _Growth(request, **sizes, goal=goal)
    growth.grow(screening_by)
    return growth.report(reported, n_found, n_resamples)


@dataclass(eq=False)
class _Growth:
    """Growing sets on the selecting half: interactions by set, and the best sets by size."""

    request: PairRequest
    max_size: int
    n_pairs: int | None
    guarantee: float | None
    goal: Mapping[str, Any]
    measured: dict[ComponentSet, float] = field(default_factory=dict)
    best: dict[int, list[ComponentSet]] = field(default_factory=dict)
    races: dict[int, Race] = field(default_factory=dict)

    def grow(self, screening_by: str) -> None:
        """Select the best pairs, and grow larger sets from the best smaller ones."""
        nothing = dict.fromkeys(self.request.pairs, float("nan"))
        self.predictions = Predictions(nothing, Cost(), in_nats=False)
        if self.guarantee is None or self.n_pairs is not None:
            self.predictions = INTERACTION_METHODS[screening_by](self.request)
        predicted = self.predictions.interactions
        self.order = sorted(predicted, key=lambda pair: predicted[pair])
        level = self.order[: self.n_pairs]
        self.out = self.order[len(level) :]
        n_sampled = min(SAMPLED, len(self.out)) if self.guarantee else 0
        self.sampled = random.Random(self.request.seed).sample(self.out, n_sampled)
        unknown = predicted if self.predictions.in_nats else dict.fromkeys(predicted, 0.0)
        for size in range(2, self.max_size + 1):
            if not level:
                break
            self.best[size] = self._ranked([*level, *(self.sampled if size == 2 else [])], size)
            smaller = self.best[size][:BEAM]
            level = _grown(smaller, self.request.components, self.measured, unknown)[: self.n_pairs]

    def _ranked(self, level: Sequence[ComponentSet], size: int) -> list[ComponentSet]:
        """These sets, best first; in a race, only those that meet the goal."""
        request = self.request
        if self.guarantee is None:
            without = self._alone.with_more(self._ablated(level, request.data))
            self.measured |= mean_interactions(without, level)
            return sorted(level, key=lambda cut: self.measured[cut])
        self.races[size] = race(
            request.model,
            level,
            request.data,
            request.means,
            error=self.guarantee / (self.max_size - 1),
            # An order of the examples that is independent of the selection of the sets.
            seed=request.seed + size,
            **self.goal,
            **request.options,
        )
        self.measured |= self.races[size].effects
        return self.races[size].decided("below" if self.goal["largest"] is None else "top")

    @cached_property
    def _alone(self) -> Ablations:
        return self._ablated(self.request.singles, self.request.data)

    def _ablated(self, sets: Sequence[ComponentSet], data: EncodedExamples) -> Ablations:
        return ablate(self.request.model, sets, data, self.request.means, **self.request.options)

    def report(self, reported: EncodedExamples, n_found: int, n_resamples: int) -> Search:
        """The results, measured on the reporting half."""
        measured, predicted = self.measured, self.predictions.interactions
        named = [cut for sets in self.best.values() for cut in sets[:n_found]]
        members = sorted({c for cut in named for c in cut.components})
        final = self._ablated([*(ComponentSet((c,)) for c in members), *named], reported)
        statistics: dict[str, Any] = {"n_resamples": n_resamples, "seed": self.request.seed}
        table = interactions(final, **statistics)
        rows = [(str(pair), predicted[pair], measured.get(pair, np.nan)) for pair in self.order]
        return Search(
            superadditive=_with_search(table, {str(cut): measured[cut] for cut in named}),
            screening=pd.DataFrame(rows, columns=SCREENING.names),
            n_pairs=len(self.order),
            n_screened_out=len(self.out),
            n_tested=len(measured),
            cost=self.predictions.cost,
            stability=interaction_stability(final, **statistics),
            races=self.races,
            missed=(len({*self.sampled} & {*self.best.get(2, [])}), len(self.sampled)),
        )


def check_search(
    model: Any, data: EncodedExamples, components: Iterable[ComponentLike] | None, **options: Any
) -> list[Component]:
    """The candidates of `find_superadditive` with these options, after all quick checks."""
    shape = ModelShape.of(model)
    chosen = shape.components if components is None else parse_components(components)
    chosen = sorted(set(chosen))
    for component in chosen:
        shape.index(component)
    if len(chosen) < 2:
        raise InputError(f"search: {count(len(chosen), 'component')}; expected at least two")
    given: dict[str, Any] = {"n_found": FOUND, "fill": "mean", **options}
    for name, right, expected in (
        ("max_size", lambda size: 2 <= size <= len(chosen), f"2 to the {len(chosen)} components"),
        ("n_pairs", lambda n: n is None or n >= 1, "at least 1"),
        ("n_found", lambda n: n >= 1, "at least 1"),
        ("fill", lambda fill: fill in ("mean", "zero"), "'mean' or 'zero'"),
    ):
        if not right(given[name]):
            raise InputError(f"search: {name} is {given[name]!r}; expected {expected}")
    goal: dict[str, Any] = {name: given.get(name) for name in ("least", "largest", "bound")}
    if given["guarantee"] is not None:
        Goal(**goal, error=given["guarantee"])
    elif set(goal.values()) != {None}:
        settings = ", ".join(f"{name} is {value}" for name, value in goal.items())
        raise InputError(
            f"search: {settings}, but there is no guarantee; add a probability of error, as in "
            "guarantee=0.05, or leave them out"
        )
    INTERACTION_METHODS[given["screening_by"]]
    halves_of(data, given["subset"], 0)
    return chosen


def halves_of(
    data: EncodedExamples, subset: str, seed: int
) -> tuple[EncodedExamples, EncodedExamples]:
    """Two halves of the searched subset, or of every subset if all data are searched."""
    names = data.examples.frame["subset"].tolist()
    if subset not in (ALL, *names):
        known = ", ".join(dict.fromkeys(names))
        raise InputError(f"search: no subset {subset!r}; the data has {known}")
    chosen = [row for row, name in enumerate(names) if subset in (ALL, name)]
    halves = half_rows(data.examples.frame.iloc[chosen], seed)
    if min(map(len, halves)) < 2:
        raise InputError(
            f"search: {count(len(chosen), 'example')} of {len({names[row] for row in chosen})} "
            "subsets: half of each subset, rounded down, selects, the rest reports, examples of "
            "one first text stay together; expected halves of at least 2: add examples, or draw "
            "more of them (--max-id, --max-ood)"
        )
    first, second = (data.part([chosen[row] for row in half]) for half in halves)
    return first, second


def _grown(
    sets: Sequence[ComponentSet],
    components: Sequence[Component],
    exact: Mapping[ComponentSet, float],
    predicted: Mapping[ComponentSet, float],
) -> list[ComponentSet]:
    """Sets with one more component, best predictions first: new pairs add their interactions."""

    def pair(a: Component, b: Component) -> float:
        both = ComponentSet.of([a, b])
        return exact.get(both, predicted[both])

    scores: dict[ComponentSet, float] = {}
    for cut in sets:
        for component in components:
            if component not in cut.components:
                more = ComponentSet.of([*cut.components, component])
                score = exact[cut] + sum(pair(component, c) for c in cut.components)
                scores[more] = min(score, scores.get(more, np.inf))
    return sorted(scores, key=lambda cut: scores[cut])


def _with_search(table: pd.DataFrame, measured: Mapping[str, float]) -> pd.DataFrame:
    """Sets in search order, with their interactions on the search half."""
    seen = table["set"].map(measured).where(table["metric"] == "margin")
    rank = table["set"].map({name: i for i, name in enumerate(measured)})
    ordered = table.assign(interaction_in_search=seen).iloc[np.argsort(rank, kind="stable")]
    return ordered.reset_index(drop=True)
