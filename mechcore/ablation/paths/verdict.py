"""The verdict on the claim that generalising components read the core: docs/concepts/paths.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from mechcore.ablation.effects.changes import own_ends, p_column
from mechcore.ablation.effects.confirmation import ON_HALVES
from mechcore.ablation.effects.roles import OUT, OUT_ONLY
from mechcore.ablation.paths.dependence import Readers
from mechcore.components import Component
from mechcore.evaluation.intervals import Interval, weighted_sum
from mechcore.evaluation.p_values import p_among
from mechcore.evaluation.recalibration import reason_against
from mechcore.tables import Column, Schema
from mechcore.wording import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, count, number

ALPHA = 0.05

_MAYBE: dict[str, Any] = {"optional": True, "optional_ends": True}

CORE_VERDICT = Schema(
    "core_verdict",
    "Whether components that generalise read the core: the verdict and the numbers that decide; "
    "changes in information out of domain, means over the components that are needed out of domain "
    "and not shown to be needed in domain.",
    (
        Column("verdict", "text", "``supported``, ``not supported`` or ``inconclusive``"),
        Column("explanation", "text", "the numbers in words, or why there are none"),
        Column("n_receivers", "whole", "number of such components after the core"),
        *own_ends("blind_change", "points", "with each alone blind to the core"),
        Column("control_change", "points", "blind to random heads of the same layers instead"),
        Column("n_controls", "whole", "random sets of heads"),
        p_column("p_control", "one-sided p against these sets"),
        Column("halves_found", "whole", "halves (0 to 2) with such components", optional=True),
        *own_ends("blind_change_confirmed", "points", "mean on the halves opposite", **_MAYBE),
        p_column("p_confirmed", "``p_control`` there", optional=True),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """The verdict on the claim, with the figures that decide; see the columns of `CORE_VERDICT`."""

    verdict: str
    explanation: str
    figures: Mapping[str, float] = field(default_factory=dict)

    def table(self) -> pd.DataFrame:
        """The one row of `CORE_VERDICT`."""
        row: dict[str, Any] = {"verdict": self.verdict, "explanation": self.explanation}
        row |= {"n_receivers": 0, "n_controls": 0, **self.figures}
        return pd.DataFrame([row], columns=CORE_VERDICT.names)


def generalising(readers: Readers, roles: pd.DataFrame, by: str = "role") -> list[Component]:
    """The components after the core needed out of domain and not shown to be needed in domain."""
    needed = set(roles[roles[by].isin([OUT, OUT_ONLY])]["component"])
    return [receiver for receiver in readers.blind if str(receiver) in needed]


class _Measured(NamedTuple):
    """T with its interval, and T of each set of random heads."""

    total: Interval
    controls: list[float]

    @property
    def p(self) -> float:
        beside = [-control for control in self.controls]
        return p_among(-self.total.mean, beside) if beside else math.nan

    @property
    def supports(self) -> bool:
        return self.total.high < 0 and self.p < ALPHA

    @property
    def points(self) -> str:
        ends = (self.total.mean, self.total.low, self.total.high)
        total, low, high = (number(100 * size, 1, signed=True) for size in ends)
        return f"{total} points on average ({low} to {high})"


def core_dependence_verdict(
    readers: Readers,
    roles: pd.DataFrame,
    *,
    least: float = 0.01,
    seed: int = 0,
    half: Int[np.ndarray, " example"] | None = None,
) -> Verdict:
    """The verdict on the claim that components that generalise read the core.

    Readers are those out of domain, ``least`` is the least effect of interest, a share. If roles
    were judged on halves (`confirm_roles`), ``half`` is that of every example, 0 or 1.
    """
    names = generalising(readers, roles)
    reason = reason_against(readers.full.correct_classes.numpy())
    if not names:
        why = "no component after the core is shown to be needed out of domain and not in domain"
        return Verdict(INCONCLUSIVE, reason or why)
    measured = _measured(readers, [(names, np.ones(len(readers.full.correct), bool))], seed)
    figures: dict[str, float] = {"n_receivers": len(names)}
    if measured is None:
        return Verdict(INCONCLUSIVE, reason or "the logits were not kept", figures)
    total, controls = measured
    verdict = INCONCLUSIVE
    if measured.supports:
        verdict = SUPPORTED
    elif (total.high < 0 and 1 / (1 + len(controls)) < ALPHA) or total.low > -least:
        verdict = NOT_SUPPORTED
    figures |= total.columns("blind_change") | {"n_controls": len(controls)}
    if controls:
        figures |= {"control_change": float(np.mean(controls)), "p_control": measured.p}
    judged = Verdict(verdict, _in_words(len(names), measured), figures)
    return judged if half is None else _confirmed(judged, readers, roles, half, seed)


def _measured(
    readers: Readers,
    parts: Sequence[tuple[list[Component], Bool[np.ndarray, " example"]]],
    seed: int,
) -> _Measured | None:
    """The mean of T over independent parts of the examples with their own components."""
    own = [readers.effects([readers.blind[r] for r in names], m, seed) for names, m in parts]
    if not own or any("information" not in effects for effects in own):
        return None
    of_all = [effects["information"] for effects in own]
    means = [replace(of, values=of.values.mean(0, keepdims=True)) for of in of_all]
    total = weighted_sum([mean.intervals()[0] for mean in means], [1 / len(parts)] * len(parts))

    def beside(control: int) -> float:
        answers = readers.controls[control]
        effects = [readers.effects([answers[r] for r in names], m, seed) for names, m in parts]
        return float(np.mean([of_part["information"].changes.mean() for of_part in effects]))

    different = readers.different([*dict.fromkeys(r for names, _ in parts for r in names)])
    return _Measured(total, list(map(beside, different)))


def _in_words(n: int, measured: _Measured) -> str:
    beside = "there are no random heads to compare with"
    if measured.controls:
        mean = number(100 * float(np.mean(measured.controls)), 1, signed=True)
        beside = f"cutting those from as many random heads of the same layers, by {mean} "
        beside += f"({count(len(measured.controls), 'set')}, p = {measured.p:.2g})"
    return (
        f"cutting the paths from the core to {'each of ' * (n > 1)}{count(n, 'component')} needed "
        "out of domain and not shown to be needed in domain changes information out of domain by "
        f"{measured.points}; {beside}"
    )


def _confirmed(
    judged: Verdict,
    readers: Readers,
    roles: pd.DataFrame,
    half: Int[np.ndarray, " example"],
    seed: int,
) -> Verdict:
    """The verdict, checked with the changes on one half of components found on the other."""
    by_half = [(generalising(readers, roles, by), half != i) for i, by in enumerate(ON_HALVES)]
    parts = [(names, members) for names, members in by_half if names]
    measured = _measured(readers, parts, seed)
    holds = measured is not None and measured.supports
    verdict = INCONCLUSIVE if judged.verdict == SUPPORTED and not holds else judged.verdict
    figures = {**judged.figures, "halves_found": len(parts)}
    if measured is None:
        why = "too few examples" if parts else "neither half has such a component"
        text = f"{judged.explanation}; not confirmed on held-out halves: {why}"
        return Verdict(verdict, text, figures)
    text = f"{judged.explanation}; for those found on one half of the examples, on the other by "
    text += measured.points + (f", p = {measured.p:.2g}" if measured.controls else "")
    figures |= measured.total.columns("blind_change_confirmed") | {"p_confirmed": measured.p}
    return Verdict(verdict, text, figures)
