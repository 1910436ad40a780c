"""The tables of docs/results/minilm-qqp-paws.md, made from those of the study.

Usage: python docs/results/minilm_qqp_paws.py FOLDER

FOLDER has the tables of the study (study/tables).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from as_markdown import markdown, percent
from study_tables import Study, points, random_heads, swept, where_of

OTHER_TASK = Path(__file__).parents[1] / "tables" / "minilm-mnli-hans"
HALVES = {"ood:not equivalent": "not equivalent", "ood:equivalent": "equivalent"}
N_READERS = 6
N_DIVIDENDS = 6
STUDY = Study(
    id="QQP",
    ood="PAWS",
    sets={"id:all": "QQP", "ood:all": "PAWS, both halves", **HALVES},
    n_seeds=12,
    size=(72, 6),
    target_sparsities=(0.3, 0.6),
    changes={"id:all": "QQP", **HALVES},
)


def tables(folder: Path) -> dict[str, str]:
    """Every table of the page, in Markdown, by what it shows."""
    read = {path.stem: pd.read_csv(path) for path in folder.glob("*.csv")}
    categories = read["head_categories"]
    return {
        "fine-tuning": _fine_tuning(read["training"]),
        "subnetworks": STUDY.subnetworks(read["accuracy"], read["subnetworks"]),
        "seeds": _seeds(read["subnetworks"], read["accuracy"]),
        "core": STUDY.core(categories, read["ablation"]),
        "heads": STUDY.heads(swept(read["sweep"]), categories, read["head_frequency"], "id:all"),
        "tasks": _tasks(read["head_frequency"], pd.read_csv(OTHER_TASK / "head_frequency.csv")),
        "joint": STUDY.joint(read["interactions"], "id:all"),
        "shapley": _shapley(read["shapley"]),
        "dividends": _dividends(read["dividends"]),
        "sizes": STUDY.sizes(
            read["mean_effective_size"], {f"pairs {half}": half for half in HALVES.values()}
        ),
        "readers": _readers(read["core_dependence"]),
    }


def _tasks(here: pd.DataFrame, there: pd.DataFrame) -> str:
    """Heads that are in the core of either task, and in how many subnetworks they are."""
    counts = {}
    for name, frequency in (("QQP", here), ("MNLI", there)):
        heads = frequency[~frequency["component"].str.endswith("MLP")]
        counts[name] = heads.groupby("component")["count"].sum()
    wide = pd.DataFrame(counts)
    n_masks = len(STUDY.target_sparsities) * STUDY.n_seeds
    rows = [
        [str(head), *("core" if row[task] == n_masks else str(row[task]) for task in wide)]
        for head, row in wide[wide.max(axis=1) == n_masks].iterrows()
    ]
    return markdown(["head", *(f"{task}: kept of {n_masks}" for task in wide)], rows)


def _fine_tuning(training: pd.DataFrame) -> str:
    wide = training.assign(set=where_of(training)).pivot(
        index="step", columns="set", values="accuracy"
    )
    loss = training.groupby("step")["loss"].first()
    rows = [
        [f"{step:,}", f"{loss[step]:.3f}", *(percent(wide.loc[step, name]) for name in STUDY.sets)]
        for step in wide.index
    ]
    return markdown(["step", "loss", *STUDY.sets.values()], rows)


def _seeds(subnetworks: pd.DataFrame, accuracy: pd.DataFrame) -> str:
    """Every seed, on QQP and on both halves of PAWS."""
    of_masks = accuracy.assign(set=where_of).pivot(
        index="subnetwork", columns="set", values="accuracy"
    )
    rows = []
    for seed, part in subnetworks.groupby("seed"):
        cells = [str(int(str(seed)))]
        for sparsity in STUDY.target_sparsities:
            (row,) = part[part["target_sparsity"] == sparsity].to_dict("records")
            cells += [f"{row['heads_kept']}, {row['mlps_kept']}", f"{row['kl']:.3f}"]
            cells += [percent(of_masks.loc[row["subnetwork"], data]) for data in STUDY.changes]
        rows.append(cells)
    what = ("kept", "KL", *STUDY.changes.values())
    shares = [f"{100 * share:.0f} %" for share in STUDY.target_sparsities]
    return markdown(["seed", *(f"{share}: {figure}" for share in shares for figure in what)], rows)


def _shapley(values: pd.DataFrame) -> str:
    """What each core head has of the change without all of them."""
    parts = _by_data(values)
    rows = [
        [head, *(points(part.loc[[head]], "shapley", "low", "high") for part in parts)]
        for head in parts[0].index
    ]
    return markdown(["head", *STUDY.changes.values()], rows)


def _dividends(dividends: pd.DataFrame) -> str:
    """The largest dividends of two core heads and more, by the margin on either half of PAWS."""
    parts = _by_data(dividends[dividends["size"] > 1])
    halves = pd.concat([part["dividend"].abs() for part in parts[1:]], axis=1)
    rows = []
    for name in halves.max(axis=1).nlargest(N_DIVIDENDS).index:
        cells = [name.replace("+", " + ")]
        for part in parts:
            cells.append(f"{part.loc[name, 'change']:.2f}")
            cells.append(points(part.loc[[name]], "dividend", "low", "high", unit=1))
        rows.append(cells)
    what = [f"{data}, {kind}" for data in STUDY.changes.values() for kind in ("change", "dividend")]
    return markdown(["set", *what], rows)


def _by_data(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Rows by their set, for each of the data of changes."""
    return [table[where_of(table) == data].set_index("set") for data in STUDY.changes]


def _readers(dependence: pd.DataFrame) -> str:
    """Components that change most answers to PAWS when they do not see the core."""
    by_metric = {
        (split, metric, subset): part.set_index("receiver")
        for (split, metric, subset), part in dependence.groupby(["split", "metric", "subset"])
    }
    halves = [by_metric["ood", "accuracy", half] for half in HALVES.values()]
    blind = [f"blind_change{end}" for end in ("", "_low", "_high")]
    order = halves[0][blind[0]].abs().sort_values(ascending=False, kind="stable").index
    rows = []
    for name in order[:N_READERS]:
        cells = [name]
        for half in halves:
            row, of_name = half.loc[name], half.loc[[name]]
            cells += [
                points(of_name, "change", "change_low", "change_high"),
                points(of_name, *blind),
            ]
            cells.append(random_heads(row) if row["n_controls"] else "")
        for split in ("ood", "id"):
            cells.append(points(by_metric[split, "information", "all"].loc[[name]], *blind))
        rows.append(cells)
    what = ("without it", "blind", "random heads")
    head = ["receiver", *(f"{half}, {kind}" for half in HALVES.values() for kind in what)]
    return markdown([*head, "information, PAWS", "information, QQP"], rows)


if __name__ == "__main__":
    for title, text in tables(Path(sys.argv[1])).items():
        print(f"<!-- {title} -->\n\n{text}\n")
