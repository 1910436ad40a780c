"""Faithfulness of the circuits that keep the top components of a ranking.

Areas are those of the Mechanistic Interpretability Benchmark (MIB, arXiv 2504.13151), for nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.integrate import trapezoid

from mechcore.ablation import ComponentSet, ablate
from mechcore.bench.case import Ranking, by_component
from mechcore.components import Component, ModelShape
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations


def cpr(shares: ArrayLike, f: ArrayLike) -> float:
    """Area under faithfulness as a function of circuit size, in shares (MIB's CPR)."""
    return float(trapezoid(np.asarray(f, dtype=float), shares))


def cmd(shares: ArrayLike, f: ArrayLike) -> float:
    """Area between faithfulness and 1 as a function of circuit size (MIB's CMD); see `cpr`."""
    return cpr(shares, np.abs(1 - np.asarray(f, dtype=float)))


def faithfulness_of(
    model: Any,
    scores: Ranking,
    data: Any,
    means: MeanActivations | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Keep the top components of a ranking, from none to all, and ablate the others.

    Data, means and options are those of `mechcore.ablate`. Columns are share (of all components),
    kept, value (mean margin in nats, or mean of the given ``metric``) and faithfulness.

    Raises:
        InputError: a score is not finite, or the full and the ablated model have the same value;
            see also `mechcore.ablate`.
        MismatchError: the ranking does not have the model's shape.
    """
    order = ranked(scores, ModelShape.of(model))
    kept = np.arange(len(order) + 1)
    cuts = [ComponentSet.of(order[k:]) for k in kept[:-1]]
    answers = ablate(model, cuts, data, means, **options)
    metric = answers.metrics[-1]
    models = [*(answers.without[cut] for cut in cuts), answers.full]
    values = np.array([of.values(metric).mean() for of in models])
    if not np.isfinite(gap := values[-1] - values[0]) or gap == 0:
        raise InputError(
            f"faithfulness: the mean {metric} is {values[-1]:g} for the full model and "
            f"{values[0]:g} with everything ablated; expected two different finite numbers"
        )
    shares, f = kept / len(order), (values - values[0]) / gap  # (m(C) - m(ablated)) / (...)
    columns = {"share": shares, "kept": kept, "value": values, "faithfulness": f}
    return pd.DataFrame(columns)


def ranked(scores: Ranking, shape: ModelShape) -> list[Component]:
    """Components by descending score; ties in the order of the model."""
    values = by_component(scores, shape)
    return sorted(values, key=lambda component: (-values[component], component))
