"""What every component is needed for, in domain and out of domain, and which are harmful."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechcore import report
from mechcore.ablation.settings import OOD_MEAN, RoleSettings
from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.study.step import Work
from mechcore.tables import Column
from mechcore.wording import ALL, NOT_AVAILABLE, OUT_FIRST, PLACES, count, listed, number

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.report.component_figures import Reading


OPEN_ROWS = 10  # components listed before the list is expanded
_COLOURS = (
    *("#1c2128", "#a0278a", "#0072B2", "#0072B2", "#b84700", "#b84700"),
    *("#00795a", "#a37800", "#8a939d", "#8a939d"),
)
"""Colours of `mechcore.ablation.effects.roles.ROLES`; roles that may coincide share one."""
_CHANGE = "change without it"


@dataclass(frozen=True)
class Roles(RoleSettings, Analysis):
    """What every component is needed for, and which components are harmful."""

    kind = "roles"
    section = "blame"
    title = "Which components are to blame?"
    story = True
    opens = True
    label = "roles of components"
    needs = ("sweep", "swept")
    reads = (OOD_MEAN,)
    schemas = tables_in("mechcore.ablation.effects.confirmation:ROLES_TABLE")

    names: Mapping[str, str] = of_study()
    seed: int = of_study()

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation import component_roles, confirm_roles
        from mechcore.ablation.effects.change_states import INJECTED
        from mechcore.steps.answers import ablations_in
        from mechcore.steps.config import TEST_SPLITS

        table = work.table("sweep")
        table = table[table["subset"] == ALL]
        own = table[table["fill"] == OOD_MEAN]
        table = table.drop(own.index).drop(columns=INJECTED.name, errors="ignore")
        inside, outside = (table[table["split"] == split] for split in TEST_SPLITS)
        answers = ablations_in(work.needed("swept"), self.names)
        if OOD_MEAN in work.job.needs:
            answers[OOD_MEAN] = ablations_in(work.needed(OOD_MEAN), self.names)["ood"]
        roles = component_roles(inside, outside, self, ood_mean=None if own.empty else own)
        return {self.kind: confirm_roles(roles, answers, self, seed=self.seed)}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The verdict, a plot of every component on two axes, and a list of them."""
        if (roles := run.filled(cls.kind)) is None:
            return
        verdict, *more = cls.headlines(run)
        yield report.Paragraph(verdict, lead=True)
        measures = {place: _measure(run, roles, place) for place in PLACES}
        caveats = filter(None, (measure.caveat for measure in measures.values()))
        yield from (report.Paragraph(caveat, note=True) for caveat in caveats)
        rows = in_order(roles)
        if all(measure.readings for measure in measures.values()):
            yield _drawing(rows, measures)
        yield from map(report.Paragraph, more)
        yield from _list(run, rows, measures)
        if run.beside is not None:
            yield from _other_roles(rows, run.beside)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """The verdict, and how much of it replicates on the other half of the examples."""
        from mechcore.ablation import confirmation, verdict

        roles = run.filled(cls.kind)
        if roles is not None:
            yield verdict(roles)
            if checked := confirmation(roles):
                yield checked
            if run.beside is not None:
                yield _compared(roles, run.beside)


@dataclass(frozen=True)
class _Measure:
    """Changes by component on one split, in points; with a caveat if not in information."""

    place: str
    name: str
    readings: Mapping[str, Reading]
    caveat: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} {PLACES[self.place]}"

    def words(self, component: str) -> str:
        """A phrase for the change without a component."""
        from mechcore.evaluation.recalibration import CANNOT_TELL

        change = _text(self.readings[component], " points")
        return f"{self.title} {change} without it" + (f", {CANNOT_TELL}" if self.caveat else "")


def in_order(roles: pd.DataFrame) -> pd.DataFrame:
    """All components: those with a role first, then by their largest change."""
    import pandas as pd

    from mechcore.ablation.effects.roles import ranked

    acting = ranked(roles)
    rest = roles.drop(index=acting.index)
    changes = rest[[f"information_change_{place}" for place in OUT_FIRST]].abs().max(axis=1)
    return pd.concat([acting, rest.loc[changes.sort_values(ascending=False, kind="stable").index]])


def _measure(run: report.RunFolder, roles: pd.DataFrame, place: str) -> _Measure:
    """Changes in information, or in accuracy if no component has a change in information."""
    from mechcore.evaluation.recalibration import CANNOT_TELL

    ends = ("", "_low", "_high")
    columns = [f"information_change{end}_{place}" for end in ends]
    known = roles.dropna(subset=columns[:1])
    if len(known):
        return _Measure(place, "information", _readings(known, "component", columns))
    reason = str(roles[f"reason_{place}"].iloc[0]) or "no value could be measured"
    caveat = f"{PLACES[place].capitalize()}, information could not be measured: {reason}."
    changes = run.singles
    if changes is not None:
        chosen = (changes["subset"] == ALL) & (changes["split"] == place)
        changes = changes[chosen & changes["accuracy_change"].notna()]
    if changes is None or changes.empty:
        return _Measure(place, "information", {}, caveat)
    data = changes["data"].iloc[0]
    caveat += f" The plot shows the change in accuracy on {data}, which {CANNOT_TELL}."
    changes, columns = changes[changes["data"] == data], [f"accuracy_change{end}" for end in ends]
    return _Measure(place, "accuracy", _readings(changes, "set", columns), caveat)


def _readings(table: pd.DataFrame, name: str, columns: Sequence[str]) -> dict[str, Reading]:
    """Changes in points, with their intervals."""
    rows = zip(table[name], *(100 * table[column] for column in columns), strict=True)
    return {str(key): report.component_figures.Reading(*ends) for key, *ends in rows}


def _text(reading: Reading | None, unit: str = "") -> str:
    """A change with its interval."""
    if reading is None:
        return NOT_AVAILABLE
    ends = (reading.value, reading.low, reading.high)
    value, low, high = (number(end, 1, signed=True) for end in ends)
    return f"{value}{unit} [{low}, {high}]"


def _drawing(rows: pd.DataFrame, measures: Mapping[str, _Measure]) -> report.Drawing:
    """Every component on two axes."""
    from mechcore.ablation.effects.roles import NONE, ROLES, UNDECIDED

    colours = dict(zip(ROLES, _COLOURS, strict=True))
    x, y = measures.values()
    dots = [
        report.component_figures.Dot(
            name,
            f"{name}, {row['role']}{'' if row['sure'] else ' (not sure)'}. "
            f"{x.words(name)}; {y.words(name)}",
            x.readings[name],
            y.readings[name],
            colours[row["role"]],
            bool(row["sure"]),
            row["role"] not in (NONE, UNDECIDED),
        )
        for _, row in rows.iterrows()
        if (name := row["component"]) in x.readings and name in y.readings
    ]
    caption = "Every component, ablated alone; below zero the model is worse without it. Lines are "
    caption += "95 % intervals; hollow dots mark roles that are not sure."
    if missing := len(rows) - len(dots):
        caption += f" {missing} of {len(rows)} are not drawn because their values are missing."
    counts = rows["role"].value_counts()
    legend = [(colours[role], f"{role} ({counts[role]})") for role in ROLES if role in counts]
    titles = (f"{x.title}: {_CHANGE} (points)", f"{y.title}:\n{_CHANGE} (points)")
    alt = "Scatter plot of components; their numbers are in the list below."
    figure = report.component_figures.scatter(titles, dots, legend)
    return report.Drawing(figure, "roles", caption, alt, spots=dots)


def _list(
    run: report.RunFolder, rows: pd.DataFrame, measures: Mapping[str, _Measure]
) -> Iterator[report.Table]:
    """The first components in few columns; all of them in a folded table."""
    from mechcore.ablation.effects.confirmation import ROLES_TABLE, held_out_change

    known = [measures[place] for place in OUT_FIRST if measures[place].readings]
    by = min(known, key=lambda measure: bool(measure.caveat), default=None)
    if by is not None and by.name == "accuracy":  # roles have no order then
        size = {name: abs(reading.value) for name, reading in by.readings.items()}
        sizes = rows["component"].map(size).sort_values(ascending=False, kind="stable")
        rows = rows.loc[sizes.index]
    categories = run.table("head_categories")
    if categories is not None:
        rows = rows.merge(categories[["component", "category"]], how="left", on="component")
        rows = rows.fillna({"category": ""})
    order = f"by their effect on {by.title}" if by else "in order of layers"
    points = f"{_CHANGE}, in points, with 95 % intervals; below zero the model is worse"
    more = ""
    if f"information_change_{OOD_MEAN}" in rows:
        more = ". One column has the mean over the out-of-domain texts in place of that over the "
        more += "training data; a role must hold with both"
    if "confirmed" in rows and any(held_out := [held_out_change(r) for _, r in rows.iterrows()]):
        rows = rows.assign(held_out=held_out)
        more += ". The column on the other half is of examples that did not select the component"
    first = f"The first {min(OPEN_ROWS, len(rows))} of {count(len(rows), 'component')} {order}"
    for part, folded, caption in (
        (rows[:OPEN_ROWS], False, f"{first}: {points}"),
        (rows, True, f"All components, with shifted thresholds: {points}{more}"),
    ):
        columns: list[report.Shown] = ["component", "role", "sure"]
        for place in OUT_FIRST:
            every = [*_columns(measures[place], part["component"].tolist())]
            columns += every if folded else every[:1]
        columns.append(Column("held_out", "text", header="on the other half", optional=True))
        columns.append(Column("category", "text", header="attends to", optional=True))
        yield report.table_of(part, ROLES_TABLE, caption, columns, folded=folded)


def _changed(roles: pd.DataFrame, beside: report.RunFolder) -> pd.DataFrame | None:
    """Rows of ``roles`` with another role in a run, and that; None if it has other components."""
    there = beside.required(Roles.kind)
    if {*roles["component"]} != {*there["component"]}:
        return None
    both = roles.merge(there, on="component", suffixes=("", "_there"))
    return both[both["role"] != both["role_there"]]


def _compared(roles: pd.DataFrame, beside: report.RunFolder) -> str:
    """How many components have another role than in a run, and which of those sure there."""
    name, changed = beside.path.name, _changed(roles, beside)
    if changed is None:
        return f"{name} has other components, so roles are not compared with those there."
    text = f"Compared with {name}, {len(changed)} of {count(len(roles), 'component')} "
    text += "has another role." if len(changed) == 1 else "have other roles."
    sure = changed[changed["sure_there"]]
    rows = zip(sure["component"], sure["role_there"], sure["role"], strict=True)
    names = [f"{component} ({there}, now {here})" for component, there, here in rows]
    return text + (f" Of those with a sure role in {name}: {listed(names)}." if names else "")


def _other_roles(rows: pd.DataFrame, beside: report.RunFolder) -> Iterator[report.Table]:
    """Both roles of components where they differ."""
    from mechcore.ablation.effects.confirmation import ROLES_TABLE

    changed = _changed(rows, beside)
    if changed is not None and len(changed):
        there = Column("role_there", "text", header=f"in {beside.path.name}")
        sure = Column("sure_there", "flag", header="sure there")
        columns: list[report.Shown] = ["component", there, sure, "role", "sure"]
        caption = f"Components with another role than in {beside.path.name}; a role that is not "
        caption += "sure may differ by chance"
        yield report.table_of(changed, ROLES_TABLE, caption, columns)


def _columns(measure: _Measure, components: Sequence[str]) -> Iterator[report.Shown]:
    """Columns of the list for the components on one split."""
    from mechcore.ablation.effects.confirmation import ROLES_TABLE

    place = measure.place
    if measure.name == "accuracy":
        yield f"{measure.title} (points)", [_text(measure.readings.get(c)) for c in components]
        return
    for figure in ("information", "threshold"):
        column = ROLES_TABLE[f"{figure}_change_{place}"]
        yield column.called(f"{figure} {PLACES[place]}")
        if (figure, place) == ("information", "ood"):
            own = ROLES_TABLE[f"{figure}_change_{OOD_MEAN}"]
            yield own.called("the same with the out-of-domain mean")
