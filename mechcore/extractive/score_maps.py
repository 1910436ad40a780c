"""E2: where fine-tuned facts are stored, queried and read out, as maps over layers and tokens."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pandas as pd

from mechcore.extractive.deltas import WeightDelta
from mechcore.extractive.encoded import EncodedTask
from mechcore.extractive.scores import extractive_scores


def score_maps(
    model: Any,
    task: EncodedTask,
    delta: WeightDelta,
    *,
    counterfactuals: int = 10,
    seed: int = 0,
    compat: Literal["paper"] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Extractive scores on the implications of a task.

    Args:
        model: any TransformerLens language model with the weights before fine-tuning; they are as
            before afterwards.
        task: whose facts were trained.
        delta: what training them changed.
        counterfactuals: prompts with another answer that upstream scores are averaged over.
        seed: of their draw, and a column of the tables.
        compat: ``"paper"`` for the published code's informative score.

    Returns:
        The scores: task, seed, score (informative, upstream, downstream), kind (mlp, head),
        component, layer, head (-1 for MLPs), place (column, from 0), token (its label), value
        (mean over points, in logits), se, n. And the sums, one row of means over points: task,
        seed, informative, other, gradient (the linear estimate of the change of the reward),
        actual (its change), r (correlation over points of the two; missing if there is none), n.

    Source: arXiv 2412.04614, section 4.
    """
    found = extractive_scores(
        model, task.implications, delta, counterfactuals=counterfactuals, seed=seed, compat=compat
    )
    scores, points = found.table(), found.sums()
    columns = ["informative", "other", "gradient", "actual"]
    sums = points[columns].mean().to_frame().T
    sums = sums.assign(r=correlation(points["gradient"], points["actual"]), n=len(points))
    for table in (scores, sums):
        table.insert(0, "task", task.name)
        table.insert(1, "seed", seed)
    return scores, sums


def correlation(first: pd.Series[float], second: pd.Series[float]) -> float:
    """Pearson's correlation; NaN where one of the two does not vary, or there are fewer than 2."""
    one, other = first.to_numpy(dtype=float), second.to_numpy(dtype=float)
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])
