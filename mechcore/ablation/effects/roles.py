"""The role of each component: what it is needed for, judged by ablating it alone.

Changes are those of `information_table`, measured in domain and out of domain, and negative if
the model is worse without the component. In each domain, information is

- *lost*, if its change is significant, negative and at least the least effect of interest in size,
- *gained*, if its change is so and positive,
- *absent*, if its change is shown to be smaller than the least effect, or than a minor share of
  the loss in the other domain (an equivalence test), and it is neither lost nor gained,
- *open* otherwise.

Out of domain, the training mean is not a neutral fill: it also injects the difference of the two
domains' means into every text. So changes there can be measured with either mean, and are then
lost, gained or absent only if this holds with both (an intersection-union test): their p is the
larger of the two, and 1 if the signs differ. A role that would differ with one of the means alone
is not sure.

The first rule that fits gives the role (`ROLES`):

1. lost in both: needed in both.
2. gained out of domain: harmful out of domain.
3. lost in domain, absent out of domain: needed in domain only; if it is open there: needed in
   domain, and not sure.
4. lost out of domain, absent or gained in domain: needed out of domain only; if it is open there:
   needed out of domain, and not sure.
5. gained in domain: harmful in domain.
6. the threshold change or the shift is significant and at least the least effect in size, in
   either: moves the threshold; sure if information is absent in both.
7. no detectable effect; sure if information, threshold and shift are absent in both. Where a figure
   could not be measured: undecided.

Significance controls the false discovery rate among *components*, not among changes: a component is
selected by the Simes p of its six changes, corrected over components (Benjamini-Hochberg), and its
changes are tested at the level that this leaves (Benjamini and Bogomolov, J. R. Stat. Soc. B
76, 2014), see `selective_p`. The p of the equivalence tests are corrected over components
(Benjamini-Hochberg), for each figure and domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mechcore.ablation.effects.change_states import FIGURES, INJECTED, change_states, side_by_side
from mechcore.ablation.effects.information import REASON
from mechcore.ablation.settings import OOD_MEAN, ROLES_NAME, RoleSettings
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

_NAMED = 3
"""Number of components per group that a verdict names."""


def _change_columns(figure: str, place: str) -> tuple[Column, ...]:
    low, high = (f"{figure}_change_{end}_{place}" for end in ("low", "high"))
    meaning = (
        f"change in {figure} {PLACES[place]} without the component; negative: worse without it"
    )
    return (
        *estimate(f"{figure}_change_{place}", "points", meaning, low=low, high=high),
        Column(
            f"{figure}_p_adjusted_{place}",
            "number",
            "its p, corrected within the component's six changes and over components; never under "
            "alpha for a component that is not selected (Benjamini and Bogomolov)"
            + ("; with two means, the larger p" if place == "ood" else ""),
            shown="small",
        ),
    )


COMPONENT_ROLES = Schema(
    ROLES_NAME,
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
    """The role of each component, by the rules of this module.

    Args:
        in_domain: rows of `information_table` for single components, on one subset (or all
            examples) of in-domain data.
        out_of_domain: rows of the same components out of domain.
        settings: how to judge.
        ood_mean: like ``out_of_domain``, with the mean of the out-of-domain texts as the fill; with
            ``injected_margin`` if known.

    Returns:
        The columns of `COMPONENT_ROLES`, one row per component in the order of ``in_domain``.
        Changes are shares, negative if the model is worse without the component.

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
    """A sentence for a row of `component_roles`, with changes in points and their intervals.

    >>> print(explain_role(table.iloc[0]))  # doctest: +SKIP
    L3.H10 is needed out of domain only: without it the model gains 0.1 points of information
    (-0.3 to 0.5) in domain and loses 4.1 points (2.2 to 6.0) out of domain; by a moved ...
    """
    inside, outside = (_change(row, "information", place) for place in PLACES)
    moved = (_change(row, "threshold", place) for place in PLACES)
    shifts = (_shift(row, place) for place in PLACES)
    own = ""
    if not np.isnan(row.get(f"information_change_{OOD_MEAN}", np.nan)):
        own = f", and with the out-of-domain mean {_change(row, 'information', OOD_MEAN)}"
    parts = [
        f"without it the model {inside.replace('points', 'points of information')} in domain and "
        f"{outside} out of domain{own}",
        "by a moved threshold it {} in domain and {} out of domain".format(*moved),
        "on balance {} of the answers in domain and {} out of domain change sides".format(*shifts),
    ]
    doubt = f" Not sure: {row['open']}." if row["open"] else ""
    verb = {NONE: "has ", THRESHOLD: ""}.get(row["role"], "is ")
    among = ", corrected for all components" if row["role"] == NONE and _stands_out(row) else ""
    return f"{row['component']} {verb}{row['role']}{among}: {'; '.join(parts)}.{doubt}"


def _stands_out(row: Any) -> bool:
    """Whether a single interval, uncorrected, excludes 0."""
    ends = (
        [row[f"{f}_change_{end}_{p}"] for end in ("low", "high")] for f in FIGURES for p in PLACES
    )
    return any(low > 0 or high < 0 for low, high in ends)


def ranked(roles: pd.DataFrame) -> pd.DataFrame:
    """The components with a role, those that matter most out of domain first.

    Sorted by size of their information change out of domain or, if unknown, in domain.
    """
    doing = roles[~roles["role"].isin([NONE, UNDECIDED])]
    keys = [f"information_change_{place}" for place in OUT_FIRST]
    return doing.sort_values(keys, key=lambda change: -change.abs(), kind="stable")


def verdict(roles: pd.DataFrame) -> str:
    """A sentence on which components are to blame, carry the generalisation or can be removed.

    Changes in information are in points with their intervals, negative if the model is worse
    without the component. If information is unknown in a domain, the sentence says why.
    """
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
        parts.append(gone if len(idle) else "none is shown to have no effect")
    reasons = [f"{PLACES[p]}, {roles[f'reason_{p}'].iloc[0]}" for p in PLACES if p not in known]
    if not known:
        return f"No role of {len(roles)} components is known: {'; '.join(reasons)}."
    parts += reasons
    return f"Of {len(roles)} components ablated alone, {'; '.join(parts)}."


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
        f"{most:.1f}, and by a moved threshold up to {moved:.1f}, to {most_moved:.1f}"
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
    named[0] += " points of information without it"
    if len(group) > _NAMED:
        named.append(f"and {len(group) - _NAMED} more")
    return f"{len(group)} {verbs[len(group) > 1]} {what} ({', '.join(named)})"


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
    if np.isnan(row[f"{figure}_change_{place}"]):
        return f"{figure} {PLACES[place]}: {row[f'reason_{place}']}"
    change, low, high = _points(row, figure, place)
    if np.isnan(low):
        return (
            f"{figure} {PLACES[place]}: a change of {change:.1f} points; {row[f'reason_{place}']}"
        )
    # An interval without 0 is that of one component alone.
    apart = row[f"{figure}_change_low_{place}"] > 0 or row[f"{figure}_change_high_{place}"] < 0
    p = f"; p = {row[f'{figure}_p_adjusted_{place}']:.2g} among all components" if apart else ""
    figures = f"{change:.1f} points ({low:.1f} to {high:.1f}{p})"
    if place == "id" or f"{figure}_change_{OOD_MEAN}" not in row:
        return f"{figure} {PLACES[place]}: a change of {figures} is inconclusive"
    change, low, high = _points(row, figure, OOD_MEAN)
    own = f"{change:.1f} points ({low:.1f} to {high:.1f})"
    return (
        f"{figure} {PLACES[place]}: a change of {figures}, with the out-of-domain mean of {own}, "
        "is inconclusive with both means"
    )
