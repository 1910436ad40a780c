"""Core heads, or other components, beside random ones of the same layers and kinds.

Layers differ in what any of their heads is worth, so that heads of other layers are no measure of a
core: its controls are sets of heads outside it, as many of each layer as the set has. MLPs are
compared with other MLPs, of any layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from mechcore.ablation.cuts import ComponentSet
from mechcore.ablation.effects.changes import METRIC, SET, SIZE, Ablations, place
from mechcore.evaluation.evaluate import METRICS
from mechcore.evaluation.p_values import FEW_CONTROLS, among_controls
from mechcore.tables import PLACE, Column, N, Schema

CONTROL_COLUMNS = (
    Column("control_change", "number", "mean of the change over random sets of heads"),
    Column("control_low", "number", f"2.5 % of these are below; of fewer than {FEW_CONTROLS} none"),
    Column(
        "control_high", "number", f"2.5 % of these are above; of fewer than {FEW_CONTROLS} none"
    ),
    Column("n_controls", "whole", "these sets, of as many other heads of each layer, and MLPs"),
    Column("p_control", "number", "of so large a change, up or down, among them", shown="small"),
)
ABLATION_CONTROLS = Schema(
    "ablation_controls",
    "What the core, or components, cost together and alone, beside as many others of each layer; "
    "changes are shares for accuracy and nats for the margin, on as many examples as n says.",
    (
        SET,
        SIZE,
        *PLACE,
        N,
        METRIC,
        Column("change", "number", "of the metric without the set"),
        *CONTROL_COLUMNS,
    ),
)


def control_table(
    ablations: Ablations, controls: Mapping[ComponentSet, Sequence[ComponentSet]]
) -> pd.DataFrame:
    """Changes of sets beside those of their controls.

    Args:
        ablations: the answers without all of them.
        controls: of each set, as many heads of each layer as it has; perhaps none.

    Returns:
        The columns of `ABLATION_CONTROLS`, a row per set, subset and metric.
    """
    rows: list[dict[str, Any]] = []
    for subset, members in ablations.groups() if controls else []:
        for cut, others in controls.items():
            for metric in METRICS:
                change, *beside = (
                    float(ablations.changes(s, metric)[members].mean()) for s in (cut, *others)
                )
                row = place(ablations, str(cut), len(cut), subset, members)
                row |= {"metric": metric, "change": change, **among_controls(change, beside)}
                rows.append(row)
    return pd.DataFrame(rows, columns=ABLATION_CONTROLS.names)
