"""Interactions of sets of core heads in words."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.ablation.superadditivity import directions
from mechcore.report.groups import data_sets, of_data
from mechcore.report.run_folder import RunFolder
from mechcore.wording import ALL, SIGNIFICANT, count, effect, p_value, with_interval

_ENDS = (
    ("floor", "lose", "the interaction on accuracy comes out too small"),
    ("ceiling", "gain", "sets may look superadditive on accuracy that are not"),
)
"""Flags of a saturated joint change, what accuracy cannot do any more, and what comes of it."""


def interaction_sentences(run: RunFolder) -> Iterator[str]:
    """Which joint sets are superadditive out-of-domain, on the margin and on accuracy."""
    table = run.table("interactions")
    if table is None or len(table) == 0:
        return
    overall = table[(table["role"] == "ood") & (table["subset"] == ALL)]
    for role, data in data_sets(overall):
        for metric, name in (("margin", "the margin"), ("accuracy", "accuracy")):
            part = of_data(overall, role, data)
            part = part[part["metric"] == metric].dropna(subset=["interaction"])
            if len(part):
                yield _superadditivity(part, name, metric, data, run.core)


def _superadditivity(part: pd.DataFrame, name: str, metric: str, data: str, core: list[str]) -> str:
    sign = directions(part, SIGNIFICANT)
    above, below = part[sign > 0], part[sign < 0]
    unknown = bool(part["low"].isna().all())
    choices = above if len(above) else part
    top = choices.iloc[int(choices["interaction"].abs().argmax())]
    members = top["set"].split("+")
    whole_core = len(members) > 2 and set(members) == set(core)
    which = f"the whole core ({len(core)} heads)" if whole_core else top["set"]
    terms = (
        f"the joint change is {effect(-top['joint_drop'], metric)} where the single changes sum "
        f"to {effect(-top['sum_of_single_drops'], metric)}, an interaction of "
        f"{with_interval(-top['interaction'], -top['high'], -top['low'], metric, unit=True)}"
    )
    where = f"On {name} out-of-domain ({data})"
    if len(part) == 1:
        text = f"{where}, for {which} {terms}"
        if len(above):
            text += ": superadditive."
        elif len(below):
            text += ": subadditive, less than the heads do one by one."
        elif unknown:
            text += "; its interval is not known, so neither direction is shown."
        elif top["low"] <= 0 <= top["high"]:
            text += "; the interval includes zero, so neither direction is shown."
        else:
            text += f"; with an adjusted {p_value(top['p_adjusted'])}, neither direction is shown."
    elif unknown:
        text = (
            f"{where}, the intervals of all {count(len(part), 'joint set')} are not known, so no "
            "direction is shown. The largest interaction, in either direction, is that of "
            f"{which}: {terms}."
        )
    else:
        leads = ("The largest interaction, in either direction,", "The superadditive interaction")
        lead = (*leads, "The largest superadditive interaction")[min(len(above), 2)]
        text = (
            f"{where}, {len(above)} of {count(len(part), 'joint set')} "
            f"{'is' if len(above) == 1 else 'are'} superadditive and {len(below)} subadditive, "
            f"with an interval that leaves out zero and an adjusted p of at most {SIGNIFICANT:g}. "
            f"{lead} is that of {which}: {terms}."
        )
        if top["low"] <= 0 <= top["high"]:
            text += " Its interval includes zero."
    for end, change, so in _ENDS:
        n = int(part[end].sum()) if metric == "accuracy" else 0
        if n:
            text += (
                f" The joint change saturates for {n} of {len(part)}, as accuracy has little or "
                f"nothing left to {change}: there {so}."
            )
    return text
