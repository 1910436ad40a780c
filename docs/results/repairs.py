"""The tables of docs/results/repair.md.

Usage: python docs/results/repairs.py FOLDER

FOLDER has planted.csv and verdicts.csv of ``benchmarks/repair.py``, and the tables ``repair`` of
the runs of minilm-repair.yaml, in CSV files named after their models.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from as_markdown import markdown, percent
from study_tables import points

RUNGS = ("none", "threshold", "last-layer", "remove", "gates")
PLACES = ("repaired kinds", "held-out kinds", "in domain")


def tables(folder: Path) -> dict[str, str]:
    """The page's tables, from the files of the folder."""
    ladders = {path.stem: _ladder(path) for path in sorted(folder.glob("minilm-*.csv"))}
    planted, verdicts = _planted(folder / "planted.csv"), _verdicts(folder / "verdicts.csv")
    return {"planted": planted, "verdicts": verdicts, **ladders}


def _planted(path: Path) -> str:
    """By failure: what is recommended, and how often each rung is right in 95 % held out."""
    planted = pd.read_csv(path, keep_default_na=False)
    rows = []
    for case, part in planted.groupby("case", sort=False):
        said = _counts(part["recommended"].replace("", "nothing"))
        reached = [str((part[name].astype(float) >= 0.95).sum()) for name in RUNGS]
        rows.append([str(case), str(len(part)), said, *reached])
    return markdown(["failure", "draws", "recommended", *RUNGS], rows)


def _verdicts(path: Path) -> str:
    """By failure: what is said to explain it."""
    table = pd.read_csv(path, keep_default_na=False)
    said = table["name"].where(table["name"] != "", table["kind"])
    rows = [
        [str(case), str(len(part)), _counts(said[part.index])]
        for case, part in table.groupby("case", sort=False)
    ]
    return markdown(["failure", "draws", "explained by"], rows)


def _counts(said: pd.Series) -> str:
    return ", ".join(f"{name} {n}" for name, n in said.value_counts().items())


def _ladder(path: Path) -> str:
    """Balanced accuracy by rung and place, and gains over no repair."""
    table = pd.read_csv(path)
    table = table[table["label"] == "all"].set_index(["place", "rung"])
    rows = []
    for rung in table.loc[PLACES[0]].index:
        cells = [f"`{rung}`"]
        for place in PLACES:
            one = table.loc[[(place, rung)]]
            gain = points(one, "gain", "gain_low", "gain_high") if rung != "none" else ""
            cells += [percent(one["accuracy"].iloc[0]), gain]
        rows.append(cells)
    return markdown(["rung", *(name for place in PLACES for name in (place, "gain"))], rows)


if __name__ == "__main__":
    for title, text in tables(Path(sys.argv[1])).items():
        print(f"<!-- {title} -->\n\n{text}\n")
