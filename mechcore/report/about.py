"""What a run measured about each component: its panel, and the grid to select it in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import matplotlib
import pandas as pd
from matplotlib.colors import Normalize, to_hex

from mechcore.ablation.effects.changes import ABLATION
from mechcore.ablation.effects.flips import COUNTS, FLIPS
from mechcore.ablation.effects.knockouts import KNOCKOUTS
from mechcore.ablation.effects.roles import COMPONENT_ROLES, NONE, UNDECIDED
from mechcore.ablation.joint.exact import INTERACTIONS
from mechcore.attention.examples import AttentionExample
from mechcore.attention.labels import FEWEST_EXAMPLES
from mechcore.components import Component
from mechcore.report.ablation_tables import interaction_table
from mechcore.report.attention_views import attention_view
from mechcore.report.blocks import Block, Paragraph, Shown, Table, View, table_of
from mechcore.report.drawing import SCALES, ink
from mechcore.report.figures import category_look
from mechcore.report.groups import PLACED, data_sets, of_data, one_label_notes, placed
from mechcore.report.run_folder import RunFolder
from mechcore.subnetworks.core import HEAD_FREQUENCY
from mechcore.tables import Column
from mechcore.wording import (
    ALL,
    DASH,
    OUT_FIRST,
    PLACES,
    count,
    effect,
    listed,
    number,
    percent,
    sparsity,
    split_name,
    whole,
)

NAME = re.compile(r"(?<![\w.])L\d{1,3}\.(?:H\d{1,3}|MLP)(?!\w)")
MOST_SETS = 20  # interactions shown per component
FLIP_COLUMNS: Sequence[Shown] = (
    *(Column("text", "text"), "label", "answer", "answer_without", "margin", "margin_without"),
    *(PLACED, "subset"),
)
_JOINT = {
    INTERACTIONS.name: "Ablated together with others, over all examples",
    "superadditive": "In sets that a search found, over all examples",
}

ByComponent: TypeAlias = Mapping[str, Sequence[Block]]


def components_of(run: RunFolder) -> list[str]:
    """Every component that a table has a row for, by layer, MLPs after heads."""
    tables = map(run.table, (COMPONENT_ROLES.name, "head_frequency", "head_categories"))
    names = {name for table in tables if table is not None for name in table["component"]}
    names |= {*run.core}
    names |= set() if run.singles is None else set(run.singles["set"])
    names |= {example.component for example in run.attention_examples}
    return [str(c) for c in sorted(Component.parse(n) for n in names if NAME.fullmatch(n))]


def panels(run: RunFolder) -> dict[str, list[Block]]:
    """The blocks about each component."""
    drawn = {e.component: [_attention(e, "one example", "")] for e in run.attention_examples}
    parts: list[ByComponent] = [_flips(run), _kept(run), drawn, _masses(run), _carried(run)]
    parts += [_alone(run), *(_joint(run, name) for name in _JOINT)]
    return {
        name: [*_lead(run, name), *(block for part in parts for block in part.get(name, ()))]
        for name in components_of(run)
    }


def _of_each(table: Table, owners: Iterable[Iterable[str]]) -> dict[str, list[Block]]:
    """The part of the table about each component; ``owners`` are the components of each row."""
    rows: dict[str, list[Sequence[str]]] = {}
    for row, names in zip(table.rows, owners, strict=True):
        for name in names:
            rows.setdefault(name, []).append(row)
    return {name: [replace(table, rows=own)] for name, own in rows.items()}


def _lead(run: RunFolder, name: str) -> Iterator[Block]:
    """A sentence on the component's role, core membership and category."""
    roles, categories = run.table(COMPONENT_ROLES.name), run.table("head_categories")
    sentences = []
    if roles is not None:
        sentences += roles.loc[roles["component"] == name, "explanation"].tolist()
    if name in run.core:
        sentences.append("In the heuristic core: every subnetwork keeps it.")
    elif run.table("core") is not None and Component.parse(name).is_head:
        sentences.append("Not in the heuristic core.")
    if categories is not None:
        for row in categories[categories["component"] == name].to_dict("records"):
            sentences.append(f"Its category is {row['category']}.")
            sentences += [f"It also attends to {row['also']}."] if row.get("also") else []
    yield Paragraph(" ".join(sentences) or "No table of this run has more about it.")


def _kept(run: RunFolder) -> ByComponent:
    """How many subnetworks of each sparsity keep each component, and which seeds do."""
    frequency, subnetworks = run.table("head_frequency"), run.table("subnetworks")
    if frequency is None:
        return {}
    rows = frequency.sort_values("target_sparsity", kind="stable")
    seeds: dict[tuple[float, str], list[str]] = {}
    for row in [] if subnetworks is None else subnetworks.to_dict("records"):
        for name in row["kept"].split():
            seeds.setdefault((row["target_sparsity"], name), []).append(number(row["seed"], 0))
    keys = zip(rows["target_sparsity"], rows["component"], strict=True)
    keep = [", ".join(seeds.get(key, [])) or DASH for key in keys]
    counts = zip(rows["count"], rows["n_seeds"], strict=True)
    kept_by = [f"{whole(n)} of {count(n_seeds, 'seed')}" for n, n_seeds in counts]
    shown: list[Shown] = ["target_sparsity", ("kept by", kept_by), "frequency"]
    shown += [("seeds that keep it", keep)]
    table = table_of(rows, HEAD_FREQUENCY, "Kept in subnetworks", shown)
    return _of_each(table, ([name] for name in rows["component"]))


def _attention(example: AttentionExample, what: str, rank: object) -> View:
    view = attention_view([example])
    caption = f"Its attention on {what}: rows are queries, columns keys."
    return View(caption, view.html(f"about-{example.component}{rank}".replace(".", "-")))


def _masses(run: RunFolder) -> ByComponent:
    """Attention mass on each category, with its interval and relative to uniform attention."""
    categories = run.table("head_categories")
    masses = {}
    for row in [] if categories is None else categories.to_dict("records"):
        names = [str(c).removeprefix("mass_") for c in row if str(c).startswith("mass_")]
        rows = []
        for name in names:
            mass, ratio = row[f"mass_{name}"], row.get(f"ratio_{name}", math.nan)
            rows.append([name, number(100 * mass, 1), _ends(row, name), number(ratio, 1)])
        rows.append(["entropy (nats)", number(row["entropy"]), "", ""])
        header = ["attention to", "mass (%)", "interval", "times uniform"]
        caption = f"Attention, over {count(row['n_examples'], 'example')}"
        masses[row["component"]] = [Table(caption, header, rows)]
    return masses


def _ends(row: Mapping[Any, Any], name: str) -> str:
    low, high = (row.get(f"{end}_{name}", math.nan) for end in ("low", "high"))
    if math.isnan(low) or math.isnan(high):
        n = row.get(f"examples_{name}", math.nan)
        return f"none: {count(n, 'example')}" if n < FEWEST_EXAMPLES else ""
    return f"[{number(100 * low, 1)}, {number(100 * high, 1)}]"


def _carried(run: RunFolder) -> ByComponent:
    """What hiding the keys of each category has of a head's effect, where it has one."""
    if (table := run.filled(KNOCKOUTS.name)) is None:
        return {}
    rows = placed(table[(table["subset"] == ALL) & table["share"].notna()])
    caption = "Keys hidden from it: share of its effect on the margin"
    shown: list[Shown] = [PLACED, "category", "share", "control_share", "carried"]
    return _of_each(
        table_of(rows, KNOCKOUTS, caption, shown), ([name] for name in rows["component"])
    )


def _alone(run: RunFolder) -> ByComponent:
    """Changes from ablating it alone: all examples first, in each data set."""
    singles = run.singles
    if singles is None or len(singles) == 0:
        return {}
    parts = (of_data(singles, *pair) for pair in data_sets(singles))
    ordered = pd.concat(p.loc[p["subset"].ne(ALL).sort_values(kind="stable").index] for p in parts)
    shown: list[Shown] = [PLACED, "subset", "accuracy_change", "margin_change"]
    table = table_of(placed(ordered), ABLATION, "Ablated alone, with intervals", shown)
    return _of_each(table, ([name] for name in ordered["set"]))


def _joint(run: RunFolder, name: str) -> ByComponent:
    """Interactions of the sets that contain it, over all examples, largest first."""
    if (table := run.table(name)) is None:
        return {}
    overall = table[table["subset"] == ALL]
    margin = overall[overall["metric"] == "margin"]
    size = margin["interaction"].abs().groupby(margin["set"]).max()
    order = overall["set"].map(size).sort_values(ascending=False, kind="stable").index
    members = overall.loc[order, "set"].str.split("+")
    joint: dict[str, list[Block]] = {}
    for member, blocks in _of_each(interaction_table(overall.loc[order]), members).items():
        for block in blocks:
            assert isinstance(block, Table)
            n, rows = len(block.rows), block.rows[:MOST_SETS]
            some = f"; the {MOST_SETS} largest of {n}" if n > MOST_SETS else ""
            joint[member] = [replace(block, caption=f"{_JOINT[name]}{some}", rows=rows)]
    return joint


def with_texts(flips: pd.DataFrame) -> pd.DataFrame:
    """Flips with the columns ``text``, both texts of the example, and ``place``."""
    pairs = zip(flips["text_a"], flips["text_b"], strict=True)
    return placed(flips).assign(text=[" \u2016 ".join(filter(None, pair)) for pair in pairs])


def _flips(run: RunFolder) -> ByComponent:
    """How many answers flip without each component, with some texts and its attention on them."""
    table, roles = run.table(FLIPS.name), run.table(COMPONENT_ROLES.name)
    if table is None or roles is None:
        return {}
    idle = set(roles.loc[roles["role"].isin([NONE, UNDECIDED]), "component"])
    flips: dict[str, list[Block]] = {
        name: [Paragraph("No answer flips without it.")] for name in roles["component"]
    }
    for name, part in table.groupby("component", sort=False):
        views = [
            _attention(example, f"text {rank}", f"-{rank}")
            for rank, of_rank in enumerate(run.flips_attention, start=1)
            for example in of_rank
            if example.component == name
        ]
        lead = _flips_lead(part.iloc[0], len(part))
        if Component.parse(str(name)).is_head:
            if name in idle:
                lead += " Its attention is not drawn because no effect of the head is shown."
            elif len(views) < len(part):
                lead += " Its attention is drawn on short texts only."
        shown: list[Shown] = [FLIPS["rank"], "change", *FLIP_COLUMNS]
        texts = table_of(with_texts(part), FLIPS, "Answers that flip without it", shown)
        flips[str(name)] = [Paragraph(lead), texts, *views]
    return flips


def _flips_lead(row: pd.Series, n: int) -> str:
    parts = []
    for split in OUT_FIRST:
        counts = {change: row[name] for (change, of), name in COUNTS.items() if of == split}
        kinds = ", ".join(f"{whole(count)} {change}" for change, count in counts.items() if count)
        total = f"{whole(sum(counts.values()))} {PLACES[split]} ({kinds})"
        parts.append(total if kinds else f"none {PLACES[split]}")
    which = "The list starts out of domain, with the largest changes in margin."
    if row[[*COUNTS.values()]].sum() == n:
        which = "All are listed."
    return f"Answers that flip without it: {listed(parts)}. {which}"


STEPS = 5  # colours in a legend


@dataclass(frozen=True)
class Cell:
    """A component's cell: a short text, its background and text colours, and a description."""

    text: str
    colour: str
    ink: str
    words: str


@dataclass(frozen=True)
class Quantity:
    """A quantity to colour the grid by; ``legend`` holds colours, text colours and meanings."""

    label: str
    cells: Mapping[str, Cell]
    legend: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Grid:
    """Names by layer and column, empty where there is none; the last column may be the MLPs."""

    columns: Sequence[str]
    layers: Sequence[tuple[int, Sequence[str]]]
    quantities: Sequence[Quantity]
    core: frozenset[str]
    notes: Sequence[Paragraph] = ()


def grid_of(run: RunFolder, components: Sequence[str]) -> Grid | None:
    """The grid of these components; None if there are none, or nothing to colour them by."""
    singles = run.singles
    overall = None if singles is None else singles[singles["subset"] == ALL]
    quantities = [*_frequencies(run), *_category_quantity(run)]
    quantities += [] if overall is None else _change_quantities(overall)
    if not components or not quantities:
        return None
    known = {Component.parse(name) for name in components}
    n_heads = max((c.head for c in known if c.head is not None), default=-1) + 1
    columns = [*range(n_heads), *([None] if any(c.head is None for c in known) else [])]
    layers = [
        (layer, [str(c) if (c := Component(layer, head)) in known else "" for head in columns])
        for layer in range(max(c.layer for c in known) + 1)
    ]
    names = ["MLP" if head is None else str(head) for head in columns]
    notes = [] if overall is None else [*one_label_notes(run, overall)]
    return Grid(names, layers, quantities, frozenset(run.core), notes)


def _frequencies(run: RunFolder) -> Iterator[Quantity]:
    if (frequency := run.table("head_frequency")) is None:
        return
    scale = _scale("Blues", Normalize(0, 1))
    legend = _legend(scale, [i / (STEPS - 1) for i in range(STEPS)], percent)
    for target_sparsity, part in frequency.groupby("target_sparsity"):
        cells = {
            row["component"]: _cell(
                whole(row["count"]),
                scale(row["frequency"]),
                f"kept by {whole(row['count'])} of {count(row['n_seeds'], 'seed')}",
            )
            for _, row in part.iterrows()
        }
        at = sparsity(float(str(target_sparsity)))
        yield Quantity(f"seeds that keep it at {at}", cells, legend)


def _category_quantity(run: RunFolder) -> Iterator[Quantity]:
    if (categories := run.filled("head_categories")) is None:
        return
    look = {name: category_look(name) for name in dict.fromkeys(categories["category"])}
    cells = {
        component: _cell(look[name][1], look[name][0], f"attends to: {name}")
        for component, name in zip(categories["component"], categories["category"], strict=True)
    }
    legend = [(colour, ink(colour), name) for name, (colour, _) in look.items()]
    yield Quantity("what it attends to", cells, legend)


def _change_quantities(overall: pd.DataFrame) -> Iterator[Quantity]:
    for split, data in data_sets(overall):
        for metric, unit in (("accuracy", "points"), ("margin", "nats")):
            part = of_data(overall, split, data).dropna(subset=[f"{metric}_change"])
            if len(part):
                label = f"change in {metric} ({unit}), {split_name(split)}: {data}"
                yield _change_quantity(part, metric, label)


def _change_quantity(part: pd.DataFrame, metric: str, label: str) -> Quantity:
    most = float(part[f"{metric}_change"].abs().max()) or 1.0
    scale = _scale("RdBu", Normalize(-most, most))
    shown = ABLATION[f"{metric}_change"]
    digits = 0 if SCALES[metric] * most >= 10 else 1
    cells = {}
    for _, row in part.iterrows():
        change, low, high = (row[f"{metric}_change{end}"] for end in ("", "_low", "_high"))
        words = f"{shown.heading} {shown.show(change, low, high)}"
        text = number(SCALES[metric] * change, digits)
        cells[row["set"]] = _cell(text, scale(change), words)
    ticks = [most * (2 * i / (STEPS - 1) - 1) for i in range(STEPS)]
    return Quantity(label, cells, _legend(scale, ticks, lambda v: effect(v, metric, unit=False)))


def _scale(palette: str, norm: Normalize) -> Callable[[float], str]:
    colours = matplotlib.colormaps[palette]
    return lambda value: to_hex(colours(norm(value)))


def _legend(
    scale: Callable[[float], str], ticks: Sequence[float], words: Callable[[float], str]
) -> list[tuple[str, str, str]]:
    return [(scale(tick), ink(scale(tick)), words(tick)) for tick in ticks]


def _cell(text: str, colour: Any, words: str) -> Cell:
    return Cell(text, to_hex(colour), ink(colour), words)
