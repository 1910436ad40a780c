"""The tables of docs/results/cognitive.md, made from those of the studies.

Usage: python docs/results/cognitive_tables.py FOLDER

FOLDER has the tables of one study (OUT/tables).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
from as_markdown import markdown, percent, verdicts

NAMES = {"base": "pretrained", "fine_tuned": "fine-tuned", "scratch": "from scratch"}
N_HEADS = 4


def tables(folder: Path) -> dict[str, str]:
    """Every table that one study has tables for, in Markdown, by what it shows."""
    read = {
        path.stem.removeprefix("cognitive_"): pd.read_csv(path)
        for path in folder.glob("cognitive_*.csv")
    }
    made: dict[str, tuple[Any, ...]] = {
        "verdicts": (verdicts, "verdicts"),
        "curve": (_curve, "curve"),
        "models": (_models, "models", "mass"),
        "heads": (_heads, "ablation", "attention"),
        "decoding": (_decoding, "decoding"),
        "selectivity": (_selectivity, "selectivity"),
    }
    return {
        name: make(*(read[table] for table in needed))
        for name, (make, *needed) in made.items()
        if all(table in read for table in needed)
    }


def _over_seeds(values: pd.Series) -> str:
    """Mean, and with several seeds the range."""
    if len(values) == 1:
        return percent(values.iloc[0])
    return f"{percent(values.mean())} ({percent(values.min())} to {percent(values.max())})"


def _with_interval(row: pd.Series, value: str, low: str, high: str) -> str:
    if pd.isna(row[value]):
        return "none"
    return f"{row[value]:.2f} ({row[low]:.2f} to {row[high]:.2f})"


def _curve(table: pd.DataFrame) -> str:
    rows = [
        [NAMES[str(arm)], f"{n:,}", *(_over_seeds(part[c]) for c in ("accuracy", "incongruent"))]
        for (arm, n), part in table.groupby(["arm", "n"], sort=False)
    ]
    return markdown(["arm", "trials", "accuracy", "incongruent"], rows)


def _models(models: pd.DataFrame, mass: pd.DataFrame) -> str:
    """The compared models, with their centres of mass on all trials."""
    rows = []
    for _, row in models.iterrows():
        own = mass[(mass["arm"] == row["arm"]) & (mass["seed"] == row["seed"])]
        own = own[own["subset"] == "all"].set_index("fill")
        rows.append(
            [
                NAMES[row["arm"]],
                str(row["seed"]),
                f"{row['n']:,}",
                percent(row["accuracy"]),
                *(_with_interval(own.loc[fill], "centre", "low", "high") for fill in own.index),
                _with_interval(
                    own.loc["mean"], "centre_significant", "significant_low", "significant_high"
                ),
                f"{100 * own.loc['mean', 'first_layer_share']:.0f}",
                str(own.loc["mean", "strongest"]),
            ]
        )
    head = ["arm", "seed", "trials", "accuracy", "centre, mean ablation", "zero ablation"]
    head += ["heads surely below 0 alone", "% in layer 0", "strongest"]
    return markdown(head, rows)


def _heads(ablation: pd.DataFrame, attention: pd.DataFrame) -> str:
    """The most damaging heads of every trained model."""
    both = ablation[ablation["fill"] == "mean"].merge(
        attention[["arm", "seed", "component", "ratio"]], on=["arm", "seed", "component"]
    )
    rows = []
    for (arm, seed), part in both[both["arm"] != "base"].groupby(["arm", "seed"], sort=False):
        heads = [
            f"{row['component']} {100 * row['change']:.1f} ({100 * row['low']:.1f} to "
            f"{100 * row['high']:.1f}), {row['ratio']:.2f}"
            for _, row in part.nsmallest(N_HEADS, "change").iterrows()
        ]
        rows.append([NAMES[str(arm)], str(seed), *heads])
    return markdown(["arm", "seed", "first", "second", "third", "fourth"], rows)


def _decoding(table: pd.DataFrame) -> str:
    last = table[(table["layer"] == table["layer"].max()) & (table["position"] == "answer")]
    rows = []
    for arm, part in last.groupby("arm", sort=False):
        cells = []
        for variable in ("context", "motion", "color", "choice"):
            own = part[part["variable"] == variable]
            balanced = own[own["subset"] == "balanced"]
            own = balanced if len(balanced) else own
            cells.append(f"{_over_seeds(own['accuracy'])}, {percent(own['floor'].mean())}")
        rows.append([NAMES[str(arm)], *cells])
    return markdown(["arm", "context", "motion", "color", "choice"], rows)


def _selectivity(table: pd.DataFrame) -> str:
    rows = []
    for arm, part in table.groupby("arm", sort=False):
        cells = [_over_seeds(group["share"]) for _, group in part.groupby("n_variables")]
        rows.append([NAMES[str(arm)], *cells])
    return markdown(["arm", *map(str, sorted(table["n_variables"].unique()))], rows)


if __name__ == "__main__":
    for name, text in tables(Path(sys.argv[1])).items():
        print(f"{name}\n\n{text}\n")
