"""Accuracy on both labels, and its mean over groups of subsets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from mechcore.data.examples import ALL
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.recalibration import decompose, reason_against
from mechcore.steps.config import TEST_SPLITS
from mechcore.tables import PLACE, SEED, SPLIT, TARGET, Column, N, Schema, estimate

SUBNETWORK = Column("subnetwork", "text", "its name; ``full`` is the full model")
ACCURACY = Schema(
    "accuracy",
    "Accuracy of the full model and of every subnetwork, on every subset.",
    (
        SUBNETWORK,
        TARGET,
        SEED,
        *PLACE,
        N,
        *estimate("accuracy", "share", "accuracy", low="accuracy_low", high="accuracy_high"),
        Column("margin", "number", "mean log-odds of the correct classes", "nats"),
        Column(
            "balanced_accuracy",
            "share",
            "accuracy with labels weighed alike; missing where there is one label or too few of it",
            optional=True,
        ),
        Column(
            "information",
            "share",
            "the same after one bias per label is refitted, which a moved threshold leaves alone",
            optional=True,
        ),
    ),
)
GROUP_ACCURACY = Schema(
    "group_accuracy",
    "Means of accuracy over groups of subsets, each subset counting the same.",
    (
        SUBNETWORK,
        TARGET,
        SEED,
        SPLIT,
        Column("group", "text", "name of the group"),
        Column("accuracy", "share", "mean; missing if the data lack a subset of the group"),
        Column("n_subsets", "whole", "subsets of the group"),
        Column("subsets", "text", "their names, by semicolons"),
        Column("missing", "text", "those that have no example"),
    ),
)


def on_both_labels(
    full: Evaluation, evaluation: Evaluation, rows: np.ndarray
) -> tuple[float, float]:
    """Balanced accuracy, and that after the biases are refitted; NaN where they are not known."""
    correct = full.correct_classes.numpy()[rows]
    if reason_against(correct):
        return math.nan, math.nan
    before, after = (each.logits.numpy()[rows] for each in (full, evaluation))
    clusters = None if full.clusters is None else full.clusters[rows]
    parts = decompose(before, after[None], correct, clusters=clusters)
    effects = (parts.accuracy, parts.information)
    balanced, information = (effect.full + float(effect.changes[0]) for effect in effects)
    return balanced, information


def group_table(accuracy: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Mean accuracy over subsets, each counting the same.

    Args:
        accuracy: the table of `mechcore.steps.tables.accuracy_table`.
        groups: see `subset_groups`.

    Returns:
        The columns of `GROUP_ACCURACY`.
    """
    subsets = proper_subsets(accuracy)
    by = ["subnetwork", "target_sparsity", "seed"]
    rows = []
    for names, part in subsets.groupby(by, sort=False, dropna=False):
        for group, (split, members) in subset_groups(subsets, groups).items():
            chosen = part[(part["split"] == split) & part["subset"].isin(members)]
            missing = [subset for subset in members if subset not in set(chosen["subset"])]
            mean = math.nan if missing else chosen["accuracy"].mean()
            listed = (len(members), "; ".join(members), "; ".join(missing))
            rows.append((*names, split, group, mean, *listed))
    table = pd.DataFrame(rows, columns=GROUP_ACCURACY.names, dtype=object)
    return table.infer_objects().astype({"seed": "Int64"})


def subset_groups(
    subsets: pd.DataFrame, groups: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, list[str]]]:
    """Which subsets the means are over.

    Args:
        subsets: of `proper_subsets`.
        groups: out-of-domain subsets by the name of their group.

    Returns:
        Split and subsets by group: ``ID`` and ``OOD`` with all there are, unless ``groups`` says
        which subsets ``OOD`` has, and the others of ``groups``.
    """
    there = {
        split: list(dict.fromkeys(subsets.loc[subsets["split"] == split, "subset"]))
        for split in TEST_SPLITS
    }
    every = {"ID": ("id", there["id"]), "OOD": ("ood", there["ood"])}
    return every | {name: ("ood", list(members)) for name, members in groups.items()}


def proper_subsets(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Rows of a table of accuracies for subsets; for all examples where there are no subsets."""
    others = accuracy.groupby("split")["subset"].transform("nunique") > 1
    return accuracy[(accuracy["subset"] != ALL) | ~others]
