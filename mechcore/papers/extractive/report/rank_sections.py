"""The sections of a study of extractive structures that are of mean ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from mechcore.papers.extractive.freezing import FREEZING
from mechcore.papers.extractive.grafting import GRAFTING
from mechcore.papers.extractive.report.looks import (
    DATA,
    GRAFTED,
    IMPLICATIONS,
    ORDERS,
    OTHER_IMPLICATIONS,
    TEST_IMPLICATIONS,
    basis,
    of,
    replay_name,
    seed_name,
    slug,
    sorted_parts,
)
from mechcore.papers.extractive.report.rank_figures import freezing_lines, seed_dots
from mechcore.papers.extractive.report.summary import CLAIMS
from mechcore.report.blocks import (
    Block,
    Gallery,
    OverSeeds,
    Picture,
    Section,
    Shown,
    Table,
    not_run,
    table_of,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import SEEDS, in_order, means_over_seeds
from mechcore.tables import Column
from mechcore.wording import DASH, number

_GROUPS = ("early", "late")
_FROZEN = {"early": "early frozen", "late": "late frozen"}
_FROZEN |= {"none": "nothing frozen", "all": "all frozen"}
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
    keys = ["task", "way", "cut"]
    means = means_over_seeds(part, [*keys, "frozen"], ["mean_rank"])
    counts = means.groupby(keys)["seeds"].max().reset_index()
    rows = sorted_parts(counts, "task", "way")
    shown: list[Shown] = [*keys, SEEDS]
    for group, name in _FROZEN.items():
        found = rows[keys].merge(of(means, frozen=group), how="left", on=keys)
        known = found["mean_rank"].notna()
        one = table_of(found, FREEZING, "", ["mean_rank", OverSeeds("mean_rank")]).rows
        cells = [row if there else [DASH, DASH] for row, there in zip(one, known, strict=True)]
        shown.append((name, [cell[0] for cell in cells]))
        if group in _GROUPS:
            shown.append(("over seeds", [cell[1] for cell in cells]))
    caption = "Mean rank of implications (0 best) by cut: means over seeds, and their range"
    return table_of(rows, FREEZING, caption, shown)


def _freezing_rows(table: pd.DataFrame) -> Table:
    rows = table[table["frozen"].isin(_GROUPS)]
    shown = ["task", "seed", "way", "cut", "frozen", "data", "mean_rank", "n"]
    return table_of(
        rows, FREEZING, "Every seed and cut, early or late layers frozen", shown, folded=True
    )


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
    by_seed = [
        (seed_name(float(seed)), [number(float(value)) for value in seeds[seed].loc[index]])
        for index in [pd.MultiIndex.from_frame(means[keys])]
        for seed in seeds.columns
    ]
    words = [Column("row", "text", header=header[0], names=names)]
    words += [Column("panel", "text", header=name) for name in header[1:]]
    caption = "Mean rank (0 best): mean over seeds, and every seed"
    shown: list[Shown] = ["data", *words, GRAFTING["mean_rank"].called("mean"), *by_seed, "chance"]
    return table_of(means, GRAFTING, caption, shown)
