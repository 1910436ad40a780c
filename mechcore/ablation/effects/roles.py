"""The role of each component, judged by ablating it alone: docs/concepts/roles.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mechcore.ablation.effects.change_states import FIGURES, INJECTED, change_states, side_by_side
from mechcore.ablation.effects.changes import p_column
from mechcore.ablation.effects.information import REASON
from mechcore.ablation.settings import OOD_MEAN, RoleSettings
from mechcore.evaluation.p_values import selective_p
from mechcore.tables import COMPONENT, Column, Schema, estimate
from mechcore.wording import OUT_FIRST, PLACES, listed, number, rounded

BOTH = "needed in both"
IN_ONLY = "needed in domain only"
OUT_ONLY = "needed out of domain only"
IN = "needed in domain"
OUT = "needed out of domain"
HARMFUL_OUT = "harmful out of domain"
HARMFUL_IN = "harmful in domain"
THRESHOLD = "moves the threshold"
NONE = "no detectable effect"
UNDECIDED = "undecided"
ROLES = (BOTH, HARMFUL_OUT, IN_ONLY, IN, OUT_ONLY, OUT, HARMFUL_IN, THRESHOLD, NONE, UNDECIDED)

_UNIT = " points of information without it"  # said once in a verdict
_NAMED = 3  # number of components per group that a verdict names
_CORRECTED = "its p (the larger of two means), corrected for the component's changes and components"


def _change_columns(figure: str, place: str) -> tuple[Column, ...]:
    low, high = (f"{figure}_change_{end}_{place}" for end in ("low", "high"))
    meaning = f"change in {figure} {PLACES[place]}; negative: worse without it"
    return (
        *estimate(f"{figure}_change_{place}", "points", meaning, low=low, high=high),
        p_column(f"{figure}_p_adjusted_{place}", _CORRECTED),
    )


COMPONENT_ROLES = Schema(
    "roles",
    "The role of every component, judged by ablating it alone.",
    (
        COMPONENT,
        Column("role", "text", f"of the component: {', '.join(ROLES)}"),
        Column("sure", "flag", "whether every part of the role is decided"),
        Column("open", "text", "which parts are undecided, and why"),
        *(
            column
            for place in PLACES
            for figure in FIGURES
            for column in _change_columns(figure, place)
        ),
        *estimate(
            "information_change_ood_mean",
            "points",
            "information_change_ood with the out-of-domain mean instead of the training mean",
            low="information_change_low_ood_mean",
            high="information_change_high_ood_mean",
            optional=True,
            optional_ends=True,
        ),
        INJECTED.called("", optional=True),
        *(
            REASON.alike(f"reason_{place}", f"{REASON.meaning}, {PLACES[place]}")
            for place in PLACES
        ),
        Column("explanation", "text", "the role in a sentence"),
    ),
)


def component_roles(
    in_domain: pd.DataFrame,
    out_of_domain: pd.DataFrame,
    settings: RoleSettings | None = None,
    *,
    ood_mean: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """The role of each component, one row each; the columns of `COMPONENT_ROLES`.

    Tables are rows of `mechcore.ablation.information_table` for single components on one subset;
    ``ood_mean`` those with the mean of the out-of-domain texts as the fill.

    Raises:
        InputError: a component is repeated, or the tables have different components.
    """
    settings = settings or RoleSettings()
    wide = side_by_side(in_domain, out_of_domain, ood_mean)
    keys = [f"{figure}_p_{place}" for place in PLACES for figure in FIGURES]
    adjusted = selective_p(wide[keys].to_numpy(float))
    for i, key in enumerate(keys):
        wide[key.replace("_p_", "_p_adjusted_")] = adjusted[:, i]
    states = {
        f"{figure}_{place}": change_states(wide, figure, place, settings)
        for place in PLACES
        for figure in FIGURES
    }
    judged = [
        _judge(dict(zip(states, of_component, strict=True)))
        for of_component in zip(*states.values(), strict=True)
    ]
    wide["component"] = wide.index
    wide["role"] = [role for role, _ in judged]
    doubts = [
        [_open(row, *part.split("_")) for part in still_open]
        for (_, still_open), (_, row) in zip(judged, wide.iterrows(), strict=True)
    ]
    if ood_mean is not None:
        alone = [
            component_roles(in_domain, outside, settings)["role"]
            for outside in (out_of_domain, ood_mean)
        ]
        for doubt, training, own in zip(doubts, *alone, strict=True):
            if training != own:
                doubt.append(
                    f"the mean decides: {training} with the training mean alone, {own} with the "
                    "out-of-domain mean alone"
                )
    wide["sure"] = [not doubt for doubt in doubts]
    wide["open"] = ["; ".join(doubt) for doubt in doubts]
    wide["explanation"] = [explain_role(row) for _, row in wide.iterrows()]
    return wide[[n for n in COMPONENT_ROLES.names if n in wide]].reset_index(drop=True)


def explain_role(row: pd.Series | Mapping[str, Any]) -> str:
    """A sentence for a row of `component_roles`, with changes in points and their intervals."""
    inside, outside = (_change(row, "information", place) for place in PLACES)
    moved = (_change(row, "threshold", place) for place in PLACES)
    shifts = (_shift(row, place) for place in PLACES)
    own = ""
    if not np.isnan(row.get(f"information_change_{OOD_MEAN}", np.nan)):
        own = f", and with the out-of-domain mean {_change(row, 'information', OOD_MEAN)}"
    parts = [
        f"without it the model {inside.replace('points', 'points of information')} in domain and "
        f"{outside} out of domain{own}",
        "by a shifted threshold it {} in domain and {} out of domain".format(*moved),
        "on balance {} of the answers in domain and {} out of domain change sides".format(*shifts),
    ]
    doubt = f" Not sure: {row['open']}." if row["open"] else ""
    verb = {NONE: "has ", THRESHOLD: ""}.get(row["role"], "is ")
    # Whether a single interval, uncorrected, excludes 0.
    stands_out = any(
        row[f"{f}_change_low_{p}"] > 0 or row[f"{f}_change_high_{p}"] < 0
        for f in FIGURES
        for p in PLACES
    )
    among = ", corrected for all components" if row["role"] == NONE and stands_out else ""
    return f"{row['component']} {verb}{row['role']}{among}: {'; '.join(parts)}.{doubt}"


def ranked(roles: pd.DataFrame) -> pd.DataFrame:
    """The components with a role, by size of their information change, out of domain first."""
    doing = roles[~roles["role"].isin([NONE, UNDECIDED])]
    keys = [f"information_change_{place}" for place in OUT_FIRST]
    return doing.sort_values(keys, key=lambda change: -change.abs(), kind="stable")


def verdict(roles: pd.DataFrame) -> str:
    """A sentence on which components are to blame, carry the generalisation or can be removed."""
    if roles.empty:
        return "No component was ablated."
    known = [place for place in PLACES if roles[f"information_change_{place}"].notna().any()]
    parts = []
    if "ood" in known:
        parts = [
            _group(roles, (HARMFUL_OUT,), "ood", ("is", "are"), "harmful out of domain"),
            _group(roles, (BOTH, OUT_ONLY, OUT), "ood", ("carries", "carry"), "the generalisation"),
        ]
    elif "id" in known:
        parts = [_group(roles, (IN,), "id", ("is", "are"), "needed in domain")]
    if len(known) == len(PLACES):
        inside = ranked(roles[roles["role"] == IN_ONLY])["component"].tolist()
        if inside:
            named = [*inside[:_NAMED], *([f"{len(inside) - _NAMED} more"] * (len(inside) > _NAMED))]
            verb = "is" if len(inside) == 1 else "are"
            parts.append(f"{len(inside)} {verb} {IN_ONLY} ({listed(named)})")
        idle = roles[(roles["role"] == NONE) & roles["sure"]]
        gone = f"any one of {len(idle)} can be removed ({_largest_cost(idle)})"
        parts += [gone] * bool(len(idle))
    reasons = [f"{PLACES[p]}, {roles[f'reason_{p}'].iloc[0]}" for p in PLACES if p not in known]
    if not known:
        return f"No role of {len(roles)} components is known: {'; '.join(reasons)}."
    text = "; ".join([*parts, *reasons])
    first, unit, rest = text.partition(_UNIT)
    return f"Of {len(roles)} components ablated alone, {first}{unit}{rest.replace(_UNIT, '')}."


def _largest_cost(idle: pd.DataFrame) -> str:
    """The largest cost of any of these components, in domain or out of domain."""
    (cost, most), (moved, most_moved) = (
        [
            100 * max(0.0, *(-idle[f"{figure}_{end}_{place}"].min() for place in PLACES))
            for end in ("change", "change_low")
        ]
        for figure in ("information", "threshold")
    )
    return (
        f"costs up to {cost:.1f} points of information in domain or out of domain, intervals to "
        f"{most:.1f}, and by a shifted threshold up to {moved:.1f}, to {most_moved:.1f}"
    )


def _group(
    roles: pd.DataFrame, wanted: tuple[str, ...], place: str, verbs: tuple[str, str], what: str
) -> str:
    """How many components have one of these roles, with the largest changes."""
    group = ranked(roles[roles["role"].isin(wanted)])
    if group.empty:
        return f"none is shown to {'be' if 'is' in verbs else verbs[1]} {what}"
    named = [
        f"{row['component']} {information_change(row, place)}"
        for _, row in group[:_NAMED].iterrows()
    ]
    named[0] += _UNIT
    if len(group) > _NAMED:
        named.append(f"and {len(group) - _NAMED} more")
    text = f"{len(group)} {verbs[len(group) > 1]} {what} ({', '.join(named)})"
    if "confirmed" in group and roles[f"halves_found_{place}"].notna().any():
        text += f", {int(group['confirmed'].sum())} confirmed on held-out halves"
    return text


def information_change(row: Any, place: str) -> str:
    """The change in information without a component on a split, in points, with its interval."""
    if np.isnan(row[f"information_change_{place}"]):
        return "unknown"
    ends = _points(row, "information", place)
    change, low, high = (number(end, 1, signed=True) for end in ends)
    return change if np.isnan(ends[1]) else f"{change} [{low}, {high}]"


# -- judging --------------------------------------------------------------------------------------


def _judge(state: Mapping[str, str]) -> tuple[str, list[str]]:
    """The role, and which of its parts are open."""
    inside, outside = state["information_id"], state["information_ood"]
    information = {"information_id": inside, "information_ood": outside}
    unknown = [name for name, known in information.items() if known in ("open", "missing")]
    if inside == outside == "lost":
        return BOTH, []
    if outside == "gained":
        return HARMFUL_OUT, []
    if inside == "lost":
        return (IN, unknown) if unknown else (IN_ONLY, [])
    if outside == "lost":
        return (OUT, unknown) if unknown else (OUT_ONLY, [])
    if inside == "gained":
        return HARMFUL_IN, unknown
    moved = {state[f"{figure}_{place}"] for figure in ("threshold", "shift") for place in PLACES}
    if moved & {"lost", "gained"}:
        return THRESHOLD, unknown
    still_open = [name for name, known in state.items() if known in ("open", "missing")]
    return (UNDECIDED if "missing" in state.values() else NONE), still_open


# -- words ----------------------------------------------------------------------------------------


def _points(row: Any, figure: str, place: str) -> list[float]:
    """A change and the ends of its interval, in points."""
    ends = ("change", "change_low", "change_high")
    return [rounded(100 * row[f"{figure}_{end}_{place}"], 1) + 0.0 for end in ends]  # no -0.0


def _change(row: Any, figure: str, place: str) -> str:
    change, low, high = _points(row, figure, place)
    if np.isnan(change):
        return "changes by an unknown amount"
    if change > 0:
        return f"gains {change:.1f} points{_ends(low, high)}"
    return f"loses {0.0 - change:.1f} points{_ends(0.0 - high, 0.0 - low)}"


def _ends(low: float, high: float) -> str:
    """An interval in brackets, if there is one."""
    return "" if np.isnan(low) else f" ({low:.1f} to {high:.1f})"


def _shift(row: Any, place: str) -> str:
    """How much more or less often a label is predicted, in percent of answers."""
    change, low, high = _points(row, "shift", place)
    if np.isnan(change):
        return "an unknown share"
    if change < 0:
        change, low, high = -change, 0.0 - high, 0.0 - low
    return f"{change:.1f} %{_ends(low, high)}"


def _open(row: Any, figure: str, place: str) -> str:
    """Why a change is undecided."""
    of, reason = f"{figure} {PLACES[place]}", row[f"reason_{place}"]
    change, low, high = _points(row, figure, place)
    if np.isnan(change):
        return f"{of}: {reason}"
    if np.isnan(low):
        return f"{of}: a change of {change:.1f} points; {reason}"
    # An interval without 0 is that of one component alone.
    apart = row[f"{figure}_change_low_{place}"] > 0 or row[f"{figure}_change_high_{place}"] < 0
    p = f"; p = {row[f'{figure}_p_adjusted_{place}']:.2g} among all components" if apart else ""
    figures = f"{change:.1f} points ({low:.1f} to {high:.1f}{p})"
    if place == "id" or f"{figure}_change_{OOD_MEAN}" not in row:
        return f"{of}: a change of {figures} is inconclusive"
    change, low, high = _points(row, figure, OOD_MEAN)
    own = f"with the out-of-domain mean of {change:.1f} points ({low:.1f} to {high:.1f})"
    return f"{of}: a change of {figures}, {own}, is inconclusive with both means"
