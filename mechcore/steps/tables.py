"""Tables of the accuracy of subnetworks, and of what they have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mechcore.data.examples import ALL
from mechcore.errors import warn
from mechcore.evaluation.evaluate import Evaluation, kl
from mechcore.evaluation.intervals import share_at_most, share_interval
from mechcore.evaluation.recalibration import decompose, reason_against
from mechcore.pruning import Subnetwork, draws_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.subnetworks.core import (
    frequency_agreement,
    head_frequency,
    head_overlap,
    heuristic_core,
    outliers,
)
from mechcore.tables import PLACE, SEED, TARGET, Column, N, Schema, estimate
from mechcore.wording import FULL

SUBNETWORK = Column("subnetwork", "text", "its name; ``full`` is the full model")
ACCURACY = Schema(
    "accuracy",
    "Accuracy of the full model and of every subnetwork, on every subset and group of subsets.",
    (
        SUBNETWORK,
        TARGET,
        SEED,
        *PLACE,
        N,
        *estimate("accuracy", "share", "accuracy", low="accuracy_low", high="accuracy_high"),
        Column("margin", "number", "mean log-odds of the correct classes", "nats"),
        Column("balanced_accuracy", "share", "mean over labels; none may be rare", optional=True),
        Column("information", "share", "the same after refitting a bias per label", optional=True),
        Column("n_subsets", "whole", "of a group, which is a mean over subsets", optional=True),
        Column("subsets", "text", "their names, separated by semicolons", optional=True),
        Column("missing", "text", "those without examples; then no mean", optional=True),
    ),
)
SUBNETWORKS = Schema(
    "subnetworks",
    "What each subnetwork keeps and how well it does.",
    (
        SUBNETWORK,
        Column("method", "text", "pruning method", optional=True),
        TARGET,
        SEED,
        Column("sparsity", "share", "share of components pruned"),
        Column("head_sparsity", "share", "share of heads pruned"),
        Column("heads_kept", "whole", "heads kept"),
        Column("mlps_kept", "whole", "MLPs kept", header="MLPs kept"),
        Column("kl", "number", "KL from the full model, in-domain", "nats", "KL", digits=3),
        Column("id_accuracy", "share", "over all in-domain examples", header="in-domain"),
        Column("ood_accuracy", "share", "over all out-of-domain ones", header="out-of-domain"),
        Column("id_accuracy_macro", "share", "mean over in-domain subsets", optional=True),
        Column("ood_accuracy_macro", "share", "mean over out-of-domain subsets", optional=True),
        Column("kept", "text", "names of the components kept"),
    ),
)
CORE = Schema(
    "core",
    "The heads that every subnetwork keeps, and their number against chance, in one row.",
    (
        Column("heads", "text", "heads that all subnetworks keep, separated by spaces"),
        Column("core_size", "whole", "their number"),
        Column("n_subnetworks", "whole", "subnetworks compared"),
        Column("n_heads", "whole", "heads of the model"),
        Column(
            "rate_low",
            "share",
            "one-sided 95 % lower bound (Clopper and Pearson) of the share of further seeds that "
            "would keep one of these heads; subnetworks of one seed or ranking count as one",
            optional=True,
        ),
        Column(
            "expected_by_chance",
            "number",
            "heads that random sets with as many heads per layer would share; subnetworks of "
            "one seed or ranking count as one set",
        ),
        Column("p_value", "number", "probability of a core as large by that chance", shown="small"),
        Column("expected_uniform", "number", "heads that random sets of any layer would share"),
        Column("p_uniform", "number", "probability of a core as large then", shown="small"),
        Column("spearman_rho", "number", "between frequencies at the lowest and highest target"),
        Column(
            "spearman_p",
            "number",
            "its p-value, with frequencies permuted within layers; missing if the two targets "
            "share seeds or rankings",
            shown="small",
        ),
        TARGET.alike("low_sparsity", "the lowest target sparsity", optional=True),
        TARGET.alike("high_sparsity", "the highest target sparsity", optional=True),
    ),
)
GROUP_COLUMNS = ("n_subsets", "subsets", "missing")
_MEASURED = ["accuracy_low", "accuracy_high", "balanced_accuracy", "information"]


def answer_tables(
    full: Mapping[str, Evaluation],
    subnetworks: Sequence[Subnetwork],
    masked: Mapping[str, Sequence[Evaluation]],
    names: Mapping[str, str],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, pd.DataFrame]:
    """The tables ``accuracy`` and, if there are subnetworks, ``subnetworks``."""
    accuracy = accuracy_table(full, subnetworks, masked, names)
    accuracy = pd.concat([accuracy, group_table(accuracy, groups or {})], ignore_index=True)
    accuracy[["subsets", "missing"]] = accuracy[["subsets", "missing"]].fillna("")
    if not subnetworks:
        return {"accuracy": accuracy}
    table = subnetwork_table(subnetworks, full, masked)
    for text in outliers(table):
        warn(text)
    return {"accuracy": accuracy, "subnetworks": table}


def accuracy_table(
    full: Mapping[str, Evaluation],
    subnetworks: Sequence[Subnetwork],
    masked: Mapping[str, Sequence[Evaluation]],
    names: Mapping[str, str],
) -> pd.DataFrame:
    """The columns of `ACCURACY`, from answers and names of the data by split."""
    models: list[tuple[str, float, int | None]] = [(FULL, np.nan, None)]
    models += [(pruned.name, pruned.target_sparsity, pruned.seed) for pruned in subnetworks]
    parts = []
    for split in TEST_SPLITS:
        answers = [full[split], *masked[split]]
        for (name, target_sparsity, seed), evaluation in zip(models, answers, strict=True):
            table = evaluation.table().assign(subnetwork=name, target_sparsity=target_sparsity)
            measured = []
            for subset in table["subset"]:
                rows = (evaluation.subsets == subset) | (subset == ALL)
                clusters = evaluation.samples(rows)[""]
                interval = share_interval(evaluation.correct[rows], clusters=clusters)
                both = on_both_labels(full[split], evaluation, rows)
                measured.append((interval.low, interval.high, *both))
            table[_MEASURED] = measured
            exact = pd.array([seed] * len(table), dtype="Int64")
            parts.append(table.assign(seed=exact, data=names[split], split=split))
    names_of_subsets = [name for name in ACCURACY.names if name not in GROUP_COLUMNS]
    return pd.concat(parts, ignore_index=True)[names_of_subsets]


def subnetwork_table(
    subnetworks: Sequence[Subnetwork],
    full: Mapping[str, Evaluation],
    masked: Mapping[str, Sequence[Evaluation]],
) -> pd.DataFrame:
    """The columns of `SUBNETWORKS`; KL of language models is over the answers."""
    return pd.DataFrame(
        {
            "subnetwork": pruned.name,
            "method": pruned.method,
            "target_sparsity": pruned.target_sparsity,
            "seed": pruned.seed,
            "sparsity": pruned.mask.sparsity,
            "head_sparsity": pruned.mask.head_sparsity,
            "heads_kept": sum(component.is_head for component in pruned.mask.kept),
            "mlps_kept": sum(not component.is_head for component in pruned.mask.kept),
            "kl": kl(full["id"].logits, inside.logits).numpy().mean(),
            "id_accuracy": inside.accuracy,
            "ood_accuracy": outside.accuracy,
            "id_accuracy_macro": inside.macro_accuracy,
            "ood_accuracy_macro": outside.macro_accuracy,
            "kept": " ".join(map(str, pruned.mask.kept)),
        }
        for pruned, inside, outside in zip(subnetworks, masked["id"], masked["ood"], strict=True)
    )


def on_both_labels(
    full: Evaluation, evaluation: Evaluation, rows: np.ndarray
) -> tuple[float, float]:
    """Balanced accuracy before and after refitting the biases; NaN where unknown."""
    correct = full.correct_classes.numpy()[rows]
    if reason_against(correct):
        return math.nan, math.nan
    before, after = (answers.logits.numpy()[rows] for answers in (full, evaluation))
    clusters = None if full.clusters is None else full.clusters[rows]
    parts = decompose(before, after[None], correct, clusters=clusters)
    effects = (parts.accuracy, parts.information)
    balanced, information = (effect.full + float(effect.changes[0]) for effect in effects)
    return balanced, information


def group_table(accuracy: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Rows of `ACCURACY` for the `subset_groups` of a table of `accuracy_table`."""
    subsets = proper_subsets(accuracy)
    by = ["subnetwork", "target_sparsity", "seed"]
    rows = []
    for names, part in subsets.groupby(by, sort=False, dropna=False):
        for group, (split, members) in subset_groups(subsets, groups).items():
            own = part[(part["split"] == split) & part["subset"].isin(members)]
            missing = [subset for subset in members if subset not in set(own["subset"])]
            mean = math.nan if missing else own["accuracy"].mean()
            data = subsets.loc[subsets["split"] == split, "data"].iloc[0]
            place = (data, split, group, own["n"].sum(), mean)
            rows.append((*names, *place, len(members), "; ".join(members), "; ".join(missing)))
    columns = [*by, "data", "split", "subset", "n", "accuracy", *GROUP_COLUMNS]
    table = pd.DataFrame(rows, columns=columns, dtype=object)
    return table.infer_objects().astype({"seed": "Int64"})


def subset_groups(
    subsets: pd.DataFrame, groups: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, list[str]]]:
    """Split and subsets of groups: ``ID``, ``OOD`` and ``groups``, which may redefine ``OOD``."""
    every = {
        split.upper(): (split, list(subsets.loc[subsets["split"] == split, "subset"].unique()))
        for split in TEST_SPLITS
    }
    return every | {name: ("ood", list(members)) for name, members in groups.items()}


def proper_subsets(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Rows of an accuracy table for subsets; for all examples if there are no subsets."""
    if "n_subsets" in accuracy:
        accuracy = accuracy[accuracy["n_subsets"].isna()]
    others = accuracy.groupby("split")["subset"].transform("nunique") > 1
    return accuracy[(accuracy["subset"] != ALL) | ~others]


def core_tables(subnetworks: Sequence[Subnetwork]) -> dict[str, pd.DataFrame]:
    """Tables ``core``, ``head_frequency``, ``head_overlap``; `MismatchError` for several models."""
    names, masks = [pruned.name for pruned in subnetworks], [pruned.mask for pruned in subnetworks]
    targets = [pruned.target_sparsity for pruned in subnetworks]
    frequency = head_frequency(masks, targets)
    draws = draws_of(subnetworks)
    core = heuristic_core(masks, draws)
    summary: dict[str, Any] = {
        "heads": " ".join(map(str, core.heads)),
        "core_size": len(core.heads),
        "n_subnetworks": core.n_subnetworks,
        "n_heads": core.n_heads,
        "rate_low": 1 - share_at_most(0, len(set(draws))),
        "expected_by_chance": core.expected,
        "p_value": core.p_value,
        "expected_uniform": core.expected_uniform,
        "p_uniform": core.p_uniform,
    }
    if frequency["target_sparsity"].nunique() > 1:
        agreement = frequency_agreement(frequency)
        ends = {name: getattr(agreement, name) for name in ("low_sparsity", "high_sparsity")}
        by_target = [*zip(targets, draws, strict=True)]
        low, high = ({draw for t, draw in by_target if t == end} for end in ends.values())
        p = math.nan if low & high else agreement.p_value
        summary |= {"spearman_rho": agreement.rho, "spearman_p": p, **ends}
    return {
        "core": pd.DataFrame([summary], columns=CORE.names),
        "head_frequency": frequency,
        "head_overlap": head_overlap(masks, names, draws),
    }
