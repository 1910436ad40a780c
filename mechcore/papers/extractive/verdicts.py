"""Verdicts on the eleven claims of arXiv 2412.04614, see docs/concepts/extractive-structures.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mechcore.papers.evidence import (
    ALPHA,
    Finding,
    InconclusiveError,
    Seeds,
    all_of,
    beside,
    ends,
    joined,
    judged,
    over_seeds,
    percent,
    row_interval,
    ruled,
    t_interval,
)
from mechcore.papers.extractive.evidence import (
    FIRST,
    SECOND,
    TASKS,
    Evidence,
    difference,
    judged_by,
    not_learned,
    one_seed,
    per_seed,
)
from mechcore.wording import count, number, p_value

ENTITY = r"subject -\d+"
"""Labels of the tokens of the name or place that a prompt is about."""

WITHIN = 2.0
"""The linear estimate has to be within this factor of the actual change."""


def first_hop(evidence: Evidence) -> Finding:
    """Claim 3."""
    seeds = evidence.learned_seeds(FIRST)
    stored = _mass(evidence, seeds, FIRST, "informative")
    read = _mass(evidence, seeds, FIRST, "downstream")
    parts = [
        _share_gap("Informative, share at the name minus share at the last token", stored),
        _share_gap("Downstream, share at the last token minus share at the name", read, -1),
        difference("Layers from informative to downstream", read["centre"] - stored["centre"]),
    ]
    return _mapped([("informative", stored), ("downstream", read)], parts, seeds)


def second_hop(evidence: Evidence) -> Finding:
    """Claim 4."""
    seeds = evidence.learned_seeds(*TASKS)
    stored = _mass(evidence, seeds, SECOND, "informative")
    first = _mass(evidence, seeds, FIRST, "informative")
    parts = [
        _share_gap("Informative, share at the last token minus share at the place", stored, -1),
        difference("Layers from that of first-hop to it", stored["centre"] - first["centre"]),
    ]
    return _mapped([("informative", stored), ("informative of first-hop", first)], parts, seeds)


def _mass(evidence: Evidence, seeds: Seeds, task: str, score: str) -> pd.DataFrame:
    """Where the positive MLP scores are: entity and last (shares), centre (layer), by seed."""
    rows = evidence.rows("extractive_scores", task=task, score=score, kind="mlp")
    by_seed = {seed: _places(rows[rows["seed"] == seed]) for seed in seeds.kept}
    table = pd.DataFrame.from_dict(by_seed, orient="index", columns=["entity", "last", "centre"])
    if table.isna().to_numpy().any():
        bad = table.index[table.isna().any(axis=1)][0]
        raise InconclusiveError(f"No MLP has a positive {score} score on {task}, seed {bad}.")
    return table


def _places(rows: pd.DataFrame) -> tuple[float, float, float]:
    positive = rows["value"].astype(float).clip(lower=0)
    total = float(positive.sum())
    if not total > 0:
        return math.nan, math.nan, math.nan
    entity = rows["token"].astype(str).str.fullmatch(ENTITY)
    last = rows["place"] == rows["place"].max()
    return (
        float(positive[entity].sum()) / total,
        float(positive[last].sum()) / total,
        float(np.dot(positive, rows["layer"])) / total,
    )


def _share_gap(what: str, mass: pd.DataFrame, sign: int = 1) -> Finding:
    return difference(f"{what}, in points", 100 * sign * (mass["entity"] - mass["last"]), 1)


def _mapped(maps: list[tuple[str, pd.DataFrame]], parts: list[Finding], seeds: Seeds) -> Finding:
    return judged_by(
        parts,
        seeds,
        "Positive scores of MLPs.",
        *(
            f"{name.capitalize()}: {percent(mass['entity'].mean())} at the name or place, "
            f"{percent(mass['last'].mean())} at the last token, centre at layer "
            f"{number(mass['centre'].mean())} (from 0; {per_seed(mass['centre'])} in each seed)."
            for name, mass in maps
        ),
    )


def localization(evidence: Evidence) -> Finding:
    """Claim 10."""
    seeds = evidence.facts_then_new()
    mlps = _correlated(evidence, seeds, "mlp")
    return seeds.finding(
        mlps.met,
        "Correlation over components of informative scores, where implications are learned, and "
        "downstream ones, where new facts are read out.",
        f"MLPs: {mlps.figure}",
        _heads_too(evidence, seeds),
    )


@beside
def _heads_too(evidence: Evidence, seeds: Seeds) -> str:
    return f"Heads, which decide nothing: {_correlated(evidence, seeds, 'head').figure}"


def _correlated(evidence: Evidence, seeds: Seeds, kind: str) -> Finding:
    rows = evidence.by_seed("extractive_localization_r2", seeds, kind=kind)
    if rows["r"].isna().any():
        raise InconclusiveError(
            f"A correlation over {kind}s is missing: too few, or all are equal."
        )
    part = difference("r", rows["r"].astype(float), correlation=True)
    met = part.met
    if len(rows) == 1:
        r, p = float(rows["r"].iloc[0]), float(rows["p"].iloc[0])
        met = ruled(p <= ALPHA and r > 0, p <= ALPHA)
    shown = "; ".join(
        f"{number(row['r'])} ({p_value(float(row['p']))}, {int(row['n'])} of them)"
        for _, row in rows.iterrows()
    )
    squared, chance = float(rows["r2"].mean()), float((1 / (rows["n"] - 1)).mean())
    figure = f"r\u00b2 {number(squared)} ({number(chance)} by chance), r in each seed {shown}, "
    figure += part.figure
    return Finding(met, figure)


def linear(evidence: Evidence) -> Finding:
    """Claim 11."""
    name = "extractive_sums"
    seeds = evidence.learned_seeds(*TASKS)
    seeds = seeds.keep(lambda seed: _not_raised(evidence, seed))
    tables = {task: evidence.by_seed(name, seeds, task=task) for task in TASKS}
    sums = {task: rows["informative"] + rows["other"] for task, rows in tables.items()}
    near = pd.DataFrame(
        {
            (task, what): (change / tables[task]["actual"]).between(1 / WITHIN, WITHIN)
            for task in tables
            for what, change in (("scores", sums[task]), ("estimate", tables[task]["gradient"]))
        }
    )
    met, counts = over_seeds(near.all(axis=1).tolist())
    changes = " ".join(
        f"{task.capitalize()}: estimated {per_seed(rows['gradient'])}, actual "
        f"{per_seed(rows['actual'])}, correlation over prompts {per_seed(rows['r'])}."
        for task, rows in tables.items()
    )
    off = max(float((sums[task] - rows["gradient"]).abs().max()) for task, rows in tables.items())
    return seeds.finding(
        met,
        f"Change of the reward of implications, in each seed. {changes}",
        f"Scores miss the estimate that they sum to by {number(off, 5)} at most.",
        counts,
    )


def _not_raised(evidence: Evidence, seed: int) -> str | None:
    for task in TASKS:
        actual = float(evidence.row("extractive_sums", task=task, seed=seed)["actual"])
        if not actual > 0:
            return f"training does not raise the reward of {task} implications ({number(actual)})"
    return None


LIMIT = 2 / 9.5
"""Implications are known below this share of the mean rank of guessing: below 2 of 20 options."""


def verdicts(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Judge every claim by the tables of a study, which are given by name.

    Raises:
        InputError: a table has several rows where one is expected.
    """
    return judged(CLAIMS, Evidence(tables))


def recall(evidence: Evidence, task: str) -> Finding:
    """Claims 1 and 2."""
    seeds = evidence.learned_seeds(task)
    before, after = (
        evidence.by_seed("extractive_ranks", seeds, task=task, data="implications", state=state)
        for state in ("before", "after")
    )
    pairs = zip(before.iterrows(), after.iterrows(), strict=True)
    met, counts = over_seeds([_known(old, new) for (_, old), (_, new) in pairs])
    intervals = "; ".join(
        f"seed {seed}: {number(row['mean_rank'])} {ends(row_interval(row))}"
        for seed, row in after.iterrows()
    )
    chance = float(after["chance"].iloc[0])
    return seeds.finding(
        met,
        f"Mean rank of the {task} implications after training on the facts (0 is best, "
        f"{number(chance, 1)} is chance, {number(LIMIT * chance)} the limit): {intervals}.",
        f"Before: {per_seed(before['mean_rank'])}.",
        counts,
    )


def _known(before: pd.Series[Any], after: pd.Series[Any]) -> bool | None:
    limit = LIMIT * float(after["chance"])
    better = after["high"] < after["chance"] and after["high"] < before["low"]
    return ruled(after["mean_rank"] < limit and better, after["low"] > limit)


def freezing(evidence: Evidence, way: str) -> Finding:
    """Claims 5 and 6."""
    seeds = evidence.learned_seeds(*TASKS)
    areas = {task: _area(evidence, seeds, way, task) for task in TASKS}
    n_cuts = evidence.rows("extractive_freezing", way=way)["cut"].nunique()
    apart = difference("First-hop minus second-hop", areas[FIRST] - areas[SECOND])
    right = (areas[FIRST] > 0) & (areas[SECOND] < 0)
    signs = ruled(right.all(), 2 * int(right.sum()) < len(right) and len(right) > 1)
    means = ", ".join(
        f"{task} {joined(number(interval.mean), ends(interval))} ({per_seed(area)})"
        for task, area in areas.items()
        for interval in [t_interval(area)]
    )
    return seeds.finding(
        all_of([signs, apart.met]),
        f"Mean rank of the implications with early layers frozen minus that with late ones, mean "
        f"over {count(n_cuts, 'cut')} (in each seed): {means}.",
        apart.figure,
        f"Above 0 for first-hop and below for second-hop in {int(right.sum())} of {len(right)}.",
        one_seed(seeds),
    )


def _area(evidence: Evidence, seeds: Seeds, way: str, task: str) -> pd.Series[float]:
    """Area between the curves of early and late layers frozen, as a mean over cuts, by seed."""
    where = {"way": way, "task": task, "data": "implications"}
    rows = evidence.rows_by("extractive_freezing", "seed", "cut", "frozen", **where)
    rows = rows[rows["frozen"].isin(["early", "late"]) & rows["seed"].isin(seeds.kept)]
    curves = rows.pivot(index=["seed", "cut"], columns="frozen", values="mean_rank").astype(float)
    if {*curves.columns} != {"early", "late"} or bool(curves.isna().to_numpy().any()):
        raise InconclusiveError(f"Table extractive_freezing lacks early or late layers of {task}.")
    area = (curves["early"] - curves["late"]).groupby("seed").mean()
    if missing := [seed for seed in seeds.kept if seed not in area.index]:
        raise InconclusiveError(f"Table extractive_freezing has no seed {missing[0]} of {task}.")
    return area.loc[list(seeds.kept)]


def ordering(evidence: Evidence, *, replay: bool) -> Finding:
    """Claims 7 and 8."""
    name, orders = "extractive_ordering", ("joint", "facts first", "implications first")
    seeds = evidence.seeds(name, {"replay": replay})

    def ranks(seeds: Seeds, data: str) -> dict[str, pd.Series[float]]:
        where = {"replay": replay, "data": data}
        return {
            order: evidence.values(name, "mean_rank", seeds, order=order, **where)
            for order in orders
        }

    learned = ranks(seeds, "test facts")
    seeds = seeds.keep(
        lambda seed: _missed("test", {order: values[seed] for order, values in learned.items()})
    )
    tested = ranks(seeds, "test implications")
    last = tested["implications first"]
    parts = [
        difference(f"Implications first minus {order}", last - tested[order])
        for order in orders[:2]
    ]
    rows = evidence.rows(name, replay=replay, data="test implications")
    return judged_by(parts, seeds, _all_ranks("the test names' implications", tested, rows))


def grafting(evidence: Evidence) -> Finding:
    """Claim 9."""
    name, data = "extractive_grafting", "other implications"
    seeds = evidence.seeds(name)
    facts = evidence.values(name, "mean_rank", seeds, model="other facts", data="other facts")
    seeds = seeds.keep(lambda seed: _missed("other", {"before grafting": facts[seed]}))
    ranks = {
        model: evidence.values(name, "mean_rank", seeds, model=model, data=data)
        for model in ("other facts", "graft", "control graft")
    }
    parts = [
        difference(f"Lower than {what} by", ranks[model] - ranks["graft"])
        for model, what in (("other facts", "without a graft"), ("control graft", "the control"))
    ]
    rows = evidence.rows(name, data=data)
    return judged_by(parts, seeds, _all_ranks("what follows from the other facts", ranks, rows))


def _missed(which: str, ranks: Mapping[str, float]) -> str | None:
    missed = not_learned(ranks)
    return f"the {which} facts are not learned, mean rank {missed}" if missed else None


def _all_ranks(what: str, ranks: Mapping[str, pd.Series[float]], rows: pd.DataFrame) -> str:
    means = ", ".join(
        f"{name} {number(float(by_seed.mean()))} ({per_seed(by_seed)})"
        for name, by_seed in ranks.items()
    )
    chance = number(float(rows["chance"].iloc[0]), 1)
    return f"Mean rank of {what} (0 is best, {chance} is chance; in each seed): {means}."


CLAIMS: tuple[tuple[str, Callable[[Evidence], Finding]], ...] = (
    (
        "First-hop implications of fine-tuned facts are known untrained",
        partial(recall, task=FIRST),
    ),
    (
        "Second-hop implications of fine-tuned facts are known untrained",
        partial(recall, task=SECOND),
    ),
    ("First-hop facts are stored in MLPs at the name and read out later at the end", first_hop),
    ("Second-hop facts are stored in later MLPs at the last token", second_hop),
    (
        "Undoing early layers costs first-hop implications, late ones second-hop",
        partial(freezing, way="reverted"),
    ),
    (
        "Training late layers alone does too for first-hop, early for second-hop",
        partial(freezing, way="trained"),
    ),
    (
        "Implications before facts teach less than facts first or both at once",
        partial(ordering, replay=False),
    ),
    ("With replay, implications before facts teach less, too", partial(ordering, replay=True)),
    ("What implications teach after facts can be grafted onto other facts", grafting),
    ("MLPs that learn implications are those that read out new facts", localization),
    ("The scores add up to about the actual change of the reward", linear),
)
