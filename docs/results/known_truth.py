"""The tables of docs/results/known-truth.md and docs/concepts/numbers.md.

Usage: python docs/results/known_truth.py FOLDER

FOLDER has nodes.csv and pairs.csv of ``mechcore bench``, and coverage.csv and errors.csv of
``benchmarks/calibration.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from as_markdown import markdown, percent

from mechcore.bench.recovery import over_cases

CORRECTIONS = {"none": "none", "benjamini-hochberg": "Benjamini-Hochberg", "holm": "Holm"}
CORRECTIONS |= {"westfall-young": "Westfall-Young"}


def tables(folder: Path) -> dict[str, str]:
    """Every table of the page on known truth, in Markdown, by what it shows."""
    nodes, pairs = (pd.read_csv(folder / f"{name}.csv") for name in ("nodes", "pairs"))
    return {
        "nodes": _by_method(nodes, {"auroc": "AUROC", "cmd": "CMD"}),
        "circuits": _by_circuit(nodes),
        "pairs": _by_method(pairs, {"auroc": "AUROC", "signs": "signs"}),
        "pairs by circuit": _by_circuit(pairs),
    }


def calibration(folder: Path) -> dict[str, str]:
    """The tables of calibration."""
    return {
        "coverage": _coverage(pd.read_csv(folder / "coverage.csv")),
        "errors": _errors(pd.read_csv(folder / "errors.csv")),
    }


def _trained(table: pd.DataFrame) -> pd.Series:
    return table["case"].str.startswith("trained-")


def _range(row: pd.Series, column: str) -> str:
    low, high = (f"{row[f'{column}_{end}']:.2f}" for end in ("low", "high"))
    same = low == high  # one value in all cases, which is no interval
    return f"{row[column]:.2f}" + ("" if same else f" ({low} to {high})")


def _by_method(table: pd.DataFrame, columns: dict[str, str]) -> str:
    """Means over planted and over trained cases, and passes of planted ones, the best first."""
    parts = {"planted": table[~_trained(table)], "trained": table[_trained(table)]}
    means = {name: over_cases(part, [*columns]).set_index("method") for name, part in parts.items()}
    passes = means["planted"][["forwards", "backwards"]]
    rows = []
    for method in over_cases(table, [*columns])["method"]:
        cells = [_range(of.loc[method], column) for column in columns for of in means.values()]
        if "distance" in table:
            right = table[
                (table["method"] == method) & (table["distance"] == 0) & (table["auroc"] == 1)
            ]
            cells.insert(2, f"{len(right)} of {table['case'].nunique()}")
        rows.append([f"`{method}`", *cells, *(f"{n:.0f}" for n in passes.loc[method])])
    head = [f"{title}, {name}" for title in columns.values() for name in means]
    if "distance" in table:
        head.insert(2, "mask exact")
    return markdown(["method", *head, "forward", "backward"], rows)


def _by_circuit(table: pd.DataFrame) -> str:
    """Mean AUROC of every method, by what the model does."""
    kind = table["case"].str.replace(r"-(encoder|decoder)(-noisy)?$", "", regex=True)
    by_kind = table.assign(kind=kind).pivot_table(index="method", columns="kind", values="auroc")
    kinds = list(dict.fromkeys(kind))
    order = over_cases(table, ["auroc"])["method"]
    rows = [[f"`{m}`", *(f"{by_kind.loc[m, name]:.2f}" for name in kinds)] for m in order]
    return markdown(["method", *(name.replace("trained-", "trained ") for name in kinds)], rows)


def _coverage(table: pd.DataFrame) -> str:
    sizes = sorted(table["texts"].unique())
    rows = []
    for (figure, metric), part in table.groupby(["figure", "metric"], sort=False):
        by_size = part.set_index("texts")
        cells = [
            f"{percent(by_size.loc[n, 'coverage'])} ({percent(by_size.loc[n, 'lowest'])})"
            if n in by_size.index
            else "-"
            for n in sizes
        ]
        rows.append([f"{figure}, {metric}", *cells])
    return markdown(["95 % intervals of", *(f"{n} texts" for n in sizes)], rows)


def _errors(table: pd.DataFrame) -> str:
    rows = []
    for name, title in CORRECTIONS.items():
        for row in table[table["correction"] == name].to_dict("records"):
            cells = [
                percent(row[f"{kind}: {what}"])
                for kind in ("singles", "pairs")
                for what in ("false", "any false", "found")
            ]
            rows.append([title, str(row["texts"]), *cells])
    head = ["correction", "texts"]
    for kind in ("singles", "pairs"):
        head += [f"{kind}: false", "any false", "true ones found"]
    return markdown(head, rows)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, table in (tables(folder) | calibration(folder)).items():
        print(f"\n## {name}\n\n{table}")
