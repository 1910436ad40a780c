"""The answers of a sweep, which several analyses read, and what their tables have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from mechcore.ablation import Ablations, ComponentSet
from mechcore.ablation.effects.change_states import INJECTED
from mechcore.ablation.effects.changes import ABLATION
from mechcore.ablation.effects.information import INFORMATION
from mechcore.ablation.paths import Readers
from mechcore.ablation.settings import OOD_MEAN
from mechcore.data.examples import ALL
from mechcore.steps.answers import load_answers, save_answers
from mechcore.steps.config import TEST_SPLITS
from mechcore.wording import FULL

SWEEP = ABLATION.named("sweep", "What every single component costs; as ``ablation``.")
INFORMATION_OOD_MEAN = INFORMATION.named(
    f"information_{OOD_MEAN}",
    "As ``information``, out of domain, with the mean of the texts there as the fill.",
    INJECTED,
)


def known_groups(
    ablations: Ablations | Readers, groups: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Groups of which every subset is there; of the others ``group_accuracy`` says so."""
    subsets = {*ablations.full.subset_names, ALL} if ablations.split == "ood" else set()
    return {
        name: members
        for name, members in groups.items()
        if subsets.issuperset(members) and name not in subsets
    }


SWEPT = {split: f"sweep-{split}.safetensors" for split in TEST_SPLITS}
"""Files of a sweep's answers."""
INJECTED_FILE = "injected.parquet"


def save_swept(path: Path, ablations: Ablations) -> None:
    """Write the answers of a sweep on the data of a split."""
    full = ablations.full
    named = {FULL: full}
    for component, answers in ablations.without.items():
        assert answers.logits is not None, "studies have data with labels, whose classes are few"
        named[str(component)] = replace(full, logits=torch.from_numpy(answers.logits))
    save_answers(path, named)


def ablations_in(folder: Path, names: Mapping[str, str]) -> dict[str, Ablations]:
    """The answers of a sweep, by split.

    Args:
        folder: of the sweep's results.
        names: of the test data, by split.
    """
    by_split = {}
    for split, file in SWEPT.items():
        if named := load_answers(folder / file):  # else swept on the other split alone
            full = named.pop(FULL)
            without = {ComponentSet.of([name]): answers for name, answers in named.items()}
            by_split[split] = Ablations.of(full, without, names[split], split)
    return by_split


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table; empty ones have no types of their own to pass on."""
    return pd.concat([t for t in tables if not t.empty] or tables[:1], ignore_index=True)
