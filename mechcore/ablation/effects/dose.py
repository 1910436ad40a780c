"""How effects grow with the dose, 1 - m, and what part is repaired: docs/concepts/paths.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from mechcore.ablation.effects.changes import own_ends
from mechcore.ablation.sets import paths
from mechcore.ablation.sweeps import ablate
from mechcore.components import Mask, ModelShape, parse_components
from mechcore.components.names import ANSWER
from mechcore.evaluation.evaluate import evaluate
from mechcore.evaluation.intervals import Sample, mean_intervals
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.session import plain_session
from mechcore.tables import COMPONENT, DATA, SPLIT, Column, N, Schema

DOSES = (0.25, 0.5, 0.75, 1.0)
MONOTONE, NOT_MONOTONE, OPEN = "yes", "no", "open"

COLUMNS = {
    **{f"change_{dose:.0%}"[:-1]: f"change in margin at a dose of {dose:g}" for dose in DOSES},
    "direct": "change in margin when only the path from the component to the answer is cut",
    "indirect": "change at dose 1 minus the direct one; if smaller and of the opposite sign, later "
    "components repair this part",
}
"""Changes in `DOSE`, and their meaning."""
_MONOTONE = "whether every dose adds to the change; ``no`` if one is shown to reduce it"

DOSE = Schema(
    "dose",
    "Changes in margin as a component is ablated by degrees, with their direct part.",
    (
        *(COMPONENT, DATA, SPLIT, N),
        *(c for name, text in COLUMNS.items() for c in own_ends(name, "number", text, unit="nats")),
        Column("monotone", "text", _MONOTONE),
    ),
)


def repairs(row: pd.Series) -> bool:
    """Whether later components are shown to undo part of the direct effect, in a row of `DOSE`."""
    direct, indirect = (
        np.sign([row[f"{name}_{end}"] for end in ("low", "high")]).sum() / 2
        for name in ("direct", "indirect")
    )
    return bool(direct * indirect == -1 and direct * row["change_100"] >= 0)


@plain_session()
def dose_table(
    model: Any,
    components: Sequence[Any],
    data: Any,
    means: MeanActivations | None = None,
    *,
    split: Literal["id", "ood"] = "id",
    n_resamples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Changes in margin (nats) at several doses, and the direct and the indirect part of the last.

    Every component is examined alone; data, means and options are those of `mechcore.ablate`.
    Returns the columns of `DOSE`.

    Raises:
        InputError: a component is out of range, or labels cannot be matched.
    """
    chosen = parse_components(components)
    if not chosen:
        return DOSE.frame([])
    data = as_encoded(model, data, split=split)
    options["seed"] = seed
    cuts = paths(chosen, ANSWER, model, together=False)
    direct = ablate(model, cuts, data, means, split=split, **options)
    without = [Mask.full(ModelShape.of(model)).without(component).values for component in chosen]
    masks = Mask.stack([Mask(1 - dose * (1 - v)) for v in without for dose in DOSES])
    answers = evaluate(model, data, mask=masks, means=means, in_domain=split == "id", **options)
    full = direct.full.margin
    margins = np.stack([of_mask.margin for of_mask in answers])
    changes = margins.reshape(-1, len(DOSES), len(full)) - full
    statistics: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
    rows = []
    for component, cut, by_dose in zip(chosen, cuts, changes, strict=True):
        blind = direct.changes(cut, "margin")
        values = np.stack([*by_dose, blind, by_dose[-1] - blind])
        sample = direct.full.samples()[""]
        intervals = mean_intervals(values, clusters=sample, **statistics)
        row: dict[str, Any] = {"component": str(component), "data": direct.data, "split": split}
        row |= {"n": len(full), "monotone": _monotone(by_dose, sample, **statistics)}
        for name, interval in zip(COLUMNS, intervals, strict=True):
            row |= interval.columns(name)
        rows.append(row)
    return DOSE.frame(rows)


def _monotone(by_dose: np.ndarray, sample: Sample, **statistics: Any) -> str:
    """Whether each further dose adds to the change at dose 1, of margins [dose, example]."""
    steps = np.diff(by_dose, axis=0, prepend=0) * np.sign(by_dose[-1].mean())
    if (steps.mean(1) >= 0).all():
        return MONOTONE
    level = 1 - 0.05 / len(DOSES)
    intervals = mean_intervals(steps, clusters=sample, level=level, **statistics)
    return NOT_MONOTONE if any(interval.high < 0 for interval in intervals) else OPEN
