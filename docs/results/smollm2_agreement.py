"""The tables of docs/results/smollm2-agreement.md, made from those of the study.

Usage: python docs/results/smollm2_agreement.py FOLDER

FOLDER has the tables of the study (study/tables), and those of the search beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from as_markdown import markdown, percent
from study_tables import N_SETS, Study, category, points, swept, where_of

STRUCTURES = ("near", "with", "subject relative", "object relative")
NUMBERS = ("singular", "plural")
COLUMNS = 5
"""Pairs side by side in the table of all that are among the largest."""
STUDY = Study(
    id="match",
    ood="mismatch",
    sets={"id:all": "match", "ood:all": "mismatch"}
    | {
        f"ood:{structure}, {number}": f"mismatch: {structure}, {number}"
        for structure in STRUCTURES
        for number in NUMBERS
    },
    n_seeds=6,
    size=(270, 30),
    target_sparsities=(0.7,),
)


def tables(folder: Path) -> dict[str, str]:
    """Every table of the page, in Markdown, by what it shows."""
    read = {path.stem: pd.read_csv(path) for path in folder.glob("*.csv")}
    return {
        "full": _full(read["accuracy"]),
        "subnetworks": STUDY.subnetworks(read["accuracy"], read["subnetworks"]),
        "seeds": STUDY.seeds(read["subnetworks"]),
        "core": STUDY.core(read["head_categories"], read["ablation"]),
        "categories": _categories(read["head_categories"]),
        "components": _components(swept(read["sweep"]), read["head_categories"]),
        "pairs": _pairs(read["superadditive"]),
        "largest": _largest(read["race"]),
    }


def _full(accuracy: pd.DataFrame) -> str:
    full = accuracy[accuracy["subnetwork"] == "full"].assign(set=where_of)
    by_set = full.set_index("set")["accuracy"]
    rows = [
        [structure]
        + [percent(by_set[f"{split}:{structure}, {n}"]) for split in ("id", "ood") for n in NUMBERS]
        for structure in STRUCTURES
    ]
    head = [f"{data}, {number}" for data in (STUDY.id, STUDY.ood) for number in NUMBERS]
    return markdown(["structure", *head], rows)


def _categories(categories: pd.DataFrame) -> str:
    counts = categories.groupby("category")["in_core"].agg(["size", "sum"])
    counts = counts.sort_values("size", ascending=False, kind="stable")
    rows = [[str(name), str(row["size"]), str(row["sum"])] for name, row in counts.iterrows()]
    return markdown(["category", "heads", "in the core"], rows)


def _components(sweep: pd.DataFrame, categories: pd.DataFrame) -> str:
    """Those whose loss costs most margin where the nouns differ, and what it costs each number."""
    single = sweep[sweep["kind"] == "single"].assign(where=where_of)
    everywhere = single[single["where"] == "ood:all"]
    rows = []
    for name in everywhere.nsmallest(N_SETS, "margin_change")["set"]:
        here = single[single["set"] == name]
        by_set = here.set_index("where")["margin_change"]
        label = "MLP" if name.endswith("MLP") else category(categories, name)[0]
        cells = [name, label]
        for data in ("id:all", "ood:all"):
            part = here[here["where"] == data]
            ends = ("margin_change", "margin_change_low", "margin_change_high")
            cells.append(points(part, *ends, unit=1))
        for number in NUMBERS:
            mean = by_set[[f"ood:{structure}, {number}" for structure in STRUCTURES]].mean()
            cells.append(f"{mean:.2f}")
        rows.append(cells)
    changes = [f"margin change, {split}" for split in (STUDY.id, STUDY.ood)]
    return markdown(["component", "category", *changes, *(f"{n} subjects" for n in NUMBERS)], rows)


def _pairs(superadditive: pd.DataFrame) -> str:
    """The best pairs of the race on the sentences that it did not see."""
    rows = []
    for name, part in superadditive.groupby("set", sort=False):
        margins, answers = (part[part["metric"] == metric] for metric in ("margin", "accuracy"))
        by_set = margins.set_index("subset")
        numbers = [
            by_set.loc[[f"{structure}, {n}" for structure in STRUCTURES], "interaction"].mean()
            for n in NUMBERS
        ]
        joint = by_set.loc["all"]
        changes = [joint["sum_of_single_changes"], joint["joint_change"]]
        ends = ("interaction", "low", "high")
        nats = points(margins[margins["subset"] == "all"], *ends, unit=1)
        cells = [
            *(f"{change:.2f}" for change in changes),
            nats,
            *(f"{mean:.2f}" for mean in numbers),
        ]
        rows.append([str(name), *cells, points(answers[answers["subset"] == "all"], *ends)])
    head = ["pair", "changes of both alone, added", "change without both", "interaction"]
    return markdown([*head, *(f"{n} subjects" for n in NUMBERS), "interaction, points"], rows)


def _largest(race: pd.DataFrame) -> str:
    """All pairs decided to be among the largest, in columns from left to right."""
    top = race[race["decision"] == "top"].nsmallest(len(race), "effect")
    cells = [[row.set, f"{row.effect:.2f}"] for row in top.itertuples()]
    height = -(-len(cells) // COLUMNS)
    rows = [[cell for pair in cells[i::height] for cell in pair] for i in range(height)]
    return markdown(["pair", "nats"] * COLUMNS, rows)


if __name__ == "__main__":
    for title, text in tables(Path(sys.argv[1])).items():
        print(f"<!-- {title} -->\n\n{text}\n")
