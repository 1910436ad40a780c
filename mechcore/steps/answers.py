"""Answers of models, whole and with ablated components: the step, its files and their readers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import safe_open

from mechcore import progress
from mechcore.ablation import Ablations, ComponentSet
from mechcore.ablation.effects.change_states import INJECTED
from mechcore.ablation.effects.changes import ABLATION
from mechcore.ablation.effects.information import with_information
from mechcore.ablation.paths import Readers
from mechcore.ablation.settings import OOD_MEAN
from mechcore.components import Mask
from mechcore.data.examples import ALL
from mechcore.evaluation.evaluate import Evaluation, evaluate
from mechcore.files import write_safetensors
from mechcore.pruning import Subnetwork
from mechcore.steps.base import MainStep, inputs_of, means_of, subnetworks_in
from mechcore.steps.config import TEST_SPLITS
from mechcore.steps.masks import AcceptMasks
from mechcore.study.step import Work
from mechcore.tables import Column
from mechcore.wording import FULL

FILL = Column(
    "fill", "text", f"of the output; ``{OOD_MEAN}``: mean of out-of-domain texts", optional=True
)
SWEEP = with_information(
    ABLATION,
    "sweep",
    "Changes from ablating every single component, on every subset and, in information, on groups "
    "of subsets; negative: worse without it.",
    FILL,
).named("sweep", "", replace(INJECTED, optional=True))

ANSWERS_FILE = "answers.safetensors"
SWEPT = {split: f"sweep-{split}.safetensors" for split in TEST_SPLITS}
INJECTED_FILE = "injected.parquet"
MASKED = "subnetworks"


def save_answers(path: Path, answers: Mapping[str, Evaluation]) -> None:
    """Write evaluations, if any, by name as safetensors; all must be on the same examples."""
    if not answers:
        return
    first = next(iter(answers.values()))
    logits = torch.stack([evaluation.logits.float().cpu() for evaluation in answers.values()])
    tensors = {"logits": logits, "correct_classes": first.correct_classes.cpu().contiguous()}
    facts = {
        "names": json.dumps(list(answers)),
        "subsets": json.dumps(first.subsets.tolist()),
        "mapping": first.mapping,
        "clusters": json.dumps(None if first.clusters is None else first.clusters.tolist()),
        "population": first.population,
    }
    write_safetensors(path, tensors, facts)


def load_answers(path: Path) -> dict[str, Evaluation]:
    """Read evaluations written by `save_answers`."""
    if not path.exists():
        return {}
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
        logits, correct = file.get_tensor("logits"), file.get_tensor("correct_classes")
    subsets, clusters = (json.loads(facts[name]) for name in ("subsets", "clusters"))
    drawn = {
        "subsets": np.array(subsets, dtype=object),
        "clusters": None if clusters is None else np.array(clusters),
        "population": facts["population"],
    }
    return {
        name: Evaluation(logits[i], correct, mapping=facts["mapping"], **drawn)
        for i, name in enumerate(json.loads(facts["names"]))
    }


def save_swept(path: Path, ablations: Ablations) -> None:
    """Write the answers of a sweep on the data of a split."""
    full = ablations.full
    named = {FULL: full}
    for component, answers in ablations.without.items():
        assert answers.logits is not None, "studies have labelled data with few classes"
        named[str(component)] = replace(full, logits=torch.from_numpy(answers.logits))
    save_answers(path, named)


def ablations_in(
    folder: Path, names: Mapping[str, str], sets: Sequence[ComponentSet] = ()
) -> dict[str, Ablations]:
    """The answers of a sweep in its folder; they and ``names`` are by split, ``sets`` are known."""
    known = {str(one): one for one in sets}
    by_split = {}
    for split, file in SWEPT.items():
        if named := load_answers(folder / file):  # otherwise only the other split was swept
            full = named.pop(FULL)
            without = {known.get(k) or ComponentSet.of([k]): of for k, of in named.items()}
            by_split[split] = Ablations.of(full, without, names[split], split)
    return by_split


def known_groups(
    ablations: Ablations | Readers, groups: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Groups whose subsets all have examples; ``accuracy`` lists the others."""
    subsets = {*ablations.full.subset_names, ALL} if ablations.split == "ood" else set()
    return {
        name: members
        for name, members in groups.items()
        if subsets.issuperset(members) and name not in subsets
    }


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The concatenated table; empty tables are skipped because they have no column types."""
    return pd.concat([t for t in tables if not t.empty] or tables[:1], ignore_index=True)


@dataclass(frozen=True)
class Answers(MainStep):
    """The answers of the full model, or of the needed subnetworks, to test data."""

    kind = "answers"
    per_text = 1.0
    split: str
    batch_size: int

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs, what, names = inputs_of(work), "full model", [FULL]
        how: dict[str, Any] = {"in_domain": self.split == "id"}
        if MASKED in work.job.needs:
            subnetworks = subnetworks_in(work.needed(MASKED))
            what, names = "subnetworks", [subnetwork.name for subnetwork in subnetworks]
            if not names:
                return
            stacked = Mask.stack([subnetwork.mask for subnetwork in subnetworks])
            how = {"mask": stacked, "means": means_of(work, inputs)}
        how |= {"class_names": inputs.config.class_names, "batch_size": self.batch_size}
        with progress.bar(f"{what}, {self.split}", 1) as advance:
            answers = evaluate(inputs.model, inputs.data[self.split], **how)
            advance()
        named = zip(names, answers if MASKED in work.job.needs else [answers], strict=True)
        save_answers(work.folder / ANSWERS_FILE, dict(named))


@dataclass(frozen=True)
class Answered:
    """All answers that a job needs, by split; subnetworks in the order of `subnetworks_in`."""

    full: dict[str, Evaluation]
    subnetworks: list[Subnetwork]
    masked: dict[str, list[Evaluation]]
    folders: list[Path]


def answers_of(work: Work) -> Answered:
    """The answers that the job needs."""
    full, folders = dict[str, Evaluation](), list[Path]()
    masked: dict[str, dict[str, Evaluation]] = {split: {} for split in TEST_SPLITS}
    for what, job in work.job.needs.items():
        if isinstance(job.step, AcceptMasks):
            folders.append(work.needed(what))
        elif isinstance(job.step, Answers):
            named = load_answers(work.needed(what) / ANSWERS_FILE)
            if MASKED in job.needs:
                masked[job.step.split] |= named
            else:
                full[job.step.split] = named[FULL]
    subnetworks = subnetworks_in(*folders)
    in_order = {split: [of[pruned.name] for pruned in subnetworks] for split, of in masked.items()}
    return Answered(full, subnetworks, in_order, folders)
