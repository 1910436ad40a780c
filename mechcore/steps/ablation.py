"""Ablation as steps of a study: which sets, on both kinds of data, into tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    ablate,
    ablation_table,
    interactions,
)
from mechcore.ablation.cuts import Cut
from mechcore.ablation.effects.change_states import INJECTED
from mechcore.ablation.effects.changes import ABLATION
from mechcore.ablation.effects.information import INFORMATION
from mechcore.ablation.effects.stability import interaction_stability
from mechcore.ablation.paths import Readers
from mechcore.ablation.settings import OOD_MEAN
from mechcore.data.examples import ALL
from mechcore.masking.interventions import FillName
from mechcore.masking.means import MeanActivations
from mechcore.steps.answers import load_answers, save_answers
from mechcore.steps.config import TEST_SPLITS
from mechcore.steps.inputs import Inputs
from mechcore.wording import FULL

SWEEP = ABLATION.named("sweep", "What every single component costs; as ``ablation``.")
SWEEP_OOD_MEAN = SWEEP.named(
    f"sweep_{OOD_MEAN}",
    "As ``sweep``, out of domain, with the mean of the texts there as the fill.",
)
INFORMATION_OOD_MEAN = INFORMATION.named(
    f"information_{OOD_MEAN}",
    "As ``information``, out of domain, with the mean of the texts there as the fill.",
    INJECTED,
)


def known_groups(
    ablations: Ablations | Readers, groups: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Groups of which every subset is there; of the others ``group_accuracy`` says so."""
    there = {*ablations.full.subset_names, ALL}
    return {
        name: members
        for name, members in (groups if ablations.split == "ood" else {}).items()
        if there.issuperset(members) and name not in there
    }


SWEPT = {split: f"sweep-{split}.safetensors" for split in TEST_SPLITS}
"""Files of a sweep's answers."""
INJECTED_FILE = "injected.parquet"


def save_swept(path: Path, ablations: Ablations) -> None:
    """Write the answers of a sweep on the data of a split."""
    full = ablations.full
    named = {FULL: full}
    for each, answers in ablations.without.items():
        assert answers.logits is not None, "studies have data with labels, whose classes are few"
        named[str(each)] = replace(full, logits=torch.from_numpy(answers.logits))
    save_answers(path, named)


def swept_answers(folders: Mapping[str, Path], names: Mapping[str, str]) -> dict[str, Ablations]:
    """The answers of a sweep, and of that with the mean of the out-of-domain texts, if any.

    Args:
        folders: of the results of both.
        names: of the test data, by split.
    """
    answers = ablations_in(folders["swept"], names)
    if OOD_MEAN in folders:
        answers[OOD_MEAN] = ablations_in(folders[OOD_MEAN], names)["ood"]
    return answers


def ablations_in(folder: Path, names: Mapping[str, str]) -> dict[str, Ablations]:
    """The answers of a sweep, by split.

    Args:
        folder: of the sweep's results.
        names: of the test data, by split.
    """
    found = {}
    for split, file in SWEPT.items():
        named = load_answers(folder / file)
        if not named:  # swept on the other split alone
            continue
        full = named.pop(FULL)
        without = {ComponentSet.of([name]): answers for name, answers in named.items()}
        found[split] = Ablations.of(full, without, names[split], split)
    return found


def ablate_on(
    inputs: Inputs,
    means: MeanActivations | None,
    chosen: Sequence[Cut],
    split: str,
    fill: FillName,
    batch_size: int,
    **options: Any,
) -> Ablations:
    """`mechcore.ablate`, of components or paths, on the test data of a split."""
    return ablate(
        inputs.model,
        chosen,
        inputs.data[split],
        means,
        split=split,  # type: ignore[arg-type]
        fill=fill,
        class_names=inputs.config.class_names,
        batch_size=batch_size,
        **options,
    )


def effect_tables(
    found: Sequence[Ablations],
    kinds: Mapping[ComponentSet, str],
    average: tuple[str, Sequence[ComponentSet]],
    **options: Any,
) -> dict[str, pd.DataFrame]:
    """The tables ``ablation``, with the mean over others as one row, and those of interactions."""
    effects = [ablation_table(a, kinds, average=average, **options) for a in found]
    together = [interactions(a, **options) for a in found]
    stable = [interaction_stability(a, **options) for a in found]
    tables = {"ablation": effects, "interactions": together, "interaction_stability": stable}
    return {name: joined(each) for name, each in tables.items()}


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table; empty ones have no types of their own to pass on."""
    return pd.concat([t for t in tables if not t.empty] or tables[:1], ignore_index=True)
