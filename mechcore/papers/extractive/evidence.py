"""What the verdicts on extractive structures stand on: tables, seeds that count, differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mechcore.evaluation.intervals import Interval
from mechcore.papers.evidence import (
    Finding,
    InconclusiveError,
    Seeds,
    Tables,
    all_of,
    ends,
    joined,
    listed,
    ruled,
    t_interval,
)
from mechcore.wording import count, number

TASKS = FIRST, SECOND = "first-hop", "second-hop"

LEARNED = 1.0
"""Facts whose mean rank is below this are learned (0 is best)."""


@dataclass(frozen=True, eq=False)
class Evidence(Tables):
    """The tables of a study of extractive structures."""

    def learned_seeds(self, *tasks: str) -> Seeds:
        """The seeds in which the facts of all these tasks were learned."""

        def missed(seed: int) -> str | None:
            for task in tasks:
                where = {"task": task, "seed": seed, "data": "facts", "state": "after"}
                try:
                    rank = float(self.row("extractive_ranks", **where)["mean_rank"])
                except InconclusiveError:
                    return f"it has no {task} facts"
                if not rank < LEARNED:
                    return f"the {task} facts are not learned, their mean rank is {number(rank)}"
            return None

        return self.seeds("extractive_ranks", *({"task": t} for t in tasks)).keep(missed)

    def facts_then_new(self) -> Seeds:
        """The seeds of the localisation in which facts, and new facts in the end, were learned."""
        name, kind = "extractive_localization_r2", {"kind": "mlp"}

        def missed(seed: int) -> str | None:
            row = self.row(name, **kind, seed=seed)
            missed = not_learned({"facts": row["facts"], "new facts": row["new_facts"]})
            return f"not all is learned, mean rank of {missed}" if missed else None

        return self.seeds(name, kind).keep(missed)

    def values(self, name: str, column: str, seeds: Seeds, **where: object) -> pd.Series[float]:
        """One number for each seed, in order, with the seed as index."""
        return self.by_seed(name, seeds, **where)[column].astype(float)


def difference(
    what: str, values: pd.Series[float], digits: int = 2, *, correlation: bool = False
) -> Finding:
    """Judge values of seeds by their signs and t interval, for correlations that of Fisher's z."""
    interval = _fisher_interval(values) if correlation else t_interval(values)
    figure = f"{what}: {joined(number(interval.mean, digits), ends(interval, digits=digits))}."
    if len(values) < 2:
        return Finding(None, figure)
    above = values > 0
    rarely = 2 * int(above.sum()) < len(values)
    met = ruled(above.all() and interval.low > 0, rarely or interval.high <= 0)
    return Finding(met, figure)


def _fisher_interval(correlations: pd.Series[float]) -> Interval:
    """Mean of correlations, with the t interval of their z (Fisher, Metron 1, 1921)."""
    z = t_interval(np.arctanh(correlations.clip(-1 + 1e-12, 1 - 1e-12)))
    return Interval(float(correlations.mean()), math.tanh(z.low), math.tanh(z.high))


def judged_by(parts: Sequence[Finding], seeds: Seeds, *sentences: str) -> Finding:
    """A claim that asks for several differences; ``sentences`` come before theirs."""
    figures = (part.figure for part in parts)
    return seeds.finding(
        all_of([part.met for part in parts]), *sentences, *figures, one_seed(seeds)
    )


def not_learned(ranks: Mapping[str, float]) -> str:
    """The mean ranks, by what they are of, that are too high for facts that were learned."""
    return ", ".join(f"{what} {number(rank)}" for what, rank in ranks.items() if not rank < LEARNED)


def per_seed(values: pd.Series[float], digits: int = 2) -> str:
    """The numbers of all seeds, in their order."""
    return listed(number(float(value), digits) for value in values)


def one_seed(seeds: Seeds) -> str:
    """A sentence where there is but one seed."""
    n = len(seeds.kept)
    return "" if n > 1 else f"With {count(n, 'seed')} a difference has no interval."
