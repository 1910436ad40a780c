"""Superadditivity: whether components do more together than the sum of what each does alone.

Interaction(S) = D(S) - sum over i in S of D({i}) (arXiv 2403.03942, section 5). Accuracy cannot
fall below zero, so joint drops in accuracy saturate; the margin (log-odds of the correct classes,
in nats) has no floor, and both are always reported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mechcore.ablation.effects import METRICS, Ablations, ComponentSet, place
from mechcore.evaluate import Metric, bootstrap_means

FLOOR = 0.05
"""Accuracy under which a joint drop counts as saturated."""

COLUMNS = (
    "set",
    "size",
    "data",
    "role",
    "subset",
    "n",
    "metric",
    "joint_drop",
    "sum_of_single_drops",
    "interaction",
    "low",
    "high",
    "superadditive",
    "floor",
)


def interaction_table(
    ablations: Ablations, *, n_resamples: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """Interactions of all sets of two or more components whose members were ablated alone, too.

    Returns:
        One row per set, subset and metric with the columns `COLUMNS`: drops and interaction are
        shares for accuracy and nats for the margin, low and high a 95 % paired bootstrap
        interval of the interaction; ``superadditive`` means interaction > 0; ``floor`` marks
        accuracies with next to nothing left to lose: the joint accuracy is under `FLOOR`, or the
        single drops add up to more than the full model's accuracy, so that the interaction is
        cut off from above. Empty if there is no such set.
    """
    singles = {s.components[0] for s in ablations.without if len(s) == 1}
    sets = [s for s in ablations.without if len(s) > 1 and singles.issuperset(s.components)]
    rows: list[dict[str, Any]] = []
    for subset, members in ablations.groups() if sets else []:
        for metric in METRICS:
            joint = np.stack([ablations.drops(s, metric)[members] for s in sets])
            alone = np.stack([_sum_of_singles(ablations, s, metric)[members] for s in sets])
            intervals = bootstrap_means(joint - alone, n_resamples=n_resamples, seed=seed)
            accuracy = float(ablations.full.correct[members].mean())
            for i, each in enumerate(sets):
                interval = intervals[i]
                expected, drop = float(alone[i].mean()), float(joint[i].mean())
                saturated = accuracy - drop < FLOOR or expected > accuracy
                row = place(ablations, str(each), len(each), subset, members)
                row |= {
                    "metric": metric,
                    "joint_drop": drop,
                    "sum_of_single_drops": expected,
                    "interaction": interval.mean,
                    "low": interval.low,
                    "high": interval.high,
                    "superadditive": interval.mean > 0,
                    "floor": metric == "accuracy" and saturated,
                }
                rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _sum_of_singles(ablations: Ablations, components: ComponentSet, metric: Metric) -> np.ndarray:
    parts = [ablations.drops(ComponentSet((c,)), metric) for c in components.components]
    return np.sum(parts, axis=0)
