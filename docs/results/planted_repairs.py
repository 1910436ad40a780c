"""The table of docs/results/repair.md on planted failures.

Usage: python docs/results/planted_repairs.py FOLDER

FOLDER has planted.csv of ``benchmarks/repair.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from as_markdown import markdown

RUNGS = ("none", "threshold", "last-layer", "remove", "gates")


def tables(folder: Path) -> dict[str, str]:
    """By failure: what is recommended, and how often each rung is right in 95 % held out."""
    planted = pd.read_csv(folder / "planted.csv", keep_default_na=False)
    rows = []
    for case, part in planted.groupby("case", sort=False):
        counts = part["recommended"].replace("", "nothing").value_counts()
        said = ", ".join(f"{name} {n}" for name, n in counts.items())
        reached = [str((part[name].astype(float) >= 0.95).sum()) for name in RUNGS]
        rows.append([str(case), str(len(part)), said, *reached])
    return {"planted": markdown(["failure", "draws", "recommended", *RUNGS], rows)}


if __name__ == "__main__":
    for table in tables(Path(sys.argv[1])).values():
        print(table)
