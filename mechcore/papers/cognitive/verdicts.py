"""Verdicts on the claims of arXiv 2406.18926, with those of `verdicts_on_heads`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from mechcore.errors import InputError
from mechcore.evaluation.intervals import Interval
from mechcore.papers.cognitive.text import VARIABLES
from mechcore.papers.cognitive.verdicts_on_heads import (
    BASE,
    FINE_TUNED,
    MODEL,
    NEGLIGIBLE,
    SCRATCH,
    Evidence,
    layers,
    numbers,
    responses,
)
from mechcore.papers.evidence import (
    ALPHA,
    Finding,
    InconclusiveError,
    Seeds,
    above_zero,
    all_of,
    beside,
    ends,
    joined,
    judged,
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

GROUPINGS = ("context", "choice")
NO_INTERVAL = "With one seed these differences have no interval."


def verdicts(tables: Mapping[str, pd.DataFrame], *, threshold_gap: float = 0.02) -> pd.DataFrame:
    """Judge every claim by the tables of a study, which are given by name.

    Arms are matched if their accuracies differ by at most ``threshold_gap`` (a share).

    Raises:
        InputError: a table has several rows where one is expected.
    """
    return judged(CLAIMS, Evidence(tables, threshold_gap))


def samples(evidence: Evidence) -> Finding:
    """Claim 1: from scratch needs more examples."""
    fine, scratch = (
        evidence.rows_by("cognitive_samples", "seed", arm=arm).set_index("seed")
        for arm in (FINE_TUNED, SCRATCH)
    )
    seeds = Seeds(tuple(seed for seed in fine.index if seed in scratch.index))
    if not seeds.kept:
        raise InconclusiveError("Table cognitive_samples has no seed of both trained arms.")
    thresholds = sorted({*fine["threshold"], *scratch["threshold"]})
    if len(thresholds) != 1:
        raise InputError(f"table cognitive_samples: thresholds {thresholds}; expected one")
    fine, scratch = (rows.loc[list(seeds.kept)] for rows in (fine, scratch))
    few, many = (rows["samples"].astype(float).fillna(math.inf) for rows in (fine, scratch))
    fewer = (few < many) & (few <= scratch["largest"])
    more = (many < few) & (many <= fine["largest"])
    met = [ruled(*pair) for pair in zip(fewer, more, strict=True)]
    how = ""
    if len(met) == 1 and met[0] is not None:
        apart, how = _apart_by_themselves(evidence, seeds.kept[0], few.iloc[0], many.iloc[0])
        met = met if apart else [None]
    verdict, counts = over_seeds(met)
    return seeds.finding(
        verdict,
        f"To reach {percent(thresholds[0])} accuracy the fine-tuned arm needs {_typical(fine)} "
        f"examples, the arm from scratch {_typical(scratch)}{_ratio(fine, scratch)}"
        f"{' (medians over the seeds)' if len(met) > 1 else ''}.",
        how,
        counts,
    )


def _median(rows: pd.DataFrame) -> tuple[float, bool]:
    """The median; or, where it is not known, what it is above, and that it is."""
    middle = float(rows["samples"].astype(float).fillna(math.inf).median())
    if math.isfinite(middle):
        return middle, False
    return float(rows["samples"].fillna(rows["largest"]).median()), True


def _typical(rows: pd.DataFrame) -> str:
    n, is_above = _median(rows)
    return f"{'more than ' if is_above else ''}{n:,.0f}"


def _ratio(fine: pd.DataFrame, scratch: pd.DataFrame) -> str:
    (few, unknown), (many, is_above) = _median(fine), _median(scratch)
    if unknown:
        return ""
    if many == few and not is_above:
        return ", as many"
    return f", {'more than ' if is_above else ''}{many / few:.3g} times as many"


def _apart_by_themselves(
    evidence: Evidence, seed: int, fine: float, scratch: float
) -> tuple[bool, str]:
    """One seed: whether the accuracies differ at the number that is enough for the first arm."""
    n = int(min(fine, scratch))
    rows = [
        evidence.row("cognitive_curve", arm=arm, seed=seed, n=n) for arm in (FINE_TUNED, SCRATCH)
    ]
    better, worse = rows if fine < scratch else rows[::-1]
    said = " and ".join(ends(row_interval(row), 100, 1) for row in rows)
    return bool(better["low"] > worse["high"]), (
        f"With one seed judged by the models' own intervals: with {n:,} examples their accuracies "
        f"in percent are {said}."
    )


def decoding(evidence: Evidence) -> Finding:
    """Claim 4: a linear readout of the last layer gives all four variables."""
    seeds = evidence.trained_seeds(FINE_TUNED)
    layer = _last_layer(evidence)
    decoded = {name: _decoded(evidence, FINE_TUNED, seeds, layer, name) for name in VARIABLES}
    met = {name: [_read(row) for _, row in rows.iterrows()] for name, rows in decoded.items()}
    verdict, counts = over_seeds([all_of(of_seed) for of_seed in zip(*met.values(), strict=True)])
    accuracies = ", ".join(
        f"{name} {percent(rows['accuracy'].mean())} (floor {percent(rows['floor'].mean())})"
        for name, rows in decoded.items()
    )
    return seeds.finding(
        verdict,
        f"Decoded from layer {layer} (from 0) at the answer, fine-tuned, means over "
        f"{count(len(seeds.kept), 'seed')}: {accuracies}.",
        f"Above the floor in every seed: {listed(name for name in VARIABLES if all(met[name]))}.",
        counts,
        *(_also_read(evidence, arm, layer) for arm in (BASE, SCRATCH)),
        _failed_checks(evidence),
    )


def _last_layer(evidence: Evidence) -> int:
    """Last layer that was decoded, which must be the model's last."""
    layer = int(evidence.rows("cognitive_decoding", arm=FINE_TUNED)["layer"].max())
    try:
        last = int(evidence.rows("cognitive_ablation", arm=FINE_TUNED)["layer"].max())
    except InconclusiveError:
        return layer
    if layer < last:
        raise InconclusiveError(f"Decoding ends at layer {layer}, the model at layer {last}.")
    return layer


def _decoded(evidence: Evidence, arm: str, seeds: Seeds, layer: int, variable: str) -> pd.DataFrame:
    where = {"arm": arm, "layer": layer, "position": "answer", "variable": variable}
    subsets = set(evidence.rows("cognitive_decoding", **where)["subset"])
    subset = "balanced" if "balanced" in subsets else "all"
    return evidence.by_seed("cognitive_decoding", seeds, **where, subset=subset)


def _read(row: pd.Series[Any]) -> bool | None:
    above = row["low"] > row["floor"] and row["p"] <= ALPHA
    return ruled(above, row["high"] < row["floor"] + NEGLIGIBLE)


@beside
def _also_read(evidence: Evidence, arm: str, layer: int) -> str:
    seeds = evidence.seeds("cognitive_decoding", {"arm": arm})
    read = [
        name
        for name in VARIABLES
        for rows in [_decoded(evidence, arm, seeds, layer, name)]
        if all(_read(row) for _, row in rows.iterrows())
    ]
    return f"In every {MODEL[arm]}: {listed(read)}."


@beside
def _failed_checks(evidence: Evidence) -> str:
    held = evidence.rows("cognitive_check")["holds"].astype(bool)
    failed = int((~held).sum())
    if not failed:
        return ""
    return (
        f"Careful: in {failed} of {len(held)} models of all arms, more is decoded before it is "
        "read than chance allows."
    )


def selectivity(evidence: Evidence) -> Finding:
    """Claim 5: after fine-tuning, single units follow several variables."""
    seeds = evidence.trained_seeds(FINE_TUNED)
    base, base_expected = _mixed(evidence, BASE, _base_seed(evidence, "cognitive_selectivity"))
    shares = [_mixed(evidence, FINE_TUNED, seed) for seed in seeds.kept]
    met, rise, excess = _more_mixed(shares, base)
    open_as = NO_INTERVAL if len(shares) == 1 else "An interval has 0 in it."
    return seeds.finding(
        met,
        f"Units of the last layer that follow two variables or more: "
        f"{percent(mean(share for share, _ in shares))} fine-tuned, {percent(base)} base "
        f"({percent(mean(expected for _, expected in shares))} and {percent(base_expected)} "
        f"expected if they followed none); {count(len(shares), 'seed')}.",
        f"More than base by {_points(rise)}, than expected by {_points(excess)}.",
        _scratch_too(evidence, base),
        open_as if met is None else "",
    )


def _base_seed(evidence: Evidence, name: str) -> int:
    seeds = evidence.seeds(name, {"arm": BASE}).kept
    if len(seeds) > 1:
        raise InconclusiveError(
            f"Table {name} has several seeds of the base arm: {listed(map(str, seeds))}."
        )
    return seeds[0]


def _mixed(evidence: Evidence, arm: str, seed: int) -> tuple[float, float]:
    """Share of units that follow two variables or more, and that expected of noise."""
    rows = evidence.rows_by("cognitive_selectivity", "n_variables", arm=arm, seed=seed)
    several = rows[rows["n_variables"] >= 2]
    return float(several["share"].sum()), float(several["expected_correlated"].sum())


def _more_mixed(
    shares: Sequence[tuple[float, float]], base: float
) -> tuple[bool | None, Interval, Interval]:
    rise = t_interval([share - base for share, _ in shares])
    excess = t_interval([share - expected for share, expected in shares])
    return all_of([above_zero(rise), above_zero(excess)]), rise, excess


def _points(difference: Interval) -> str:
    return joined(points(difference.mean), ends(difference, 100, 1))


@beside
def _scratch_too(evidence: Evidence, base: float) -> str:
    seeds = evidence.trained_seeds(SCRATCH).kept
    shares = [_mixed(evidence, SCRATCH, seed) for seed in seeds]
    comparison = {
        True: ", also more: it is not specific to fine-tuning",
        False: ", not more than base or expected",
        None: "; whether that is more is open",
    }[_more_mixed(shares, base)[0]]
    share = f"{percent(mean(share for share, _ in shares))} ({count(len(shares), 'seed')})"
    return f"From scratch it is {share}{comparison}."


def separation(evidence: Evidence) -> Finding:
    """Claim 7: last-layer states lie apart by context or by choice."""
    seeds = evidence.trained_seeds(FINE_TUNED)
    base_seed = _base_seed(evidence, "cognitive_silhouette")
    parts, sentences = [], []
    for variable in GROUPINGS:
        rows = _silhouettes(evidence, FINE_TUNED, seeds, variable)
        of_base = _silhouettes(evidence, BASE, Seeds((base_seed,)), variable)
        base = float(of_base["silhouette"].iloc[0])
        above = [bool(over) for over in rows["silhouette"] > rows["null_95"]]
        rise = t_interval(rows["silhouette"] - base)
        rarely = 2 * sum(above) < len(above)
        parts.append(ruled(all(above) and rise.low > 0, rarely or rise.high <= 0))
        sentences.append(
            f"By {variable}: {number(rows['silhouette'].mean())} fine-tuned (95th percentile of "
            f"its null {number(rows['null_95'].mean())}, above it in {sum(above)} of "
            f"{count(len(above), 'seed')}), {number(base)} base, a difference of "
            f"{joined(number(rise.mean), ends(rise))}."
        )
    met = ruled(any(parts), all(part is False for part in parts))
    return seeds.finding(
        met,
        "Silhouettes of last-layer states.",
        *sentences,
        _in_the_plane(evidence, seeds),
        NO_INTERVAL if met is None and len(seeds.kept) == 1 else "",
    )


def _silhouettes(
    evidence: Evidence, arm: str, seeds: Seeds, variable: str, space: str = "states"
) -> pd.DataFrame:
    where = {"arm": arm, "space": space, "variable": variable}
    return evidence.by_seed("cognitive_silhouette", seeds, **where)


@beside
def _in_the_plane(evidence: Evidence, seeds: Seeds) -> str:
    """The same of the points that are drawn, which decide nothing."""
    in_plane = [
        _silhouettes(evidence, FINE_TUNED, seeds, variable, "points") for variable in GROUPINGS
    ]
    methods = listed(dict.fromkeys(str(method).upper() for method in in_plane[0]["method"]))
    values = " and ".join(number(rows["silhouette"].mean()) for rows in in_plane)
    return f"In two dimensions ({methods}): {values}."


CLAIMS: tuple[tuple[str, Callable[[Evidence], Finding]], ...] = (
    ("Training from scratch needs more examples than fine-tuning", samples),
    ("Fine-tuning relies on later layers than training from scratch", layers),
    ("The first layer's heads from scratch attend to the numbers", numbers),
    ("A linear readout of the last layer gives context, both sides and choice", decoding),
    ("Fine-tuning makes more single units follow several variables", selectivity),
    ("The outputs of attention heads tell the response", responses),
    ("Fine-tuning sets last-layer states apart by context or choice", separation),
)
