"""Whether what generalises reads the heuristic core: the verdict on the claim.

These are its rules, written before any study was run. Let R be the components whose information
is lost out of domain and not shown to be lost in domain (`component_roles`: needed out of
domain, only or perhaps), and T the mean over R of C(core -> r) in information out of domain.

1. R is empty, or the change cannot be taken apart: inconclusive.
2. The 95 % interval of T is below 0, and T is lower than that of the controls with p < 0.05 (one
   sided): supported.
3. The interval is below 0, but T is no lower than that of the controls (p >= 0.05, of at least
   20, as fewer cannot have a smaller p); or its lower end is above minus the least effect of
   interest: not supported.
4. Otherwise: inconclusive.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from mechcore.ablation.effects.changes import own_ends
from mechcore.ablation.effects.roles import OUT, OUT_ONLY
from mechcore.ablation.paths.dependence import Readers
from mechcore.components import Component
from mechcore.evaluation.p_values import p_among
from mechcore.evaluation.recalibration import reason_against
from mechcore.tables import Column, Schema
from mechcore.wording import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, count, number

ALPHA = 0.05

CORE_VERDICT = Schema(
    "core_verdict",
    "Whether what generalises reads the core: the verdict and the figures that decide; changes are "
    "of information out of domain, means over the components that are needed out of domain and are "
    "not shown to be needed in domain.",
    (
        Column("verdict", "text", "``supported``, ``not supported`` or ``inconclusive``"),
        Column("explanation", "text", "the figures in words, or why there are none"),
        Column("n_receivers", "whole", "components behind the core of which this holds"),
        *own_ends("blind_change", "points", "with each alone blind to the core"),
        Column("control_change", "points", "blind to random heads of the same layers instead"),
        Column("n_controls", "whole", "random sets of heads"),
        Column("p_control", "number", "of so large a change among them, one sided", shown="small"),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """The verdict on the claim; see the columns of `CORE_VERDICT`."""

    verdict: str
    explanation: str
    n_receivers: int = 0
    blind_change: float = math.nan
    blind_change_low: float = math.nan
    blind_change_high: float = math.nan
    control_change: float = math.nan
    n_controls: int = 0
    p_control: float = math.nan

    def table(self) -> pd.DataFrame:
        """The one row of `CORE_VERDICT`."""
        return pd.DataFrame([asdict(self)])[CORE_VERDICT.names]


def generalising(readers: Readers, roles: pd.DataFrame) -> list[Component]:
    """The components behind the core needed out of domain, and not shown to be needed in domain."""
    needed = set(roles[roles["role"].isin([OUT, OUT_ONLY])]["component"])
    return [receiver for receiver in readers.blind if str(receiver) in needed]


def core_dependence_verdict(
    readers: Readers, roles: pd.DataFrame, *, least: float = 0.01, seed: int = 0
) -> Verdict:
    """The verdict on the claim that what generalises reads the core, by the rules of this module.

    Args:
        readers: the answers out of domain.
        roles: of `component_roles`.
        least: least effect of interest, a share of balanced accuracy.
        seed: of folds and resamples.
    """
    names = generalising(readers, roles)
    if not names:
        why = "no component behind the core is shown to be needed out of domain and not in domain"
        return Verdict(INCONCLUSIVE, reason_against(readers.full.correct_classes.numpy()) or why)
    everything = np.ones(len(readers.full.correct), dtype=bool)
    values = readers.effects((readers.blind[r] for r in names), everything, seed)
    if "information" not in values:
        reason = reason_against(readers.full.correct_classes.numpy())
        return Verdict(INCONCLUSIVE, reason or "the logits were not kept", len(names))
    information = values["information"]
    mean_of_all = replace(information, values=information.values.mean(0, keepdims=True))
    [interval] = mean_of_all.intervals()
    total, low, high = interval.mean, interval.low, interval.high
    controls = [
        readers.effects((c[r] for r in names), everything, seed)["information"].changes.mean()
        for c in (readers.controls[i] for i in readers.different(names))
    ]
    p = p_among(-total, [-control for control in controls])
    mean = float(np.mean(controls)) if controls else math.nan
    n, are = len(names), "is" if len(names) == 1 else "are"
    change, most, fewest, beside = (
        number(100 * size, 1, signed=True) for size in (total, low, high, mean)
    )
    text = (
        f"blind to the core, each alone, the {count(n, 'component')} behind it that {are} needed "
        "out of domain and not shown to be needed in domain "
        f"{'changes' if n == 1 else 'change'} information out of domain by "
        f"{change} points on average ({most} to {fewest}); "
    )
    text += (
        f"blind to as many random heads of the same layers by {beside} "
        f"({count(len(controls), 'set')}, p = {p:.2g})"
        if controls
        else "nothing stands beside it, as no random heads were tried"
    )
    verdict = INCONCLUSIVE
    if high < 0 and p < ALPHA:
        verdict = SUPPORTED
    elif (high < 0 and 1 / (1 + len(controls)) < ALPHA) or low > -least:
        verdict = NOT_SUPPORTED
    p = p if controls else math.nan
    return Verdict(verdict, text, n, total, low, high, mean, len(controls), p)
