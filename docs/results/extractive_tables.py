"""The tables of docs/results/extractive.md, made from those of the studies.

Usage: python docs/results/extractive_tables.py FOLDER [TO]

FOLDER has the tables of one study (OUT/tables). With TO, those that the page needs are written
there; of the scores these are the largest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from as_markdown import markdown, verdicts

SCORES = ("informative", "upstream", "downstream")
N_COMPONENTS = 4
N_KEPT = 20


def tables(folder: Path) -> dict[str, str]:
    """Every table that one study has tables for, in Markdown, by what it shows."""
    texts = {}
    for name, make in MADE.items():
        path = folder / f"extractive_{name}.csv"
        if path.exists():
            texts[name] = make(pd.read_csv(path))
    return texts


def _ranks(table: pd.DataFrame) -> str:
    rows = []
    for (task, seed, data), part in table.groupby(["task", "seed", "data"], sort=False):
        states = part.set_index("state")
        after = states.loc["after"]
        ranks = [f"{states.loc['before', 'mean_rank']:.2f}", f"{after['mean_rank']:.2f}"]
        interval = f"{after['low']:.2f} to {after['high']:.2f}"
        setting = f"{after['learning_rate']:g}, {after['epochs']:.0f}"
        rows.append([str(task), str(seed), str(data), setting, *ranks, interval])
    head = ["task", "seed", "prompts", "rate, epochs", "before", "after", "interval"]
    return markdown(head, rows)


def _grid(table: pd.DataFrame) -> str:
    rows = [
        [
            row["task"],
            str(row["seed"]),
            f"{row['learning_rate']:g}",
            str(row["epochs"]),
            *(f"{row[name]:.2f}" for name in ("loss", "facts", "implications")),
            "yes" if row["chosen"] else "",
        ]
        for _, row in table.iterrows()
    ]
    head = ["task", "seed", "rate", "epochs", "loss", "facts", "implications", "chosen"]
    return markdown(head, rows)


def keep(folder: Path, to: Path) -> None:
    """Write the tables that the page needs; of scores the largest of each task, seed and kind."""
    to.mkdir(parents=True, exist_ok=True)
    for name in MADE:
        path = folder / f"extractive_{name}.csv"
        if not path.exists():
            continue
        table = pd.read_csv(path)
        if name == "scores":
            mean = _mean_scores(table)
            largest = mean.groupby(["task", "score"])["value"].nlargest(N_KEPT)
            table = mean.loc[largest.index.get_level_values(-1).sort_values()]
        table.to_csv(to / path.name, index=False, float_format="%.6g")


def _mean_scores(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds."""
    keys = ["task", "score", "component", "place", "token"]
    return table.groupby(keys, sort=False, as_index=False)["value"].mean()


def _scores(table: pd.DataFrame) -> str:
    """The components with the largest scores, mean over seeds, at the token where they are."""
    mean = _mean_scores(table)
    rows = []
    for task in mean["task"].unique():
        for score in SCORES:
            part = mean[(mean["task"] == task) & (mean["score"] == score)]
            largest = part.nlargest(N_COMPONENTS, "value")
            components = [
                f"{row['component']} at `{row['token']}` {row['value']:.3f}"
                for _, row in largest.iterrows()
            ]
            rows.append([task, score, *components])
    return markdown(["task", "score", "first", "second", "third", "fourth"], rows)


def _sums(table: pd.DataFrame) -> str:
    names = ["informative", "other", "gradient", "actual", "r"]
    rows = [
        [row["task"], str(row["seed"]), *(f"{row[name]:.2f}" for name in names)]
        for _, row in table.iterrows()
    ]
    return markdown(["task", "seed", *names], rows)


def _freezing(table: pd.DataFrame) -> str:
    table = table[table["data"] == "implications"]
    rows = []
    for (task, way, seed), part in table.groupby(["task", "way", "seed"], sort=False):
        wide = part.pivot(index="cut", columns="frozen", values="mean_rank")
        ranks = [f"{row['early']:.2f}, {row['late']:.2f}" for _, row in wide.iterrows()]
        ends = wide.iloc[0]
        rows.append(
            [str(task), str(way), str(seed), f"{ends['none']:.2f}", f"{ends['all']:.2f}", *ranks]
        )
    cuts = [f"cut {cut}" for cut in sorted(table["cut"].unique())]
    return markdown(["task", "way", "seed", "nothing frozen", "all frozen", *cuts], rows)


def _ordering(table: pd.DataFrame) -> str:
    rows = []
    for (replay, seed), part in table.groupby(["replay", "seed"], sort=False):
        wide = part.pivot(index="order", columns="data", values="mean_rank")
        for order in part["order"].unique():
            ranks = [f"{wide.loc[order, data]:.2f}" for data in part["data"].unique()]
            rows.append(["yes" if replay else "no", str(seed), str(order), *ranks])
    return markdown(["replay", "seed", "order", *table["data"].unique()], rows)


def _grafting(table: pd.DataFrame) -> str:
    rows = []
    for (seed, model), part in table.groupby(["seed", "model"], sort=False):
        ranks = [f"{rank:.2f}" for rank in part["mean_rank"]]
        rows.append([str(seed), str(model), *ranks])
    return markdown(["seed", "model", *table["data"].unique()], rows)


def _localization(table: pd.DataFrame) -> str:
    rows = [
        [str(row["seed"]), row["kind"], f"{row['r2']:.2f}", f"{row['r']:.2f}", f"{row['p']:.2g}"]
        for _, row in table.iterrows()
    ]
    return markdown(["seed", "components", "r2", "r", "p"], rows)


MADE: Mapping[str, Callable[[Any], str]] = {
    "verdicts": verdicts,
    "ranks": _ranks,
    "grid": _grid,
    "scores": _scores,
    "sums": _sums,
    "freezing": _freezing,
    "ordering": _ordering,
    "grafting": _grafting,
    "localization_r2": _localization,
}


if __name__ == "__main__":
    if len(sys.argv) > 2:
        keep(Path(sys.argv[1]), Path(sys.argv[2]))
    for name, text in tables(Path(sys.argv[1])).items():
        print(f"{name}\n\n{text}\n")
