"""The tables of docs/results/minilm-fine-tunings.md, made from those of the studies.

Usage: python docs/results/minilm_fine_tunings.py FOLDER

FOLDER has the tables of every variant of the study in a folder of its name. The first fine-tuning
and the one on another task are read from the tables of their own studies.
"""

from __future__ import annotations

import sys
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
from as_markdown import markdown, percent
from study_tables import changes, where_of

from mechcore.components import Component
from mechcore.subnetworks.core import accuracy_spread, shared_by_chance

STUDIES = Path(__file__).parents[1] / "tables"
VARIANTS = {
    "seed-1": "MNLI + HANS, seed 1",
    "seed-2": "MNLI + HANS, seed 2",
    "no-hans": "MNLI alone, seed 0",
}
SETS = {"id:all": "MNLI", "ood:not entailed": "not entailed", "ood:entailed": "entailed"}
LAYERS, HEADS = 6, 12
N_SEEDS = 4
"""Seeds of the new studies; cores of more are compared as those of as many."""


def tables(folder: Path) -> dict[str, str]:
    """Every table of the page, in Markdown, by what it shows."""
    kept = {
        "MNLI + HANS, seed 0": _kept(STUDIES / "minilm-mnli-hans"),
        **{title: _kept(folder / name) for name, title in VARIANTS.items()},
        "QQP": _kept(STUDIES / "minilm-qqp-paws"),
    }
    folders = [STUDIES / "minilm-mnli-hans", *(folder / name for name in VARIANTS)]
    folders.append(STUDIES / "minilm-qqp-paws")
    rarefied = dict(zip(kept, map(_rarefied, folders), strict=True))
    return {
        "fine-tuning": _fine_tuning(folder),
        "subnetworks": _subnetworks(folder),
        "cores": _cores(kept),
        "shared": _shared(kept, rarefied),
        "changes": _changes(folder),
    }


def _kept(study: Path) -> pd.Series:
    """In how many subnetworks every head is, as a share."""
    frequency = pd.read_csv(study / "head_frequency.csv")
    heads = frequency[~frequency["component"].str.endswith("MLP")]
    sums = heads.groupby("component")[["count", "n_seeds"]].sum()
    return sums["count"] / sums["n_seeds"]


def _fine_tuning(folder: Path) -> str:
    wide = {}
    for name in VARIANTS:
        training = pd.read_csv(folder / name / "training.csv")
        training["set"] = where_of(training)
        wide[name] = training.pivot(index="step", columns="set", values="accuracy")
    rows = [
        [
            f"{step:,}",
            *(", ".join(percent(table.loc[step, d]) for d in SETS) for table in wide.values()),
        ]
        for step in wide["seed-1"].index
    ]
    return markdown(["step", *VARIANTS.values()], rows)


def _subnetworks(folder: Path) -> str:
    rows = []
    for name, title in VARIANTS.items():
        spread = accuracy_spread(pd.read_csv(folder / name / "accuracy.csv"))
        spread = spread.assign(set=where_of(spread)).set_index(["set", "target_sparsity"])
        for data, which in SETS.items():
            cells = [title, which, percent(spread.loc[(data, 0.5), "full"])]
            for sparsity in (0.5, 0.7):
                row = spread.loc[(data, sparsity)]
                cells.append(", ".join(percent(row[key]) for key in ("low", "mean", "high")))
            rows.append(cells)
    ranges = [f"{share} %: lowest, mean, highest" for share in (50, 70)]
    return markdown(["model", "data", "full", *ranges], rows)


def _cores(kept: dict[str, pd.Series]) -> str:
    """Heads that are in the core of some model, with the share of its subnetworks they are in."""
    wide = pd.DataFrame(kept)
    rows = [
        [str(head), *("core" if share == 1 else f"{100 * share:.0f} %" for share in row)]
        for head, row in wide[(wide == 1).any(axis=1)].iterrows()
    ]
    return markdown(["head", *wide], rows)


def _rarefied(study: Path) -> pd.Series:
    """Probability of every head to be in the core of `N_SEEDS` of the seeds, drawn at random.

    Of N seeds, k of which keep a head at both target_sparsities: C(k, n) / C(N, n).
    """
    table = pd.read_csv(study / "subnetworks.csv")
    kept = [
        set.intersection(*map(set, part.str.split())) for _, part in table.groupby("seed")["kept"]
    ]
    heads = {head for core in kept for head in core if not head.endswith("MLP")}
    counts = {head: sum(head in core for core in kept) for head in sorted(heads)}
    every = comb(len(kept), N_SEEDS)
    return pd.Series({head: comb(k, N_SEEDS) / every for head, k in counts.items()})


def _by_layer(heads: set[str]) -> list[int]:
    layers = [Component.parse(head).layer for head in heads]
    return [layers.count(layer) for layer in range(LAYERS)]


def _shared(kept: dict[str, pd.Series], rarefied: dict[str, pd.Series]) -> str:
    """Heads in the cores of two models, beside random ones of the same layers."""
    cores = {title: set(shares.index[shares == 1]) for title, shares in kept.items()}
    rows = []
    for first, second in combinations(cores, 2):
        a, b, both = len(cores[first]), len(cores[second]), len(cores[first] & cores[second])
        sizes = np.array([_by_layer(cores[first]), _by_layer(cores[second])])
        chance = shared_by_chance([HEADS] * LAYERS, sizes)
        p, mean = chance[both:].sum(), np.arange(len(chance)) @ chance
        ours, theirs = rarefied[first], rarefied[second]
        alike = f"{(ours * theirs).sum():.1f} of {ours.sum():.1f} and {theirs.sum():.1f}"
        rho = kept[first].corr(kept[second], method="spearman")
        cells = [f"{a} and {b}", str(both), f"{mean:.1f}", f"{p:.1g}", alike, f"{rho:.2f}"]
        rows.append([first, second, *cells])
    head = ["", "", "cores", "shared", "by chance", "p", f"shared, of {N_SEEDS} seeds each"]
    return markdown([*head, "rho over all heads"], rows)


def _changes(folder: Path) -> str:
    rows = []
    for name, title in VARIANTS.items():
        ablation = pd.read_csv(folder / name / "ablation.csv")
        core = pd.read_csv(folder / name / "core.csv")["heads"][0].replace(" ", "+")
        named = {"L1.H1": "L1.H1", "L2.H9": "L2.H9", "L1.H1+L2.H9": "both"}
        for which, text in {**named, core: f"all {core.count('+') + 1} of the core"}.items():
            rows.append([title, text, *changes(ablation, which, tuple(SETS))])
    return markdown(["model", "without", *(f"change, {data}" for data in SETS.values())], rows)


if __name__ == "__main__":
    for title, text in tables(Path(sys.argv[1])).items():
        print(f"<!-- {title} -->\n\n{text}\n")
