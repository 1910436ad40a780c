"""Whether roles that are found on one half of the examples hold on the other half.

Of many drops the largest are too large where one half of the examples both selects and measures
them (the winner's curse). So the examples of each domain are dealt into two random halves, whole
clusters where there are clusters, stratified by subset and label, and roles are judged on each half
by itself. What a role there claims (`CLAIMS`), such as information lost out of domain, is then
measured on the other half, which had no part in the selection.

- *halves found*: the halves (0 to 2) on which a component's role claims a drop in this domain.
- *found* drop: the mean of the drops on these halves.
- *confirmed* drop: the mean of the drops on the halves opposite to these. Found on one half only,
  it is the other half's drop, with its standard error; found on both, it is the mean of two
  independent estimates, with the error sqrt(se1^2 + se2^2) / 2.
- A component is *confirmed* if all that its roles on the halves claim holds on the opposite halves:
  the drop has the same sign, and its p, corrected over all that is claimed on the half that found
  it (Benjamini-Hochberg), is under alpha.

The mean over findings, a component found on both halves counting twice, is free of selection bias.
The figure of a single component is so only on average: of those found on both halves it tends to be
too large still, of those found on one it tends to be too small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from mechcore.ablation.effects import Ablations
from mechcore.ablation.information import information_table
from mechcore.ablation.roles import (
    BOTH,
    COMPONENT_ROLES,
    HARMFUL_IN,
    HARMFUL_OUT,
    IN,
    IN_ONLY,
    OUT,
    OUT_ONLY,
    component_roles,
)
from mechcore.ablation.settings import RoleSettings
from mechcore.data.examples import ALL
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.p_values import adjusted_p
from mechcore.evaluation.recalibration import folds_of
from mechcore.tables import Column
from mechcore.wording import OUT_FIRST, PLACES, count, number

CLAIMS: Mapping[str, Mapping[str, int]] = {
    BOTH: {"id": 1, "ood": 1},
    HARMFUL_OUT: {"ood": -1},
    IN_ONLY: {"id": 1},
    IN: {"id": 1},
    OUT_ONLY: {"ood": 1},
    OUT: {"ood": 1},
    HARMFUL_IN: {"id": -1},
}
"""Signs of the drops in information that a role claims, by domain."""


def _columns(place: str) -> tuple[Column, ...]:
    drop = "drop in information"
    columns = (
        Column(
            f"halves_found_{place}",
            "whole",
            f"random halves of the examples, 0 to 2, on which its role claims a {drop} or a gain "
            f"{PLACES[place]}",
        ),
        Column(
            f"information_drop_found_{place}",
            "points",
            f"mean {drop} {PLACES[place]} on these halves: too large, as they selected it",
        ),
        Column(
            f"information_drop_confirmed_{place}",
            "points",
            f"mean {drop} {PLACES[place]} on the halves opposite to these",
        ),
        Column(
            f"information_drop_confirmed_se_{place}", "share", "its standard error", shown="bare"
        ),
    )
    return tuple(each.called("", optional=True) for each in columns)


ROLES_TABLE = COMPONENT_ROLES.named(
    COMPONENT_ROLES.name,
    "",
    Column(
        "confirmed",
        "flag",
        "whether it has an information role on a random half of the examples, and all that this "
        "role claims holds on the other half",
        optional=True,
    ),
    *(column for place in PLACES for column in _columns(place)),
    Column(
        "reason_confirmed",
        "text",
        "why the halves give no figure, where they do not",
        optional=True,
    ),
)
"""`COMPONENT_ROLES` with what `confirm_roles` adds."""


def confirm_roles(
    roles: pd.DataFrame,
    answers: Mapping[str, Ablations],
    settings: RoleSettings | None = None,
    *,
    subset: str = ALL,
    groups: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Judge roles on each half of the examples, and measure what they claim on the other half.

    Args:
        roles: of `component_roles`, on all examples; these roles stay as they are.
        answers: that they were judged by, in domain (``"id"``) and out of domain (``"ood"``).
        settings: how to judge.
        subset: of the out-of-domain data, or a group of subsets.
        groups: out-of-domain subsets by the name of their group.
        seed: of the halves, and of the folds on each.

    Returns:
        ``roles`` with the other columns of `ROLES_TABLE`. Drops and errors are shares, missing
        where a component was not found. Where a half has too few examples or clusters,
        ``reason_confirmed`` says so, and the columns of this domain are missing.
    """
    settings = settings or RoleSettings()
    names = roles["component"].tolist()
    halves = [
        _on_halves(answers["id"], ALL, None, seed),
        _on_halves(answers["ood"], subset, groups, seed),
    ]
    reasons = [
        next((text for table in both for text in table["reason"] if text), "") for both in halves
    ]
    judged = [component_roles(*both, settings) for both in zip(*halves, strict=True)]
    on_half = [table.set_index("component")["role"].loc[names] for table in judged]
    sign = np.array(
        [[[CLAIMS.get(role, {}).get(p, 0) for role in half] for half in on_half] for p in PLACES]
    )
    sign[[bool(reason) for reason in reasons]] = 0
    drop, error, p = (
        np.array(
            [[table.set_index("set")[name].loc[names] for table in both] for both in halves], float
        )
        for name in ("information_drop", "information_drop_se", "information_p")
    )
    found, opposite = sign != 0, drop[:, ::-1]
    corrected = np.where(found, p[:, ::-1], np.nan)
    for half in (0, 1):
        of_half = corrected[:, half]
        corrected[:, half] = adjusted_p(of_half.ravel(), "benjamini-hochberg").reshape(
            of_half.shape
        )
    holds = (sign * opposite > 0) & (corrected < settings.alpha)
    columns = {"confirmed": found.any((0, 1)) & (holds | ~found).all((0, 1))}
    n = np.where(np.array(reasons)[:, None] == "", found.sum(1), np.nan)
    for i, place in enumerate(PLACES):
        with np.errstate(invalid="ignore"):
            columns |= {
                f"halves_found_{place}": n[i],
                f"information_drop_found_{place}": np.where(found, drop, 0).sum(1)[i] / n[i],
                f"information_drop_confirmed_{place}": np.where(found, opposite, 0).sum(1)[i]
                / n[i],
                f"information_drop_confirmed_se_{place}": np.sqrt(
                    np.where(found, error[:, ::-1] ** 2, 0).sum(1)[i]
                )
                / n[i],
            }
    known = [roles[f"information_drop_{place}"].notna().any() for place in PLACES]
    told = "; ".join(
        f"{PLACES[place]}, on a half of the examples: {reason}"
        for place, reason, is_known in zip(PLACES, reasons, known, strict=True)
        if reason and is_known
    )
    return roles.assign(**columns, reason_confirmed=told)


def _on_halves(
    ablations: Ablations, subset: str, groups: Mapping[str, Sequence[str]] | None, seed: int
) -> list[pd.DataFrame]:
    """The information table of each half of a subset."""
    members = np.flatnonzero(dict(ablations.groups(groups))[subset])
    half_of = _half_of(ablations.full.part(members), seed)
    parts = [ablations.part(members[half_of == half]) for half in (0, 1)]
    # The ends of intervals are not used, so two resamples do.
    options: dict[str, Any] = {"subsets": [ALL], "n_resamples": 2, "seed": seed}
    return [information_table(part, **options) for part in parts]


def _half_of(full: Evaluation, seed: int) -> Int[np.ndarray, " example"]:
    """The half, 0 or 1, of every example; no cluster is split, and strata are halved."""
    label = np.unique(full.correct_classes.numpy(), axis=0, return_inverse=True)[1].reshape(-1)
    kinds = np.stack([full.subsets.astype(str), label.astype(str)])
    stratum = np.unique(kinds, axis=1, return_inverse=True)[1].reshape(-1)
    if full.clusters is not None and len(np.unique(full.clusters)) > 1:
        return folds_of(stratum, seed, full.clusters, n_folds=2)
    half = np.empty(len(stratum), dtype=int)
    order = np.lexsort((np.random.default_rng(seed).random(len(stratum)), stratum))
    half[order] = np.arange(len(stratum)) % 2  # so that of odd strata not all have more in one
    return half


# -- words ----------------------------------------------------------------------------------------


def confirmation(roles: pd.DataFrame) -> str:
    """How many roles were found on a half and confirmed on the other, and how large they are there.

    Args:
        roles: of `confirm_roles`.

    Returns:
        One sentence; mean changes are sizes in points, in the direction found. Empty for roles
        without the columns of `confirm_roles`.
    """
    if "confirmed" not in roles or roles.empty:
        return ""
    reason = roles["reason_confirmed"].iloc[0]
    places = [place for place in PLACES if roles[f"halves_found_{place}"].notna().any()]
    if not places:
        return f"Split-half check: not possible ({reason})." if reason else ""
    unless = f" (not possible {reason})" if reason else ""
    weight, drop, held_out = (
        np.stack([roles[f"{name}_{place}"].to_numpy(float) for place in places])
        for name in ("halves_found", "information_drop_found", "information_drop_confirmed")
    )
    found = weight > 0
    n, m = int(found.any(0).sum()), int(roles["confirmed"].sum())
    if not n:
        return (
            "Split-half check: no component has an information role on a half of the examples "
            f"alone{unless}."
        )
    sizes = (
        100 * np.average((np.sign(drop) * each)[found], weights=weight[found])
        for each in (drop, held_out)
    )
    selected, opposite = (number(size, 1) for size in sizes)
    return (
        f"Split-half check: {count(n, 'component')} {'has' if n == 1 else 'have'} an information "
        f"role on at least one half of the examples; {m} of them {'is' if m == 1 else 'are'} "
        f"confirmed on the other half, where effects average {opposite} points of information in "
        f"place of {selected}{unless}."
    )


def held_out_change(row: Any) -> str:
    """A component's changes in information on the halves that did not find it, in points.

    Args:
        row: of `confirm_roles`.

    >>> held_out_change(table.iloc[0])  # doctest: +SKIP
    '-4.1 out of domain, confirmed'
    """
    parts = [
        f"{number(0.0 - 100 * row[f'information_drop_confirmed_{p}'], 1, signed=True)} {PLACES[p]}"
        for p in OUT_FIRST
        if row[f"halves_found_{p}"] > 0
    ]
    if not parts:
        return ""
    return ", ".join([*parts, "confirmed" if row["confirmed"] else "not confirmed"])
