"""Claims 2, 3 and 6: in which layers heads matter, what they attend to, what they put out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binom

from mechcore.errors import InputError
from mechcore.evaluation.intervals import Interval
from mechcore.papers.evidence import (
    ALPHA,
    Finding,
    InconclusiveError,
    Seeds,
    Tables,
    above_zero,
    beside,
    ends,
    listed,
    mean,
    over_seeds,
    percent,
    points,
    row_interval,
    ruled,
    t_interval,
)
from mechcore.wording import count, number

BASE, FINE_TUNED, SCRATCH = "base", "fine_tuned", "scratch"
MODEL = {BASE: "base model", FINE_TUNED: "fine-tuned model", SCRATCH: "model from scratch"}

IGNORING_CONTEXT = 0.75
"""Accuracy of following one modality always: a model has learned the task only above it."""

NEGLIGIBLE = 0.05
"""An accuracy that is surely no more than this above its floor reads nothing (a share)."""

_ROUNDING = 1e-9  # two shares this close are equal: 0.96 - 0.94 is more than 0.02 in floating point


@dataclass(frozen=True, eq=False)
class Evidence(Tables):
    """The tables of a study of the cognitive task; arms match up to ``threshold_gap`` (a share)."""

    threshold_gap: float

    def trained_seeds(self, *arms: str, matched: bool = False) -> Seeds:
        """Seeds in which all these arms have learned the task, and are matched if asked for."""
        every = self.seeds("cognitive_models", *({"arm": arm} for arm in arms))
        return every.keep(lambda seed: self._no_good(seed, arms, matched))

    def _no_good(self, seed: int, arms: Sequence[str], matched: bool) -> str | None:
        for arm in arms:
            try:
                model = self.row("cognitive_models", arm=arm, seed=seed)
            except InconclusiveError:
                return f"it has no {MODEL[arm]}"
            if not model["low"] > IGNORING_CONTEXT:
                return (
                    f"the {MODEL[arm]} has not learned the task, its accuracy is "
                    f"{percent(model['accuracy'])} and its interval begins at "
                    f"{percent(model['low'])}, not above the {percent(IGNORING_CONTEXT)} of "
                    "ignoring the context"
                )
            if matched and not model["gap"] <= self.threshold_gap + _ROUNDING:
                return (
                    f"the arms are not matched, their accuracies differ by {points(model['gap'])}, "
                    f"more than {points(self.threshold_gap)}"
                )
        return None


FILL = "mean"
"""The ablation that decides; the other one is named beside it."""

TARGETS = {
    "congruent": "congruence",
    "condition": "the 8 conditions",
    "correct": "whether the answer is right",
}


def layers(evidence: Evidence) -> Finding:
    """Claim 2: what fine-tuning needs is in later layers than what training from scratch needs."""
    seeds = evidence.trained_seeds(FINE_TUNED, SCRATCH, matched=True)
    seeds = seeds.keep(lambda seed: _no_centre(evidence, seed))
    fine, scratch = (_mass(evidence, arm, seeds) for arm in (FINE_TUNED, SCRATCH))
    difference = t_interval(fine["centre"] - scratch["centre"])
    significant = float((fine["centre_significant"] - scratch["centre_significant"]).mean())
    later, earlier = fine["low"] > scratch["high"], scratch["low"] > fine["high"]
    own = [ruled(*sides) for sides in zip(later, earlier, strict=True)]
    met, why = _later(difference, significant, own)
    n = len(own)
    how = (
        f"{ends(difference)}, t interval over {count(n, 'seed')}"
        if n > 1
        else "1 seed, judged by the models' own intervals, "
        f"{ends(row_interval(fine.iloc[0]))} and {ends(row_interval(scratch.iloc[0]))}"
    )
    return seeds.finding(
        met,
        "Centre of mass of the changes under mean ablation, layers from 0: "
        f"{number(fine['centre'].mean())} fine-tuned, {number(scratch['centre'].mean())} from "
        f"scratch, a difference of {number(difference.mean)} layers ({how}).",
        "Of the heads alone whose change is surely below 0: "
        f"{number(fine['centre_significant'].mean())} and "
        f"{number(scratch['centre_significant'].mean())}.",
        _zero_mode(evidence, seeds),
        f"The most damaging head is in layer 0 in {_first(scratch)} of {n} models from scratch "
        f"and in {_first(fine)} of {n} fine-tuned; layer 0 has "
        f"{percent(scratch['first_layer_share'].mean())} of what is lost from scratch and "
        f"{percent(fine['first_layer_share'].mean())} fine-tuned.",
        why,
    )


def _later(
    difference: Interval, significant: float, own: Sequence[bool | None]
) -> tuple[bool | None, str]:
    """Whether the centre is later; ``own``: whether it is by the intervals of each seed."""
    if len(own) == 1:
        met, why = own[0], "These intervals overlap."
    else:
        met, why = above_zero(difference), "The interval has 0 in it."
    if met is None:
        return None, why
    if (not met) in own:
        return None, "The two models of a seed differ the other way by their intervals."
    if met != (significant > 0):
        return None, "The heads alone whose change is surely below 0 say the opposite."
    return met, ""


def _mass(evidence: Evidence, arm: str, seeds: Seeds, fill: str = FILL) -> pd.DataFrame:
    return evidence.by_seed("cognitive_mass", seeds, arm=arm, fill=fill, subset="all")


def _no_centre(evidence: Evidence, seed: int) -> str | None:
    for arm in (FINE_TUNED, SCRATCH):
        centres = _mass(evidence, arm, Seeds((seed,)))["centre_significant"]
        if centres.isna().any():
            return f"no head of the {MODEL[arm]} has a change that is surely below 0"
    return None


def _first(mass: pd.DataFrame) -> int:
    """In how many models the strongest head is in layer 0."""
    return sum(str(component).startswith("L0.") for component in mass["strongest"])


@beside
def _zero_mode(evidence: Evidence, seeds: Seeds) -> str:
    fine, scratch = (_mass(evidence, arm, seeds, "zero") for arm in (FINE_TUNED, SCRATCH))
    centres = f"{number(fine['centre'].mean())} and {number(scratch['centre'].mean())}"
    return f"Under zero ablation: {centres}."


def numbers(evidence: Evidence) -> Finding:
    """Claim 3: the first layer's heads from scratch attend to the numbers."""
    seeds, ratios = _first_layers(evidence, SCRATCH)
    met, counts = over_seeds([_above_one(ratio, alone=len(ratios) == 1) for ratio in ratios])
    values = ", ".join(f"{number(ratio.mean)} {ends(ratio)}".rstrip() for ratio in ratios)
    return seeds.finding(
        met,
        "Weighted by what their ablation costs, the heads of layer 0 from scratch give the numbers "
        f"{number(mean(ratio.mean for ratio in ratios))} times the attention of a uniform head "
        f"({count(len(ratios), 'seed')}: {values}).",
        counts,
        _fine_tuned_ratio(evidence),
        _rank_correlation(evidence, seeds),
    )


def _first_layers(evidence: Evidence, arm: str) -> tuple[Seeds, list[Interval]]:
    """The weighted ratio of layer 0 for every seed in which one of its heads surely costs."""
    seeds = evidence.trained_seeds(arm)
    heads = {seed: _first_layer(evidence, arm, seed) for seed in seeds.kept}
    none = "no head of layer 0 has a change that is surely below 0"
    seeds = seeds.keep(lambda seed: None if heads[seed]["sure"].any() else none)
    return seeds, [_weighted_ratio(heads[seed]) for seed in seeds.kept]


def _first_layer(evidence: Evidence, arm: str, seed: int) -> pd.DataFrame:
    ablation = evidence.rows("cognitive_ablation", arm=arm, seed=seed, layer=0, fill=FILL)
    attention = evidence.rows("cognitive_attention", arm=arm, seed=seed, layer=0)
    changes = ablation[["component", "change", "sure"]]
    heads = changes.merge(attention, on="component")
    if not len(heads) == len(changes) == len(attention):
        raise InputError(
            f"tables cognitive_ablation and cognitive_attention: {len(changes)} and "
            f"{len(attention)} rows of layer 0 of the {MODEL[arm]} of seed {seed}, that do "
            "not name the same heads; expected one row for each head in both"
        )
    return heads


def _weighted_ratio(heads: pd.DataFrame) -> Interval:
    """Mean of the ratios, and of the ends of their intervals, which errs on the wide side."""
    weights = -heads["change"].clip(upper=0)
    value, low, high = (
        float(np.average(heads[column], weights=weights))
        for column in ("ratio", "low_ratio", "high_ratio")
    )
    return Interval(value, low, high)


def _above_one(ratio: Interval, *, alone: bool) -> bool | None:
    if math.isnan(ratio.low):
        return None if alone or math.isnan(ratio.mean) else ratio.mean > 1
    return ruled(ratio.low > 1, ratio.high <= 1)


@beside
def _fine_tuned_ratio(evidence: Evidence) -> str:
    _, ratios = _first_layers(evidence, FINE_TUNED)
    ratio = number(mean(interval.mean for interval in ratios))
    return f"Fine-tuned, the same is {ratio} ({count(len(ratios), 'seed')})."


@beside
def _rank_correlation(evidence: Evidence, seeds: Seeds) -> str:
    rows = evidence.by_seed("cognitive_attention_change", seeds, arm=SCRATCH, fill=FILL)
    small = int((rows["p"] <= ALPHA).sum())
    return (
        "Rank correlation of attention to the numbers with the change, over all heads from "
        f"scratch: {number(mean(rows['rho']))} (p at most {ALPHA} in {small} of "
        f"{count(len(rows), 'seed')})."
    )


def responses(evidence: Evidence) -> Finding:
    """Claim 6: the outputs of attention heads tell the model's answer."""
    seeds = evidence.trained_seeds(FINE_TUNED)
    heads = [_heads(evidence, "choice", seed) for seed in seeds.kept]
    above = [_n_above(of_seed) for of_seed in heads]
    below = [(of_seed["high"] < _to_beat(of_seed) + NEGLIGIBLE).all() for of_seed in heads]
    met, counts = over_seeds([ruled(*pair) for pair in zip(above, below, strict=True)])
    best = _best(heads)
    return seeds.finding(
        met,
        "A linear classifier tells the fine-tuned model's answer from the output of one head in "
        f"{percent(best['accuracy'].mean())} of trials (best head, mean over "
        f"{count(len(best), 'seed')}: {listed(dict.fromkeys(best['component']))}; "
        f"floor {percent(best['floor'].mean())}, 95th percentile of shuffles "
        f"{percent(best['shuffled_high'].mean())}).",
        f"Above that after Bonferroni: {_range(above)} of {_range(map(len, heads))} heads.",
        counts,
        *(_best_for(evidence, target, words, seeds) for target, words in TARGETS.items()),
    )


def _heads(evidence: Evidence, target: str, seed: int) -> pd.DataFrame:
    where = {"arm": FINE_TUNED, "seed": seed, "target": target}
    rows = evidence.rows_by("cognitive_svm", "component", **where)
    decoded = rows[rows["accuracy"].notna()].reset_index(drop=True)
    if decoded.empty:
        raise InconclusiveError(
            f"In seed {seed} a class has too few examples for decoding {target!r}."
        )
    return decoded


def _best(heads: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([of_seed.nlargest(1, "accuracy") for of_seed in heads])


def _to_beat(heads: pd.DataFrame) -> pd.Series[Any]:
    return heads[["floor", "shuffled_high"]].max(axis=1)


def _n_above(heads: pd.DataFrame) -> int:
    """How many heads are above what they are to beat, corrected for looking at all of them."""
    right = (heads["accuracy"] * heads["n"]).round()
    exact = binom.sf(right - 1, heads["n"], _to_beat(heads))
    return int(((exact * len(heads) <= ALPHA) & (heads["p"] <= ALPHA)).sum())


@beside
def _best_for(evidence: Evidence, target: str, words: str, seeds: Seeds) -> str:
    best = _best([_heads(evidence, target, seed) for seed in seeds.kept])
    accuracy, floor = percent(best["accuracy"].mean()), percent(best["floor"].mean())
    return f"Best head for {words}: {accuracy} (floor {floor})."


def _range(counts: Iterable[int]) -> str:
    low, *_, high = sorted([*counts] * 2)
    return str(low) if low == high else f"{low} to {high}"
