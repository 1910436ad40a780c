"""Verdicts on the paper's claims, with their decision rules.

The claims are those of arXiv 2412.04614 on where a fine-tuned fact is stored, queried and read
out; the rules are this project's. Claims 3, 4, 10 and 11, which stand on the scores, are judged in
`mechcore.papers.extractive.verdicts_on_scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd

from mechcore.papers.evidence import (
    Finding,
    InconclusiveError,
    Seeds,
    all_of,
    ends,
    joined,
    judged,
    over_seeds,
    row_interval,
    ruled,
    t_interval,
)
from mechcore.papers.extractive.evidence import (
    FIRST,
    SECOND,
    Evidence,
    difference,
    judged_by,
    not_learned,
    one_seed,
    per_seed,
)
from mechcore.papers.extractive.verdicts_on_scores import (
    first_hop,
    linear,
    localization,
    second_hop,
)
from mechcore.wording import count, number

LIMIT = 2 / 9.5
"""Implications are known below this share of the mean rank of guessing: below 2 of 20 options."""


def verdicts(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Judge every claim by the tables of a study.

    "supported": the rule below is met. "not supported": the evidence contradicts it, as told below.
    "inconclusive": anything else, be it that a table is missing or that the data do not suffice;
    ``figure`` says which.

    **Seeds.** A seed counts if the facts that the claim is about were learned: their mean rank is
    below 1 (0 is best) after training. Seeds left out are named. A *difference* is met if it is
    above 0 in every seed, and so is its 95 % t interval over seeds; contradicted if it is not above
    0 in more than half of the seeds, or its interval is not at either end; open otherwise, and with
    one seed, whose difference has no interval. A claim with several differences is supported if all
    are met, and not supported if one is contradicted. Ranks are mean ranks.

    1. and 2. *Out-of-context reasoning* (``extractive_ranks``), first-hop and second-hop. Every
       seed: after training on the facts the implications' rank is below 2 / 9.5 of chance (below
       2 of 20 options), its interval over prompts ends below chance, and below where that of before
       begins. Contradicted where the interval is above that limit; not supported if it is in more
       than half of the seeds.
    3. *First-hop map* (``extractive_scores``, MLPs, positive values). Differences: the share of
       informative scores at the tokens of the name minus that at the last token; the share of
       downstream scores at the last token minus that at the name; the centre of mass over layers
       of downstream minus that of informative scores.
    4. *Second-hop map* (the same). Differences: the share of informative scores at the last token
       minus that at the tokens of the place; their centre of mass over layers minus that of
       first-hop.
    5. and 6. *Freezing* (``extractive_freezing``), weights reverted after training, and a group
       not trained at all. The area between two curves, ranks of implications with early and with
       late layers frozen, as a mean over the cuts that were tried, by default all. It is above 0
       for first-hop and below for second-hop in every seed, and the difference of the two areas is
       met. Contradicted if these signs are not found in more than half of the seeds, or the
       difference is.
    7. and 8. *Ordering* (``extractive_ordering``), without and with replay of the first phase's
       data in the second. Differences of the rank of test implications: implications first minus
       facts first, and minus joint. The facts that must be learned are the test facts, in all
       orders.
    9. *Grafting* (``extractive_grafting``). Differences of the rank of the other facts'
       implications: that model without a graft minus the graft, and the control graft minus the
       graft. The facts that must be learned are the other facts, before grafting.
    10. *Localisation* (``extractive_localization_r2``). Difference: r over MLPs, whose interval is
        that of Fisher's z. With one seed p must be at most 0.05: then met above 0, and contradicted
        below. Heads are told beside it. The facts that must be learned are the facts and the new
        facts.
    11. *Linear estimate* (``extractive_sums``). Every seed: for both tasks the mean sum of the
        scores, and the mean estimate, are between half and twice the mean actual change; else
        contradicted. Seeds in which training does not raise the reward of both tasks' implications
        do not count.

    The remaining columns and tables are named in the sentences and decide nothing.

    Args:
        tables: of a study, by name, see `mechcore.papers.extractive.study`.

    Returns:
        One row per claim: ``claim`` (1 to 11), ``title``, ``verdict`` and ``figure`` (sentences
        with ranks, shares in percent, layers from 0; for what is inconclusive also why).

    Raises:
        InputError: a table lacks a column, or has several rows where one is expected.
    """
    return judged(CLAIMS, Evidence(tables))


# -- 1, 2: out-of-context reasoning ---------------------------------------------------------------


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


# -- 5, 6: freezing -------------------------------------------------------------------------------


def freezing(evidence: Evidence, way: str) -> Finding:
    """Claims 5 and 6."""
    seeds = evidence.learned_seeds(FIRST, SECOND)
    areas = {task: _area(evidence, seeds, way, task) for task in (FIRST, SECOND)}
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


# -- 7, 8: ordering; 9: grafting ------------------------------------------------------------------


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
        lambda seed: _missed("test", {order: each[seed] for order, each in learned.items()})
    )
    found = ranks(seeds, "test implications")
    last = found["implications first"]
    parts = [
        difference(f"Implications first minus {order}", last - found[order]) for order in orders[:2]
    ]
    rows = evidence.rows(name, replay=replay, data="test implications")
    return judged_by(parts, seeds, _all_ranks("the test names' implications", found, rows))


def grafting(evidence: Evidence) -> Finding:
    """Claim 9."""
    name, data = "extractive_grafting", "other implications"
    seeds = evidence.seeds(name)
    facts = evidence.values(name, "mean_rank", seeds, model="other facts", data="other facts")
    seeds = seeds.keep(lambda seed: _missed("other", {"before grafting": facts[seed]}))
    found = {
        model: evidence.values(name, "mean_rank", seeds, model=model, data=data)
        for model in ("other facts", "graft", "control graft")
    }
    parts = [
        difference(f"Lower than {what} by", found[model] - found["graft"])
        for model, what in (("other facts", "without a graft"), ("control graft", "the control"))
    ]
    rows = evidence.rows(name, data=data)
    return judged_by(parts, seeds, _all_ranks("what follows from the other facts", found, rows))


def _missed(which: str, ranks: Mapping[str, float]) -> str | None:
    missed = not_learned(ranks)
    return f"the {which} facts are not learned, mean rank {missed}" if missed else None


def _all_ranks(what: str, found: Mapping[str, pd.Series[float]], rows: pd.DataFrame) -> str:
    ranks = ", ".join(
        f"{name} {number(float(each.mean()))} ({per_seed(each)})" for name, each in found.items()
    )
    chance = number(float(rows["chance"].iloc[0]), 1)
    return f"Mean rank of {what} (0 is best, {chance} is chance; in each seed): {ranks}."


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
"""Title of every claim, in order from 1, and what judges it."""
