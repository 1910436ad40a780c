"""Effective sizes of the accuracies published with arXiv 2403.03942.

python docs/results/published_accuracies.py mnli-acc_over_ft.json mnli-sparsity-grid-acc.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import mechcore
from mechcore.subnetworks.effective_size import mean_effective_size

GROUPS = {
    "ID": ["validation_matched", "validation_mismatched"],
    "OOD": [
        "lexical_overlap_ln_preposition",
        "lexical_overlap_ln_subject-object_swap",
        "constituent_cn_embedded_under_if",
        "constituent_cn_embedded_under_verb",
    ],
}


def accuracies(path: Path) -> pd.DataFrame:
    """One row per accuracy; those of -1, of subnetworks that were not made, are left out.

    The file has ``{checkpoint: {subset: accuracy}}`` of the full model, or ``{seed: {checkpoint:
    {percentage pruned: {subset: accuracy}}}}`` of subnetworks.
    """
    rows = list(_leaves(json.loads(path.read_text(encoding="utf-8"))))
    grid = len(rows[0]) == 5
    columns = ["seed", "checkpoint", "target_sparsity"] if grid else ["checkpoint"]
    table = pd.DataFrame(rows, columns=[*columns, "subset", "accuracy"])
    table[columns] = table[columns].astype(int)
    if grid:
        table["target_sparsity"] /= 100
    return table[table["accuracy"] != -1]


def _leaves(content: Any) -> Iterator[list[Any]]:
    if not isinstance(content, dict):
        yield [content]
        return
    for key, inner in content.items():
        yield from ([key, *rest] for rest in _leaves(inner))


if __name__ == "__main__":
    full, grid = (accuracies(Path(name)) for name in sys.argv[1:])
    sizes = mechcore.effective_size(full, grid, groups=GROUPS, tolerance=0.03)
    print(mean_effective_size(sizes).to_string(index=False))
