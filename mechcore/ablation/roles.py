"""The role of each component: what it is needed for, judged by ablating it alone.

Drops are those of `information_table`, measured in domain and out of domain, and positive where the
model is worse without the component. A drop in information is, in each of the two,

- *lost*, if it is significant and at least the least effect of interest,
- *gained*, if minus the drop is,
- *absent*, if it is shown to be less than the least effect, or less than a minor share of the drop
  in the other of the two (an equivalence test), and neither lost nor gained,
- *open* otherwise.

The first rule that fits gives the role (`ROLES`):

1. lost in both: needed in both.
2. gained out of domain: harmful out of domain.
3. lost in domain, absent out of domain: needed in domain only; if it is open there: needed in
   domain, and not sure.
4. lost out of domain, absent or gained in domain: needed out of domain only; if it is open there:
   needed out of domain, and not sure.
5. gained in domain: harmful in domain.
6. the threshold drop, or minus it, is significant and at least the least effect, in either: moves
   the threshold; sure if information is absent in both.
7. no detectable effect; sure if information and threshold are absent in both. Where a figure could
   not be measured: undecided.

Significance is that of the p of each drop corrected by Benjamini-Hochberg over all components and
their four drops together; p of the equivalence tests are corrected over components in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from mechcore.errors import InputError

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

PLACES = {"id": "in domain", "ood": "out of domain"}
_FIGURES = ("information", "threshold")
_ENDS = ("_drop", "_drop_low", "_drop_high", "_drop_se", "_p")
COLUMNS = (
    *("component", "role", "sure", "open"),
    *(
        f"{figure}_{end}_{place}"
        for place in PLACES
        for figure in _FIGURES
        for end in ("drop", "drop_low", "drop_high", "p_adjusted")
    ),
)


@dataclass(frozen=True)
class RoleSettings:
    """How roles are judged.

    Attributes:
        alpha: false discovery rate of the drops, and level of the equivalence tests.
        least: least effect of interest, as a share of balanced accuracy.
        minor: share of the drop in one domain up to which the drop in the other counts as absent.
    """

    alpha: float = 0.05
    least: float = 0.01
    minor: float = 0.25

    def __post_init__(self) -> None:
        for name in ("alpha", "least", "minor"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise InputError(f"roles: {name} is {value}; expected a share between 0 and 1")


def component_roles(
    in_domain: pd.DataFrame,
    out_of_domain: pd.DataFrame,
    settings: RoleSettings | None = None,
) -> pd.DataFrame:
    """The role of each component, by the rules of this module.

    Args:
        in_domain: rows of `information_table` for single components, on one subset (or all
            examples) of in-domain data.
        out_of_domain: those of the same components out of domain.
        settings: how to judge.

    Returns:
        One row per component with the columns `COLUMNS`, in the order of ``in_domain``: its role,
        whether every part of it is decided (``sure``) and what is not (``open``), and its drops in
        information and by a moved threshold as shares with intervals and corrected p. Positive
        drops: worse without it.

    Raises:
        InputError: a component comes twice, or the tables have different ones.
    """
    settings = settings or RoleSettings()
    tables = {"id": _by_component(in_domain), "ood": _by_component(out_of_domain)}
    names = tables["id"].index
    if set(names) != set(tables["ood"].index):
        differing = sorted(set(names) ^ set(tables["ood"].index))
        raise InputError(
            f"roles: {differing[0]} is in one of the tables only; expected the same components in "
            "domain and out of domain"
        )
    wide = pd.concat([t.loc[names].add_suffix(f"_{p}") for p, t in tables.items()], axis=1)
    keys = [f"{figure}_p_{place}" for place in PLACES for figure in _FIGURES]
    adjusted = _adjusted(wide[keys].to_numpy(float))
    for i, key in enumerate(keys):
        wide[key.replace("_p_", "_p_adjusted_")] = adjusted[:, i]
    states = {
        f"{figure}_{place}": _states(wide, figure, place, settings)
        for place in PLACES
        for figure in _FIGURES
    }
    judged = [
        _judge(dict(zip(states, each, strict=True))) for each in zip(*states.values(), strict=True)
    ]
    wide["component"] = names
    wide["role"] = [role for role, _ in judged]
    wide["sure"] = [not still_open for _, still_open in judged]
    wide["open"] = [
        "; ".join(_open(row, *part.split("_")) for part in still_open)
        for (_, still_open), (_, row) in zip(judged, wide.iterrows(), strict=True)
    ]
    return wide[list(COLUMNS)].reset_index(drop=True)


def explain_role(row: pd.Series | Mapping[str, Any]) -> str:
    """A row of `component_roles` in a sentence, with drops in points and their intervals.

    >>> print(explain_role(table.iloc[0]))  # doctest: +SKIP
    L3.H10 is needed out of domain only: without it the model gains 0.1 points of information
    (-0.3 to 0.5) in domain and loses 4.1 points (2.2 to 6.0) out of domain; by a moved ...
    """
    inside, outside = (_change(row, "information", place) for place in PLACES)
    moved = (_change(row, "threshold", place) for place in PLACES)
    parts = [
        f"without it the model {inside.replace('points', 'points of information')} in domain and "
        f"{outside} out of domain",
        "by a moved threshold it {} in domain and {} out of domain".format(*moved),
    ]
    doubt = f" Not sure: {row['open']}." if row["open"] else ""
    verb = {NONE: "has ", THRESHOLD: ""}.get(row["role"], "is ")
    return f"{row['component']} {verb}{row['role']}: {'; '.join(parts)}.{doubt}"


# -- judging --------------------------------------------------------------------------------------


def _by_component(table: pd.DataFrame) -> pd.DataFrame:
    twice = table["set"][table["set"].duplicated()]
    if len(twice):
        raise InputError(
            f"roles: {twice.iloc[0]} comes twice in a table; expected the rows of one subset"
        )
    columns = [figure + end for figure in _FIGURES for end in _ENDS]
    return table.set_index("set")[[*columns, "reason"]]


def _adjusted(p: np.ndarray) -> np.ndarray:
    """Benjamini-Hochberg over all values that are known."""
    found, known = p.copy(), ~np.isnan(p)
    found[known] = stats.false_discovery_control(p[known])
    return found


def _states(wide: pd.DataFrame, figure: str, place: str, settings: RoleSettings) -> list[str]:
    """What is known of each component's drop: lost, gained, absent, open or missing."""
    drop, error, p = (
        wide[f"{figure}_{end}_{place}"].to_numpy(float) for end in ("drop", "drop_se", "p_adjusted")
    )
    bound, bound_error = np.full(len(wide), settings.least), np.zeros(len(wide))
    if figure == "information":
        other = "ood" if place == "id" else "id"
        share = settings.minor * wide[f"{figure}_drop_{other}"].to_numpy(float)
        relative = share > bound
        bound = np.where(relative, share, bound)
        other_error = settings.minor * wide[f"{figure}_drop_se_{other}"].to_numpy(float)
        bound_error = np.where(relative, other_error, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (np.abs(drop) - bound) / np.hypot(error, bound_error)
    absent = _adjusted(stats.norm.cdf(z)) < settings.alpha
    large = (p < settings.alpha) & (np.abs(drop) >= settings.least)
    conditions = [np.isnan(drop), large & (drop > 0), large & (drop < 0), absent]
    return np.select(conditions, ["missing", "lost", "gained", "absent"], "open").tolist()


def _judge(state: Mapping[str, str]) -> tuple[str, list[str]]:
    """The role, and which parts of it are open."""
    inside, outside = state["information_id"], state["information_ood"]
    information = {"information_id": inside, "information_ood": outside}
    unknown = [name for name, each in information.items() if each in ("open", "missing")]
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
    if {state["threshold_id"], state["threshold_ood"]} & {"lost", "gained"}:
        return THRESHOLD, unknown
    still_open = [name for name, each in state.items() if each in ("open", "missing")]
    return (UNDECIDED if "missing" in state.values() else NONE), still_open


# -- words ----------------------------------------------------------------------------------------


def _drop(row: Any, figure: str, place: str) -> list[float]:
    """A drop and the ends of its interval, in points."""
    ends = ("drop", "drop_low", "drop_high")
    return [round(100 * row[f"{figure}_{end}_{place}"], 1) + 0.0 for end in ends]  # no -0.0


def _change(row: Any, figure: str, place: str) -> str:
    drop, low, high = _drop(row, figure, place)
    if np.isnan(drop):
        return "changes by an unknown amount"
    if drop < 0:
        return f"gains {-drop:.1f} points ({0.0 - high:.1f} to {0.0 - low:.1f})"
    return f"loses {drop:.1f} points ({low:.1f} to {high:.1f})"


def _open(row: Any, figure: str, place: str) -> str:
    """What is not known of a drop, and why."""
    if np.isnan(row[f"{figure}_drop_{place}"]):
        return f"{figure} {PLACES[place]}: {row[f'reason_{place}']}"
    drop, low, high = _drop(row, figure, place)
    figures = f"{drop:.1f} points ({low:.1f} to {high:.1f})"
    return f"{figure} {PLACES[place]}: a drop of {figures} is neither shown nor ruled out"
