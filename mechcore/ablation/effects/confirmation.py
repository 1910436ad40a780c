"""Whether roles found on half of the examples replicate on the other: docs/concepts/roles.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from mechcore.ablation.effects import roles as names
from mechcore.ablation.effects.changes import Ablations
from mechcore.ablation.effects.failure import strata_of
from mechcore.ablation.effects.information import information_table
from mechcore.ablation.effects.roles import COMPONENT_ROLES, component_roles
from mechcore.ablation.settings import OOD_MEAN, RoleSettings
from mechcore.data.examples import ALL
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.p_values import adjusted_p
from mechcore.evaluation.recalibration import folds_of
from mechcore.tables import Column
from mechcore.wording import OUT_FIRST, PLACES, count, number

CLAIMS: Mapping[str, tuple[int, int]] = {
    names.BOTH: (-1, -1),
    names.HARMFUL_OUT: (0, 1),
    **dict.fromkeys((names.IN_ONLY, names.IN), (-1, 0)),
    **dict.fromkeys((names.OUT_ONLY, names.OUT), (0, -1)),
    names.HARMFUL_IN: (1, 0),
}
"""Signs of the changes in information that a role claims in domain and out of domain; 0: none."""

ON_HALVES = ("role_on_first_half", "role_on_second_half")
"""Columns with the roles on each half of the examples."""

ROLES_TABLE = COMPONENT_ROLES.named(
    COMPONENT_ROLES.name,
    "",
    Column("confirmed", "flag", "whether a role on a half holds on the other", optional=True),
    *(
        Column(f"{name}_{place}", kind, f"{PLACES[place]}, {meaning}", optional=True)  # type: ignore[arg-type]
        for place in PLACES
        for name, kind, meaning in (
            ("halves_found", "whole", "number of halves (0 to 2) whose role claims a change"),
            ("information_change_found", "points", "mean change on these; selected, so too large"),
            ("information_change_confirmed", "points", "mean change on the opposite halves"),
            ("information_change_confirmed_se", "share", "its standard error"),
        )
    ),
    *(Column(name, "text", "role judged on that half alone", optional=True) for name in ON_HALVES),
    Column("reason_confirmed", "text", "why halves cannot be judged, if so", optional=True),
)
"""`COMPONENT_ROLES` with the columns that `confirm_roles` adds."""


def confirm_roles(
    roles: pd.DataFrame,
    answers: Mapping[str, Ablations],
    settings: RoleSettings | None = None,
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Judge roles on each half of the examples, and measure what they claim on the other half.

    ``answers`` are those that the roles were judged by: ``"id"``, ``"ood"`` and perhaps
    ``"ood_mean"``. Returns ``roles`` with the other columns of `ROLES_TABLE`; if a half of a domain
    is too small, they are missing, with the reason.
    """
    settings = settings or RoleSettings()
    components = roles["component"].tolist()
    halves = [_on_halves(answers[split], seed) for split in PLACES]
    reasons = ["".join([*filter(None, pd.concat(both)["reason"])][:1]) for both in halves]
    again: Sequence[pd.DataFrame | None] = (None, None)
    if OOD_MEAN in answers:
        again = _on_halves(answers[OOD_MEAN], seed)
    judged = [
        component_roles(inside, outside, settings, ood_mean=own)
        for inside, outside, own in zip(*halves, again, strict=True)
    ]
    on_half = [table.set_index("component")["role"].loc[components] for table in judged]
    # All following arrays are [domain, half, component].
    sign = np.array([[CLAIMS.get(role, (0, 0)) for role in half] for half in on_half])
    sign = sign.transpose(2, 0, 1)
    sign[[bool(reason) for reason in reasons]] = 0
    tables = [[table.set_index("set").loc[components] for table in both] for both in halves]
    change, error, p = (
        np.array([[table[f"information_{name}"] for table in both] for both in tables], float)
        for name in ("change", "change_se", "p")
    )
    claimed, opposite = sign != 0, change[:, ::-1]
    p = np.where(claimed, p[:, ::-1], np.nan)
    for half in (0, 1):
        p[:, half] = adjusted_p(p[:, half].ravel(), "benjamini-hochberg").reshape(p[:, half].shape)
    holds = (sign * opposite > 0) & (p < settings.alpha)
    n = np.where(np.array(reasons)[:, None] == "", claimed.sum(1), np.nan)
    with np.errstate(invalid="ignore"):
        figures = {
            "halves_found": n,
            "information_change_found": np.where(claimed, change, 0).sum(1) / n,
            "information_change_confirmed": np.where(claimed, opposite, 0).sum(1) / n,
            "information_change_confirmed_se": np.sqrt((claimed * error[:, ::-1] ** 2).sum(1)) / n,
        }
    columns = {f"{k}_{place}": v[i] for i, place in enumerate(PLACES) for k, v in figures.items()}
    unknown = [
        f"{PLACES[place]}, on a half of the examples: {reason}"
        for place, reason in zip(PLACES, reasons, strict=True)
        if reason and roles[f"information_change_{place}"].notna().any()
    ]
    confirmed = claimed.any((0, 1)) & (holds | ~claimed).all((0, 1))
    columns |= dict(zip(ON_HALVES, (half.to_numpy() for half in on_half), strict=True))
    return roles.assign(confirmed=confirmed, **columns, reason_confirmed="; ".join(unknown))


def _on_halves(ablations: Ablations, seed: int) -> list[pd.DataFrame]:
    """The information table of each half of the examples."""
    dealt = half_of(ablations.full, seed)
    parts = [ablations.part(np.flatnonzero(dealt == half)) for half in (0, 1)]
    # The ends of intervals are not used, so two resamples do.
    return [information_table(part, subsets=[ALL], n_resamples=2, seed=seed) for part in parts]


def half_of(full: Evaluation, seed: int) -> Int[np.ndarray, " example"]:
    """The half, 0 or 1, of every example; clusters stay together, and strata are halved."""
    stratum = strata_of(full)
    if full.clusters is not None and len(np.unique(full.clusters)) > 1:
        return folds_of(stratum, seed, full.clusters, n_folds=2)
    half = np.empty(len(stratum), dtype=int)
    order = np.lexsort((np.random.default_rng(seed).random(len(stratum)), stratum))
    half[order] = np.arange(len(stratum)) % 2  # of all, so that odd strata are halved in turn
    return half


def confirmation(roles: pd.DataFrame) -> str:
    """A sentence on how many roles of one half are confirmed on the other, and mean effects."""
    if "confirmed" not in roles or roles.empty:
        return ""
    reason, check = roles["reason_confirmed"].fillna("").iloc[0], "Split-half check:"
    n, change, held_out = (
        roles[[f"{name}_{place}" for place in PLACES]].to_numpy(float)
        for name in ("halves_found", "information_change_found", "information_change_confirmed")
    )
    if np.isnan(n).all():
        return f"{check} not possible ({reason})." if reason else ""
    claimed = n > 0
    text = f"{check} no component has an information role on either half of the examples"
    if claimed.any():
        selected, opposite = (
            number(100 * np.average((np.sign(change) * measured)[claimed], weights=n[claimed]), 1)
            for measured in (change, held_out)
        )
        text = (
            f"{check} {count(int(claimed.any(1).sum()), 'component')} with an information role on "
            f"at least one half of the examples, {int(roles['confirmed'].sum())} confirmed on the "
            f"other, where effects average {opposite} points of information instead of {selected}"
        )
    return text + (f" (not possible {reason})." if reason else ".")


def held_out_change(row: Any) -> str:
    """A component's changes in information on the halves that did not select it, in points."""
    parts = [
        f"{number(100 * row[f'information_change_confirmed_{p}'], 1, signed=True)} {PLACES[p]}"
        for p in OUT_FIRST
        if row[f"halves_found_{p}"] > 0
    ]
    return ", ".join([*parts, "confirmed" if row["confirmed"] else "not confirmed"] * bool(parts))
