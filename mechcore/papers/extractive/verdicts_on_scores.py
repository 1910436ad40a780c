"""Claims 3, 4, 10 and 11: what the extractive scores say.

The rules are told in `mechcore.papers.extractive.verdicts`.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from mechcore.papers.evidence import (
    ALPHA,
    Finding,
    InconclusiveError,
    Seeds,
    beside,
    over_seeds,
    percent,
    ruled,
)
from mechcore.papers.extractive.evidence import (
    FIRST,
    SECOND,
    Evidence,
    difference,
    judged_by,
    per_seed,
)
from mechcore.wording import number, p_value

ENTITY = r"subject -\d+"
"""Labels of the tokens of the name or place that a prompt is about."""

WITHIN = 2.0
"""The linear estimate has to be within this factor of the actual change."""


# -- 3, 4: maps -----------------------------------------------------------------------------------


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
    seeds = evidence.learned_seeds(FIRST, SECOND)
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
    found = {seed: _places(rows[rows["seed"] == seed]) for seed in seeds.kept}
    table = pd.DataFrame.from_dict(found, orient="index", columns=["entity", "last", "centre"])
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


# -- 10: localisation -----------------------------------------------------------------------------


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


# -- 11: the linear estimate ----------------------------------------------------------------------


def linear(evidence: Evidence) -> Finding:
    """Claim 11."""
    name = "extractive_sums"
    seeds = evidence.learned_seeds(FIRST, SECOND)
    seeds = seeds.keep(lambda seed: _not_raised(evidence, seed))
    tables = {task: evidence.by_seed(name, seeds, task=task) for task in (FIRST, SECOND)}
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
    for task in (FIRST, SECOND):
        actual = float(evidence.row("extractive_sums", task=task, seed=seed)["actual"])
        if not actual > 0:
            return f"training does not raise the reward of {task} implications ({number(actual)})"
    return None
