"""Claims 1, 2 and 5 to 9: what is known after which training.

The rules are told in `mechcore.papers.extractive.verdicts`.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from mechcore.papers.evidence import (
    Finding,
    InconclusiveError,
    Seeds,
    ends,
    joined,
    number,
    over_seeds,
    row_interval,
    t_interval,
)
from mechcore.papers.extractive.evidence import (
    FIRST,
    LEARNED,
    SECOND,
    Evidence,
    Part,
    all_of,
    difference,
    one_seed,
    per_seed,
    verdict_of,
)

LIMIT = 2 / 9.5
"""Implications are known below this share of the mean rank of guessing: below 2 of 20 options."""


# -- 1, 2: out-of-context reasoning ---------------------------------------------------------------


def recall_first(evidence: Evidence) -> Finding:
    """Claim 1."""
    return _recall(evidence, FIRST)


def recall_second(evidence: Evidence) -> Finding:
    """Claim 2."""
    return _recall(evidence, SECOND)


def _recall(evidence: Evidence, task: str) -> Finding:
    seeds = evidence.learned_seeds(task)
    before, after = (
        evidence.by_seed("extractive_ranks", seeds, task=task, data="implications", state=state)
        for state in ("before", "after")
    )
    pairs = zip(before.iterrows(), after.iterrows(), strict=True)
    met = [_known(old, new) for (_, old), (_, new) in pairs]
    verdict, counts = over_seeds(met)
    intervals = "; ".join(
        f"seed {seed}: {number(row['mean_rank'])} {ends(row_interval(row))}"
        for seed, row in after.iterrows()
    )
    chance = float(after["chance"].iloc[0])
    figure = joined(
        f"Mean rank of the {task} implications after training on the facts (0 is best, "
        f"{number(chance, 1)} is chance, {number(LIMIT * chance)} the limit): {intervals}.",
        f"Before: {per_seed(before['mean_rank'])}.",
        counts,
        *seeds.left_out,
    )
    return Finding(verdict, figure)


def _known(before: pd.Series[Any], after: pd.Series[Any]) -> bool | None:
    limit = LIMIT * float(after["chance"])
    better = after["high"] < after["chance"] and after["high"] < before["low"]
    if after["mean_rank"] < limit and better:
        return True
    return False if after["low"] > limit else None


# -- 5, 6: freezing -------------------------------------------------------------------------------


def freezing_reverted(evidence: Evidence) -> Finding:
    """Claim 5."""
    return _freezing(evidence, "reverted")


def freezing_trained(evidence: Evidence) -> Finding:
    """Claim 6."""
    return _freezing(evidence, "trained")


def _freezing(evidence: Evidence, way: str) -> Finding:
    seeds = evidence.learned_seeds(FIRST, SECOND)
    areas = {task: _area(evidence, seeds, way, task) for task in (FIRST, SECOND)}
    apart = difference("First-hop minus second-hop", areas[FIRST] - areas[SECOND])
    right = (areas[FIRST] > 0) & (areas[SECOND] < 0)
    rarely = 2 * int(right.sum()) < len(right) and len(right) > 1
    signs = True if right.all() else (False if rarely else None)
    means = ", ".join(
        f"{task} {joined(number(interval.mean), ends(interval))} ({per_seed(area)})"
        for task, area in areas.items()
        for interval in [t_interval(area)]
    )
    figure = joined(
        f"Mean rank of the implications with early layers frozen minus that with late ones, mean "
        f"over all cuts (in each seed): {means}.",
        apart.figure,
        f"Above 0 for first-hop and below for second-hop in {int(right.sum())} of {len(right)}.",
        one_seed(seeds),
        *seeds.left_out,
    )
    return Finding(verdict_of(all_of([signs, apart.met])), figure)


def _area(evidence: Evidence, seeds: Seeds, way: str, task: str) -> pd.Series[float]:
    """Area between the curves of early and late layers frozen, as a mean over cuts, by seed."""
    rows = evidence.rows("extractive_freezing", way=way, task=task, data="implications")
    rows = rows[rows["frozen"].isin(["early", "late"]) & rows["seed"].isin(seeds.kept)]
    curves = rows.pivot(index=["seed", "cut"], columns="frozen", values="mean_rank").astype(float)
    if {*curves.columns} != {"early", "late"} or bool(curves.isna().to_numpy().any()):
        raise InconclusiveError(f"Table extractive_freezing lacks early or late layers of {task}.")
    area = (curves["early"] - curves["late"]).groupby("seed").mean()
    if missing := [seed for seed in seeds.kept if seed not in area.index]:
        raise InconclusiveError(f"Table extractive_freezing has no seed {missing[0]} of {task}.")
    return area.loc[list(seeds.kept)]


# -- 7, 8: ordering -------------------------------------------------------------------------------


def ordering_plain(evidence: Evidence) -> Finding:
    """Claim 7."""
    return _ordering(evidence, replay=False)


def ordering_replayed(evidence: Evidence) -> Finding:
    """Claim 8."""
    return _ordering(evidence, replay=True)


_ORDERS = ("joint", "facts first", "implications first")


def _ordering(evidence: Evidence, *, replay: bool) -> Finding:
    name = "extractive_ordering"
    seeds = evidence.seeds(name, replay=replay)
    where: dict[str, object] = {"replay": replay, "data": "test facts"}
    learned = {
        order: evidence.values(name, "mean_rank", seeds, order=order, **where) for order in _ORDERS
    }
    seeds = seeds.keep(lambda seed: _missed({order: each[seed] for order, each in learned.items()}))
    where["data"] = "test implications"
    found = {
        order: evidence.values(name, "mean_rank", seeds, order=order, **where) for order in _ORDERS
    }
    last = found["implications first"]
    parts = [
        difference(f"Implications first minus {order}", last - found[order])
        for order in _ORDERS[:2]
    ]
    chance = float(evidence.rows(name, **where)["chance"].iloc[0])
    ranks = ", ".join(
        f"{order} {number(float(each.mean()))} ({per_seed(each)})" for order, each in found.items()
    )
    figure = joined(
        f"Mean rank of the test names' implications (0 is best, {number(chance, 1)} is chance; in "
        f"each seed): {ranks}.",
        *(part.figure for part in parts),
        one_seed(seeds),
        *seeds.left_out,
    )
    return Finding(verdict_of(all_of([part.met for part in parts])), figure)


def _missed(ranks: dict[str, float]) -> str | None:
    missed = [f"{order} {number(rank)}" for order, rank in ranks.items() if not rank < LEARNED]
    return f"the test facts are not learned, mean rank {', '.join(missed)}" if missed else None


# -- 9: grafting ----------------------------------------------------------------------------------


def grafting(evidence: Evidence) -> Finding:
    """Claim 9."""
    name = "extractive_grafting"
    seeds = evidence.seeds(name)
    facts = evidence.values(name, "mean_rank", seeds, model="other facts", data="other facts")
    seeds = seeds.keep(lambda seed: _missed({"before grafting": facts[seed]}))
    data = "other implications"
    found = {
        model: evidence.values(name, "mean_rank", seeds, model=model, data=data)
        for model in ("other facts", "graft", "control graft")
    }
    parts: list[Part] = [
        difference(f"Lower than {what} by", found[model] - found["graft"])
        for model, what in (("other facts", "without a graft"), ("control graft", "the control"))
    ]
    chance = float(evidence.rows(name, data=data)["chance"].iloc[0])
    ranks = ", ".join(
        f"{model} {number(float(each.mean()))} ({per_seed(each)})" for model, each in found.items()
    )
    figure = joined(
        f"Mean rank of what follows from the other facts (0 is best, {number(chance, 1)} is "
        f"chance; in each seed): {ranks}.",
        *(part.figure for part in parts),
        one_seed(seeds),
        *seeds.left_out,
    )
    return Finding(verdict_of(all_of([part.met for part in parts])), figure)
