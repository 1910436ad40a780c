"""Which components are to blame: the verdict, every component on two axes, and the ranked list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from mechcore.ablation.confirmed import ROLES_TABLE, confirmation, held_out_change
from mechcore.ablation.drop_states import OOD_MEAN
from mechcore.ablation.roles import (
    BOTH,
    HARMFUL_IN,
    HARMFUL_OUT,
    IN,
    IN_ONLY,
    NONE,
    OUT,
    OUT_ONLY,
    ROLES,
    THRESHOLD,
    UNDECIDED,
    ranked,
    verdict,
)
from mechcore.evaluation.recalibration import CANNOT_TELL
from mechcore.report.blocks import Block, Paragraph, Section, Shown, Table, table_of
from mechcore.report.flips import flips_table
from mechcore.report.groups import data_sets, of_data
from mechcore.report.run_folder import RunFolder
from mechcore.report.scatter_block import Reading, Scatter, Spot, scatter
from mechcore.tables import Column
from mechcore.wording import ALL, NOT_AVAILABLE, OUT_FIRST, PLACES, number

OPEN_ROWS = 15
"""Components in the list before it is opened."""

_LOOKS = {
    HARMFUL_OUT: "harmful-out",
    IN_ONLY: "in",
    IN: "in",
    BOTH: "both",
    OUT_ONLY: "out",
    OUT: "out",
    HARMFUL_IN: "harmful-in",
    THRESHOLD: "threshold",
    NONE: "none",
    UNDECIDED: "none",
}
"""CSS classes of roles; those of the same colour are the same but for what is known."""
_CHANGE = "change without it"


@dataclass(frozen=True)
class _Measure:
    """What is drawn along an axis: a drop of each component and what it is called."""

    name: str
    readings: Mapping[str, Reading]
    caveat: str


def blame_section(run: RunFolder) -> Section | None:
    """The verdict, the scatter and the ranked list of single ablations; None without a sweep."""
    roles = run.filled("roles")
    if roles is None:
        return None
    blocks: list[Block] = [Paragraph(verdict(roles), lead=True)]
    if checked := confirmation(roles):
        blocks.append(Paragraph(checked))
    measures = {place: _measure(run, roles, place) for place in PLACES}
    caveats = [each.caveat for each in measures.values() if each.caveat]
    blocks += [Paragraph(text, note=True) for text in caveats]
    drawing = _drawing(roles, measures)
    if drawing is not None:
        blocks.append(drawing)
    blocks += _list(run, roles, measures)
    flips = flips_table(run)
    blocks += [] if flips is None else [flips]
    files = ["roles.csv", "information.csv", "flips.csv"]
    return Section("blame", "Which components are to blame?", blocks, files)


def in_order(roles: pd.DataFrame) -> pd.DataFrame:
    """All components: those that were found to do something first, then by their largest drop."""
    found = ranked(roles)
    rest = roles.drop(index=found.index)
    drops = rest[[f"information_drop_{place}" for place in OUT_FIRST]].abs().max(axis=1)
    return pd.concat([found, rest.loc[drops.sort_values(ascending=False, kind="stable").index]])


# -- every component on two axes ----------------------------------------------------------------


def _drawing(roles: pd.DataFrame, measures: Mapping[str, _Measure]) -> Scatter | None:
    """The drawing, if both axes can be measured."""
    x, y = (each.readings for each in measures.values())
    if not x or not y:
        return None
    spots = [
        Spot(
            name,
            x[name],
            y[name],
            _LOOKS[row["role"]],
            bool(row["sure"]),
            f"{name}, {row['role']}{'' if row['sure'] else ' (not sure)'}. "
            + "; ".join(_told(each, name, place) for place, each in measures.items()),
            row["role"] not in (NONE, UNDECIDED),
        )
        for _, row in in_order(roles).iterrows()
        if (name := row["component"]) in x and name in y
    ]
    missing = len(roles) - len(spots)
    titles = tuple(
        f"{each.name} {PLACES[place]}: {_CHANGE} (points)" for place, each in measures.items()
    )
    caption = (
        "Every component, ablated alone: below zero the model is worse without it. Lines are 95 % "
        "intervals; a hollow dot is a role that is not sure. Choose a dot to see the head; arrow "
        "keys go from dot to dot in the order of the list."
    )
    if missing:
        caption += f" {missing} of {len(roles)} are not drawn, as their figures are missing."
    counts = roles["role"].value_counts()
    legend = [(_LOOKS[role], f"{role} ({counts[role]})") for role in ROLES if role in counts]
    return scatter(caption, (titles[0], titles[1]), spots, legend)


def _told(measure: _Measure, name: str, place: str) -> str:
    doubt = f", {CANNOT_TELL}" if measure.caveat else ""
    change = _text(measure.readings[name], " points")
    return f"{measure.name} {PLACES[place]} {change} without it{doubt}"


def _text(reading: Reading | None, unit: str = "") -> str:
    """A change with its interval."""
    if reading is None:
        return NOT_AVAILABLE
    ends = (reading.value, reading.low, reading.high)
    value, low, high = (number(each, 1, signed=True) for each in ends)
    return f"{value}{unit} [{low}, {high}]"


def _measure(run: RunFolder, roles: pd.DataFrame, place: str) -> _Measure:
    """Changes in information; where no component has one, changes in accuracy instead."""
    figure = f"information_drop_{place}"
    columns = (figure, f"information_drop_low_{place}", f"information_drop_high_{place}")
    known = roles.dropna(subset=[figure])
    if len(known):
        return _Measure("information", _readings(known, "component", columns), "")
    reason = str(roles[f"reason_{place}"].iloc[0]) or "no figure could be measured"
    where = PLACES[place].capitalize()
    caveat = f"{where}, information is not known: {reason}."
    singles = run.singles
    if singles is None:
        return _Measure("information", {}, caveat)
    overall = singles[(singles["subset"] == ALL) & (singles["role"] == place)]
    overall = overall.dropna(subset=["accuracy_drop"])
    pairs = data_sets(overall)
    if not pairs:
        return _Measure("information", {}, caveat)
    drops = of_data(overall, *pairs[0])
    ends = ("accuracy_drop", "accuracy_drop_low", "accuracy_drop_high")
    caveat += f" Drawn is the change of accuracy on {pairs[0][1]}, which {CANNOT_TELL}."
    return _Measure("accuracy", _readings(drops, "set", ends), caveat)


def _readings(table: pd.DataFrame, name: str, columns: tuple[str, str, str]) -> dict[str, Reading]:
    """Drops as changes in points, their intervals turned round."""
    rows = zip(table[name], *(-100 * table[column] for column in columns), strict=True)
    return {str(key): Reading(value, high, low) for key, value, low, high in rows}


# -- the list -----------------------------------------------------------------------------------


def _list(run: RunFolder, roles: pd.DataFrame, measures: Mapping[str, _Measure]) -> Iterator[Table]:
    rows, by = in_order(roles), _ordered_by(measures)
    if by is not None and measures[by].name == "accuracy":  # roles have no order then
        size = {name: abs(each.value) for name, each in measures[by].readings.items()}
        sizes = rows["component"].map(size).sort_values(ascending=False, kind="stable")
        rows = rows.loc[sizes.index]
    categories = run.table("head_categories")
    if categories is not None:
        rows = rows.merge(categories[["component", "category"]], how="left", on="component")
        rows = rows.fillna({"category": ""})
    names = rows["component"].tolist()
    order = f"by what they do to {measures[by].name} {PLACES[by]}" if by else "in order of layers"
    caption = (
        f"Components {order}: {_CHANGE}, in points, with 95 % intervals; below zero the model is "
        "worse"
    )
    if f"information_drop_{OOD_MEAN}" in roles:
        caption += (
            ". Outputs are replaced by their mean over training data; one column takes the mean "
            "over the out-of-domain texts instead, and a role must hold with both"
        )
    if "confirmed" in rows and any(held_out := [held_out_change(r) for _, r in rows.iterrows()]):
        rows = rows.assign(held_out=held_out)
        caption += (
            ". The column on the other half has the change in information on the half of the "
            "examples that did not select the component"
        )
    for start, stop in ((0, OPEN_ROWS), (OPEN_ROWS, len(rows))):
        shown: list[Shown] = ["component", "role", "sure"]
        for place in OUT_FIRST:
            shown += _columns(measures[place], place, names[start:stop])
        shown.append(Column("held_out", "text", header="on the other half", optional=True))
        shown.append(Column("category", "text", header="attends to", optional=True))
        if start < len(rows):
            part = rows[start:stop]
            yield table_of(part, ROLES_TABLE, caption, shown, folded=start > 0)
        caption = f"The other {len(rows) - OPEN_ROWS} components"


def _ordered_by(measures: Mapping[str, _Measure]) -> str | None:
    """The data by which components are listed; None where nothing is known."""
    known = [place for place in OUT_FIRST if measures[place].readings]
    return next((p for p in known if not measures[p].caveat), known[0] if known else None)


def _columns(measure: _Measure, place: str, components: Sequence[str]) -> Iterator[Shown]:
    """What is shown of the components on the data of a place."""
    if measure.name == "accuracy":
        readings = map(measure.readings.get, components)
        yield f"accuracy {PLACES[place]} (points)", [_text(each) for each in readings]
        return
    for figure in ("information", "threshold"):
        column = ROLES_TABLE[f"{figure}_drop_{place}"]
        yield column.called(f"{figure} {PLACES[place]}", negated=True)
        if (figure, place) == ("information", "ood"):
            own = ROLES_TABLE[f"{figure}_drop_{OOD_MEAN}"]
            yield own.called("the same with the out-of-domain mean", negated=True)
