"""The sections of a study of extractive structures that are of mean ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from mechcore.papers.extractive.report.looks import (
    DATA,
    GRAFTED,
    IMPLICATIONS,
    ORDERS,
    OTHER_IMPLICATIONS,
    TEST_IMPLICATIONS,
    WAYS,
    basis,
    of,
    replay_name,
    seed_name,
    slug,
    tasks_of,
)
from mechcore.papers.extractive.report.rank_figures import freezing_lines, seed_dots
from mechcore.papers.extractive.report.summary import CLAIMS
from mechcore.report.blocks import Block, Gallery, Picture, Section, Table, not_run
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import (
    ends_of,
    in_order,
    means_over_seeds,
)
from mechcore.wording import DASH, number, number_range, whole

_GROUPS = ("early", "late")
_PANELS = [replay_name(replay) for replay in (True, False)]


# -- freezing -----------------------------------------------------------------------------------


def freezing_section(run: RunFolder, gallery: Gallery) -> Section:
    """Ranks where the changes of early or of late layers are left out."""
    section_id, title = "freezing", "Freezing layers"
    table = run.filled("extractive_freezing")
    if table is None:
        return not_run(section_id, title, "the freezing of early and late layers")
    blocks: list[Block] = [*CLAIMS.lines(run, section_id)]
    for data in in_order(table["data"], DATA[-2:]):
        rows, main = of(table, data=data), data == IMPLICATIONS
        picture = gallery.add(
            freezing_lines(rows, _chances(run, data)),
            f"freezing-{slug(data)}",
            f"Mean rank of {data} (0 best) by the cut between early and late layers, with the "
            "changes of either group left out. Thin lines are seeds. Where early layers store what "
            f"the answer needs, freezing them ruins it, and the same for late ones; {basis(rows)}",
            f"Line charts of the mean rank of {data} by cut, for early and late layers frozen; the "
            "numbers are in the table below.",
            fold="" if main else f"The same for {data}",
        )
        blocks.append(picture)
    blocks += [_freezing_means(table), _freezing_rows(table)]
    return Section(section_id, title, blocks, ["extractive_freezing.csv"])


def _chances(run: RunFolder, data: str) -> Mapping[str, float]:
    ranks = run.filled("extractive_ranks")
    if ranks is None:
        return {}
    return dict(of(ranks, data=data).groupby("task")["chance"].mean().items())  # type: ignore[arg-type]


def _freezing_means(table: pd.DataFrame) -> Table:
    part = of(table, data=IMPLICATIONS)
    means = means_over_seeds(part, ["task", "way", "cut", "frozen"], ["mean_rank"])
    rows = []
    for task in tasks_of(means):
        for way in in_order(of(means, task=task)["way"], list(WAYS)):
            of_way = of(means, task=task, way=way)
            for cut in sorted(of_way["cut"].dropna().unique().tolist()):
                here = of(of_way, cut=cut)
                found = {row["frozen"]: row for _, row in here.iterrows()}
                cells = [task, WAYS.get(way, way), number(cut, 0)]
                cells.append(whole(here["seeds"].max()))
                for group in _GROUPS:
                    cells += _mean_and_range(found.get(group))
                for whole_model in ("none", "all"):
                    cells += _mean_and_range(found.get(whole_model))[:1]
                rows.append(cells)
    header = ["task", "frozen layers", "cut", "seeds", "early frozen", "over seeds"]
    header += ["late frozen", "over seeds", "nothing frozen", "all frozen"]
    caption = "Mean rank of implications (0 best) by cut: means over seeds, and their range"
    return Table(caption, header, rows, frozenset({0, 1}))


def _mean_and_range(row: pd.Series | None) -> list[str]:
    if row is None:
        return [DASH, DASH]
    return [number(row["mean_rank"]), number_range(ends_of(row, "mean_rank"))]


def _freezing_rows(table: pd.DataFrame) -> Table:
    rows = [
        [
            row["task"],
            number(row["seed"], 0),
            WAYS.get(row["way"], row["way"]),
            number(row["cut"], 0),
            row["frozen"],
            row["data"],
            number(row["mean_rank"]),
            whole(row["n"]),
        ]
        for _, row in table[table["frozen"].isin(_GROUPS)].iterrows()
    ]
    header = ["task", "seed", "frozen layers", "cut", "which", "data", "mean rank", "n"]
    caption = "Every seed and cut, early or late layers frozen"
    return Table(caption, header, rows, frozenset({0, 2, 4, 5}), folded=True)


# -- ordering and grafting ----------------------------------------------------------------------


def ordering_section(run: RunFolder, gallery: Gallery) -> Section:
    """Ranks of test implications by what was learned first."""
    section_id, title = "ordering", "Order of learning"
    table = run.filled("extractive_ordering")
    if table is None:
        return not_run(section_id, title, "the trainings in three orders")
    table = table.assign(panel=table["replay"].map(replay_name), row=table["order"])
    names = {order: order for order in ORDERS}
    caption = "Mean rank (0 best) by what the model learned first, with that data mixed into the "
    caption += "second training (replay) and without"
    pictures = _dots(gallery, section_id, TEST_IMPLICATIONS, table, names, caption)
    blocks: list[Block] = [*CLAIMS.lines(run, section_id), *pictures]
    blocks.append(_seed_table(table, names, ["order", "replay"]))
    return Section(section_id, title, blocks, ["extractive_ordering.csv"])


def grafting_section(run: RunFolder, gallery: Gallery) -> Section:
    """Ranks of implications of other facts with and without the graft."""
    section_id, title = "grafting", "Grafting"
    table = run.filled("extractive_grafting")
    if table is None:
        return not_run(section_id, title, "the grafting of weight changes")
    table = table.assign(panel="", row=table["model"])
    caption = "Mean rank (0 best) in a model that learned other facts, with the change that "
    caption += "learning implications after facts brings (graft), that learning implications alone "
    caption += "brings (control graft), and with neither"
    pictures = _dots(gallery, section_id, OTHER_IMPLICATIONS, table, GRAFTED, caption)
    blocks: list[Block] = [*CLAIMS.lines(run, section_id), *pictures]
    blocks.append(_seed_table(table, GRAFTED, ["model"]))
    return Section(section_id, title, blocks, ["extractive_grafting.csv"])


def _dots(
    gallery: Gallery,
    name: str,
    main: str,
    table: pd.DataFrame,
    names: Mapping[str, str],
    caption: str,
) -> Iterator[Picture]:
    """The data that decides, and folded all other; ``panel`` and ``row`` say where a row goes."""
    for which, part in (("", table["data"] == main), ("other", table["data"] != main)):
        rows = table[part]
        panels = [
            (", ".join(filter(None, (data, panel))), of(rows, data=data, panel=panel))
            for data in in_order(rows["data"], DATA)
            for panel in in_order(rows["panel"], _PANELS)
        ]
        if len(rows):
            yield gallery.add(
                seed_dots([(title, each) for title, each in panels if len(each)], "row", names),
                f"{name}-{which}".rstrip("-"),
                f"{caption}; {basis(rows)}",
                f"Dot plots of the mean rank of {which or main} of every seed; the numbers are in "
                "the table below.",
                fold="The same for all other data" if which else "",
            )


def _seed_table(table: pd.DataFrame, names: Mapping[str, str], header: Sequence[str]) -> Table:
    """Means over seeds, and a column per seed; ``header`` names ``row`` and, if any, ``panel``."""
    keys = ["data", "row", "panel"][: 1 + len(header)]
    seeds = table.pivot_table(index=keys, columns="seed", values="mean_rank", dropna=False)
    means = means_over_seeds(table, keys, ["mean_rank", "chance"])
    order = {value: i for i, value in enumerate([*DATA, *names, *_PANELS])}
    means = means.sort_values(keys, key=lambda column: column.map(order), kind="stable")
    rows = [
        [
            row["data"],
            names.get(row["row"], row["row"]),
            *row[keys[2:]],
            number(row["mean_rank"]),
            *(number(float(value)) for value in seeds.loc[tuple(row[keys])]),
            number(row["chance"], 1),
        ]
        for _, row in means.iterrows()
    ]
    titles = [
        "data",
        *header,
        "mean",
        *(seed_name(float(seed)) for seed in seeds.columns),
        "chance",
    ]
    caption = "Mean rank (0 best): mean over seeds, and every seed"
    return Table(caption, titles, rows, frozenset(range(len(keys))))
