"""The section on effective size over the checkpoints of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mechcore.report.blocks import Block, Drawing, Paragraph, Section, Shown, Table, table_of
from mechcore.report.groups import members_sentence
from mechcore.report.run_folder import RunFolder
from mechcore.report.subnetwork_figures import effective_sizes
from mechcore.report.summary import size_sentences
from mechcore.subnetworks.effective_size import EFFECTIVE_SIZE, MEAN_EFFECTIVE_SIZE
from mechcore.wording import whole

_TITLE = "Effective size over training"
FILES = ("mean_effective_size.csv", "effective_size.csv", "full.csv", "grid.csv")


def size_section(run: RunFolder) -> Section | None:
    """How few components do what the whole model does, by checkpoint; None without its table."""
    means = run.table("mean_effective_size")
    if means is None or len(means) == 0:
        return None
    members = members_sentence(run, list(dict.fromkeys(means["group"])))
    blocks: list[Block] = [
        *map(Paragraph, size_sentences(run)),
        *([Paragraph(members)] if members else []),
        Drawing(
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
    blocks.append(missing_table(run, "missing_grid_masks"))
    return Section("effective-size", _TITLE, blocks, (*FILES, "missing_grid_masks.csv"))


def only_sizes(config: Mapping[str, Any]) -> bool:
    """Whether a run asked for effective sizes and nothing else, by its ``config.json``."""
    return not config.get("sparsities", True)


def missing_table(run: RunFolder, name: str) -> Table:
    """Masks that could not be used, and why."""
    shown = [each for each in ("checkpoint", "subnetwork", "reason") if each in run.tables[name]]
    return table_of(run.tables[name], run.schemas[name], "Masks that are missing, and why", shown)


def _mean_table(means: pd.DataFrame) -> Table:
    size = MEAN_EFFECTIVE_SIZE["effective_size"]
    ranges = list(map(size.between, means["low"], means["high"]))
    counts = zip(means["n_faithful"], means["n_seeds"], strict=True)
    faithful = [f"{whole(n)} of {whole(seeds)}" for n, seeds in counts]
    caption = "Effective size: mean with its interval over seeds, and their range; how many seeds "
    caption += "have a faithful subnetwork; accuracy of the full model"
    shown: list[Shown] = ["group", "checkpoint", size, ("over seeds", ranges)]
    shown += [("faithful", faithful), "full_accuracy"]
    return table_of(means, MEAN_EFFECTIVE_SIZE, caption, shown, folded=True)


def _seed_table(sizes: pd.DataFrame) -> Table:
    caption = "Effective size of every seed: the sparsest faithful subnetwork and its accuracy"
    shown = ["group", "checkpoint", "seed", "effective_size", "sparsity", "accuracy"]
    return table_of(sizes, EFFECTIVE_SIZE, caption, [*shown, "full_accuracy"], folded=True)
