"""Single changes of components in both domains: lost, gained, absent or open."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from mechcore.ablation.settings import OOD_MEAN, RoleSettings
from mechcore.errors import InputError
from mechcore.evaluation.p_values import ROUNDING, adjusted_p
from mechcore.tables import Column

FIGURES = ("information", "threshold", "shift")
_ENDS = ("_change", "_change_low", "_change_high", "_change_se", "_p")
_CLUSTERS = ("n_clusters", "df", "population")

INJECTED = Column(
    "injected_margin",
    "number",
    "what the training mean injects out of domain: the first-order effect on the margin of adding "
    "the training mean minus the out-of-domain mean to its output, averaged over examples",
    "nats",
)


def side_by_side(
    in_domain: pd.DataFrame, out_of_domain: pd.DataFrame, ood_mean: pd.DataFrame | None
) -> pd.DataFrame:
    """A row per component, p out of domain of both means; `InputError` if components differ."""
    given = {"id": in_domain, "ood": out_of_domain, OOD_MEAN: ood_mean}
    tables = {place: _by_component(t) for place, t in given.items() if t is not None}
    names = tables["id"].index
    for table in tables.values():
        if differing := sorted(set(names) ^ set(table.index)):
            raise InputError(
                f"roles: {differing[0]} is in only one of the tables; expected the same components "
                "in domain and out of domain"
            )
    wide = pd.concat([t.loc[names].add_suffix(f"_{p}") for p, t in tables.items()], axis=1)
    if ood_mean is not None:
        wide = wide.rename(columns={f"{INJECTED.name}_{OOD_MEAN}": INJECTED.name})
        for figure in FIGURES:
            wide[f"{figure}_p_ood"] = _larger_p(wide, figure)
    return wide


def _by_component(table: pd.DataFrame) -> pd.DataFrame:
    twice = table["set"][table["set"].duplicated()]
    if len(twice):
        raise InputError(
            f"roles: {twice.iloc[0]} occurs twice in a table; expected the rows of one subset"
        )
    columns = [figure + end for figure in FIGURES for end in _ENDS]
    more = [name for name in (*_CLUSTERS, INJECTED.name) if name in table]
    return table.set_index("set")[[*columns, "reason", *more]]


def _larger_p(wide: pd.DataFrame, figure: str) -> np.ndarray:
    """The larger p of a change out of domain with either mean; 1 where the signs are opposite."""
    changes, p = (
        wide[[f"{figure}_{end}_{place}" for place in ("ood", OOD_MEAN)]].to_numpy(float)
        for end in ("change", "p")
    )
    larger = p.max(1)
    return np.where((changes.prod(1) < 0) & ~np.isnan(larger), 1.0, larger)


def change_states(wide: pd.DataFrame, figure: str, place: str, settings: RoleSettings) -> list[str]:
    """The state of each component's change: lost, gained, absent, open or missing."""
    outside = ["ood", OOD_MEAN] if f"{figure}_change_{OOD_MEAN}" in wide else ["ood"]
    pairs = [("id", own) if place == "id" else (own, "id") for own in outside]
    changes = np.array([wide[f"{figure}_change_{own}"] for own, _ in pairs], float)
    absence = np.max([_p_of_absence(wide, figure, *pair, settings) for pair in pairs], axis=0)
    absent = adjusted_p(absence, "benjamini-hochberg") < settings.alpha
    large = wide[f"{figure}_p_adjusted_{place}"].to_numpy(float) < settings.alpha
    large &= (np.abs(changes) >= settings.least - ROUNDING).all(0)
    lost, gained = (large & (sign * changes > 0).all(0) for sign in (-1, 1))
    conditions = [np.isnan(changes).any(0), lost, gained, absent]
    return np.select(conditions, ["missing", "lost", "gained", "absent"], "open").tolist()


def _p_of_absence(
    wide: pd.DataFrame, figure: str, place: str, other: str, settings: RoleSettings
) -> np.ndarray:
    """Equivalence test p of each component's change against the least effect or a minor share."""
    change, error = (
        wide[f"{figure}_{end}_{place}"].to_numpy(float) for end in ("change", "change_se")
    )
    bound, bound_error = np.full(len(wide), settings.least), np.zeros(len(wide))
    if figure == "information":
        share = -settings.minor * wide[f"{figure}_change_{other}"].to_numpy(float)
        relative = share > bound
        bound = np.where(relative, share, bound)
        other_error = settings.minor * wide[f"{figure}_change_se_{other}"].to_numpy(float)
        bound_error = np.where(relative, other_error, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (np.abs(change) - bound) / np.hypot(error, bound_error)
    df = wide.get(f"df_{place}", pd.Series(np.nan, wide.index)).fillna(np.inf)
    p: np.ndarray = stats.t.cdf(z, df)
    return p
