"""Verdicts on the paper's seven claims, with their decision rules.

The claims are those of arXiv 2406.18926 on a model that is fine-tuned for the cognitive task, one
of the same make that learns it from scratch, and the pretrained one; the rules are this project's.
Claim 1 is judged here, the others in `mechcore.papers.cognitive.verdicts_on_heads` and
`mechcore.papers.cognitive.verdicts_on_states`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeAlias

import pandas as pd

from mechcore.errors import InputError
from mechcore.papers.cognitive.evidence import FINE_TUNED, SCRATCH, Evidence
from mechcore.papers.cognitive.verdicts_on_heads import layers, numbers, responses
from mechcore.papers.cognitive.verdicts_on_states import decoding, selectivity, separation
from mechcore.papers.evidence import (
    Finding,
    InconclusiveError,
    Seeds,
    ends,
    judged,
    over_seeds,
    percent,
    row_interval,
    ruled,
)


def verdicts(tables: Mapping[str, pd.DataFrame], *, threshold_gap: float = 0.02) -> pd.DataFrame:
    """Judge every claim by the tables of a study.

    "supported": the rule below is met. "not supported": the evidence contradicts it, as told below.
    "inconclusive": anything else, be it that a table or an arm is missing or that the data do not
    suffice; ``figure`` says which.

    **Seeds.** For claims 2 to 7 a seed counts if the models that the claim is about have learned
    the task: the lower end of their accuracy's interval is above 0.75, which ignoring the context
    scores. Claim 2 compares the arms, so their accuracies must differ by no more than
    ``threshold_gap``, too. Seeds left out are named. *Every seed* stands for a rule that each seed
    that counts has to meet, and that more than half of them contradict for "not supported".
    Differences are judged by a 95 % t interval over the seeds; with one seed by the intervals of
    the models themselves, which come from resampled trials and know nothing of other seeds.

    1. *Samples* (``cognitive_samples``). Every seed: fine-tuning reaches the threshold with fewer
       examples; or it does, and scratch, tried with as many at least, does not. Contradicted where
       it is scratch that needs fewer; open where both need the same, since the sizes tried are a
       coarse grid. With one seed also: at the smaller of the two sizes the intervals of the arms'
       accuracies (``cognitive_curve``) do not overlap.
    2. *Layers* (``cognitive_mass``, mean ablation, all trials). Supported: the centre of mass of
       fine-tuning minus that of scratch has an interval above 0 (one seed: the two centres'
       intervals are apart), no seed's own intervals are apart the other way, and the centres of
       those heads alone whose change is surely below 0 differ in the same direction: small changes
       of noise pull a centre to the middle. Not supported: all this the other way. A seed without
       such heads in either arm does not count.
    3. *Numbers* (``cognitive_attention``, ``cognitive_ablation``). Of scratch's heads in layer 0,
       the mean ratio of attention on numbers to a uniform head's, weighted by max(-change, 0) under
       mean ablation. Every seed: its interval is above 1; contradicted where it is not above 1 at
       either end. The interval is that of the ratios, with the weights held fixed; without it the
       ratio itself decides, if there are several seeds. A seed in which no head of layer 0 has a
       change surely below 0 does not count.
    4. *Decoding* (``cognitive_decoding``, fine-tuned, last layer, position "answer"; the subset
       "balanced" where there is one). Every seed: for all four variables the interval of the
       accuracy is above the floor, and p is at most 0.05. Contradicted where for one of them the
       upper end is less than 5 points above the floor. As all four are asked for, nothing is
       corrected for their number.
    5. *Mixed selectivity* (``cognitive_selectivity``). Share of units that follow two variables or
       more: minus the base model's share, and minus what is expected of units that follow none
       (with the correlations of the variables). Supported: both intervals over seeds are above 0.
       Not supported: one of them is not above 0 at either end. A share of units has no interval of
       its own, as units are not independent: one seed decides nothing. What the same rule says of
       scratch is added; where it is met too, the finding is not specific to fine-tuning.
    6. *Responses* (``cognitive_svm``, fine-tuned, the model's own answer). Every seed: some head's
       accuracy is above the floor and the 95th percentile of shuffled labels, of which the larger
       counts: p is at most 0.05, and so is the exact binomial p-value of the accuracy against that
       number, times the number of heads (Bonferroni; p itself is seldom fine enough for that).
       Contradicted where no head's interval reaches 5 points above it.
    7. *Separation* (``cognitive_silhouette``, fine-tuned, the states and not the points drawn).
       Supported: for context or for choice, the silhouette is above the 95th percentile of its
       null in every seed, and minus the base model's it has an interval above 0. Not supported: for
       both of them it is not above the null in more than half of the seeds, or that interval is not
       above 0 at either end. A silhouette has no interval of its own: one seed cannot support it.

    The remaining columns and tables are named in the sentences and decide nothing.

    Args:
        tables: of a study, by name, see `mechcore.papers.cognitive.study`; accuracies are shares.
        threshold_gap: largest difference of accuracy (a share) at which arms count as matched.

    Returns:
        One row per claim: ``claim`` (1 to 7), ``title``, ``verdict`` and ``figure`` (sentences
        with accuracies in percent, differences of them in points, layers from 0, and the number of
        seeds; for what is inconclusive also why).

    Raises:
        InputError: a table lacks a column, or has several rows where one is expected.
    """
    return judged(CLAIMS, Evidence(tables, threshold_gap))


# -- 1: samples ------------------------------------------------------------------------------------

_Needed: TypeAlias = tuple[float, float]
"""Examples that reached the threshold, infinite if none did; the most that were tried."""


def samples(evidence: Evidence) -> Finding:
    """Claim 1: from scratch needs more examples."""
    fine_rows, scratch_rows = (
        evidence.rows("cognitive_samples", arm=arm).set_index("seed")
        for arm in (FINE_TUNED, SCRATCH)
    )
    seeds = [seed for seed in fine_rows.index if seed in scratch_rows.index]
    if not seeds:
        raise InconclusiveError("Table cognitive_samples has no seed of both trained arms.")
    threshold = _threshold(fine_rows, scratch_rows)
    fine, scratch = (_needed(rows.loc[seeds]) for rows in (fine_rows, scratch_rows))
    met = [_fewer(*pair) for pair in zip(fine, scratch, strict=True)]
    how = ""
    if len(met) == 1 and met[0] is not None:
        apart, how = _apart_by_themselves(evidence, seeds[0], fine[0][0], scratch[0][0])
        met = met if apart else [None]
    verdict, counts = over_seeds(met)
    return Seeds(tuple(seeds)).finding(
        verdict,
        f"To reach {percent(threshold)} accuracy the fine-tuned arm needs {_typical(fine)} "
        f"examples, the arm from scratch {_typical(scratch)}{_ratio(fine, scratch)}"
        f"{' (medians over the seeds)' if len(met) > 1 else ''}.",
        how,
        counts,
    )


def _threshold(*rows: pd.DataFrame) -> float:
    thresholds = sorted({float(value) for table in rows for value in table["threshold"]})
    if len(thresholds) != 1 or any(table.index.has_duplicates for table in rows):
        raise InputError(
            f"table cognitive_samples: thresholds {thresholds}; expected one, and a row for each "
            "arm and seed"
        )
    return thresholds[0]


def _needed(rows: pd.DataFrame) -> list[_Needed]:
    sizes = rows["samples"].astype(float).fillna(math.inf)
    return list(zip(sizes, rows["largest"].astype(float), strict=True))


def _fewer(fine: _Needed, scratch: _Needed) -> bool | None:
    """Whether fine-tuning needs fewer; None where the sizes tried do not say."""
    return ruled(
        fine[0] < scratch[0] and fine[0] <= scratch[1],
        scratch[0] < fine[0] and scratch[0] <= fine[1],
    )


def _median(needed: Sequence[_Needed]) -> tuple[float, bool]:
    """The median; or, where it is not known, what it is above, and that it is."""
    middle = median(n for n, _ in needed)
    if math.isfinite(middle):
        return middle, False
    return median(min(n, largest) for n, largest in needed), True


def _typical(needed: Sequence[_Needed]) -> str:
    n, is_above = _median(needed)
    return f"{'more than ' if is_above else ''}{n:,.0f}"


def _ratio(fine: Sequence[_Needed], scratch: Sequence[_Needed]) -> str:
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


CLAIMS: tuple[tuple[str, Callable[[Evidence], Finding]], ...] = (
    ("Training from scratch needs more examples than fine-tuning", samples),
    ("Fine-tuning relies on later layers than training from scratch", layers),
    ("The first layer's heads from scratch attend to the numbers", numbers),
    ("A linear readout of the last layer gives context, both sides and choice", decoding),
    ("Fine-tuning makes more single units follow several variables", selectivity),
    ("The outputs of attention heads tell the response", responses),
    ("Fine-tuning sets last-layer states apart by context or choice", separation),
)
"""Title of every claim, in order from 1, and what judges it."""
