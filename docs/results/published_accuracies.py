"""The accuracies published with arXiv 2403.03942 as tables that ``mechcore effective-size`` reads.

python docs/results/published_accuracies.py mnli-acc_over_ft.json full.csv
python docs/results/published_accuracies.py mnli-sparsity-grid-acc.json grid.csv
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd


def accuracies(path: Path) -> pd.DataFrame:
    """One row per accuracy; those of -1, of subnetworks that were not made, are left out.

    The file has ``{checkpoint: {subset: accuracy}}`` of the full model, or ``{seed: {checkpoint:
    {percentage pruned: {subset: accuracy}}}}`` of subnetworks.
    """
    rows = list(_leaves(json.loads(path.read_text(encoding="utf-8"))))
    grid = len(rows[0]) == 5
    columns = ["seed", "checkpoint", "sparsity"] if grid else ["checkpoint"]
    table = pd.DataFrame(rows, columns=[*columns, "subset", "accuracy"])
    table[columns] = table[columns].astype(int)
    if grid:
        table["sparsity"] /= 100
    return table[table["accuracy"] != -1]


def _leaves(content: Any) -> Iterator[list[Any]]:
    if not isinstance(content, dict):
        yield [content]
        return
    for key, inner in content.items():
        yield from ([key, *rest] for rest in _leaves(inner))


if __name__ == "__main__":
    accuracies(Path(sys.argv[1])).to_csv(sys.argv[2], index=False)
