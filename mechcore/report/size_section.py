"""The section on effective size over the checkpoints of a training run."""

from __future__ import annotations

import pandas as pd

from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table
from mechcore.report.groups import members_sentence
from mechcore.report.run_folder import RunFolder
from mechcore.report.subnetwork_figures import effective_sizes
from mechcore.report.summary import size_sentences
from mechcore.wording import number, percent, percent_range, whole

_TITLE = "Effective size over training"
FILES = ("mean_effective_size.csv", "effective_size.csv", "full.csv", "grid.csv")


def size_section(run: RunFolder, gallery: Gallery) -> Section | None:
    """How few components do what the whole model does, by checkpoint; None without its table."""
    means = run.table("mean_effective_size")
    if means is None or len(means) == 0:
        return None
    members = members_sentence(run, list(dict.fromkeys(means["group"])))
    blocks: list[Block] = [
        *map(Paragraph, size_sentences(run)),
        *([Paragraph(members)] if members else []),
        gallery.add(
            effective_sizes(means),
            "effective-size",
            "Left: accuracy of the full model at each checkpoint. Right: its effective size, the "
            "share of components that the sparsest faithful subnetwork keeps; the shade spans the "
            "seeds. Open marks: for some seed no subnetwork was faithful, which counts as 100 %.",
            "Two line charts over checkpoints; their numbers are in the table below.",
        ),
        _mean_table(means),
    ]
    sizes = run.table("effective_size")
    if sizes is not None and len(sizes):
        blocks.append(_seed_table(sizes))
    missing = run.table("missing_grid_masks")
    if missing is None or len(missing) == 0:
        return Section("effective-size", _TITLE, blocks, FILES)
    blocks.append(missing_table(missing[["checkpoint", "subnetwork", "reason"]]))
    return Section("effective-size", _TITLE, blocks, (*FILES, "missing_grid_masks.csv"))


def missing_table(missing: pd.DataFrame) -> Table:
    """Masks that could not be used, and why."""
    header = [str(name) for name in missing.columns]
    words = frozenset(range(len(header)))
    rows = missing.astype(str).to_numpy().tolist()
    return Table("Masks that are missing, and why", header, rows, words)


def _mean_table(means: pd.DataFrame) -> Table:
    header = ["group", "checkpoint", "effective size", "over seeds", "faithful", "full model"]
    rows = [
        [
            row["group"],
            row["checkpoint"],
            percent(row["effective_size"]),
            percent_range(row[["low", "high"]]),
            f"{whole(row['n_faithful'])} of {whole(row['n_seeds'])}",
            percent(row["full_accuracy"]),
        ]
        for _, row in means.iterrows()
    ]
    caption = "Effective size, mean and range over seeds; how many seeds have a faithful "
    caption += "subnetwork; accuracy of the full model"
    return Table(caption, header, rows, frozenset({0, 1}), folded=True)


def _seed_table(sizes: pd.DataFrame) -> Table:
    header = ["group", "checkpoint", "seed", "effective size", "sparsity", "accuracy", "full model"]
    rows = [
        [
            row["group"],
            row["checkpoint"],
            number(row["seed"], 0),
            percent(row["effective_size"]),
            *(percent(row[name]) for name in ("sparsity", "accuracy", "full_accuracy")),
        ]
        for _, row in sizes.iterrows()
    ]
    caption = "Effective size of every seed: the sparsest faithful subnetwork and its accuracy"
    return Table(caption, header, rows, frozenset({0, 1}), folded=True)
