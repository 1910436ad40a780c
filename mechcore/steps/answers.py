"""What models answered: the step, its files, and what other steps read of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from safetensors import safe_open

from mechcore.evaluation.evaluate import Evaluation
from mechcore.files import write_safetensors
from mechcore.pruning import Subnetwork
from mechcore.steps.base import (
    ANSWERS_FILE,
    MainStep,
    Size,
    inputs_of,
    means_of,
    subnetworks_in,
)
from mechcore.steps.config import TEST_SPLITS
from mechcore.steps.masks import AcceptMasks
from mechcore.steps.tables import evaluate_full, evaluate_subnetworks
from mechcore.study.step import Job, Work
from mechcore.wording import FULL

MASKED = "subnetworks"
"""What the subnetworks that answer are to a job."""


def save_answers(path: Path, answers: Mapping[str, Evaluation]) -> None:
    """Write evaluations by name, as safetensors; all of them on the same examples.

    Of none, nothing is written.
    """
    if not answers:
        return
    first = next(iter(answers.values()))
    tensors = {"logits": torch.stack([each.logits.float().cpu() for each in answers.values()])}
    tensors["correct_classes"] = first.correct_classes.cpu().contiguous()
    facts = {
        "names": json.dumps(list(answers)),
        "subsets": json.dumps(first.subsets.tolist()),
        "mapping": first.mapping,
        "clusters": json.dumps(None if first.clusters is None else first.clusters.tolist()),
        "population": first.population,
    }
    write_safetensors(path, tensors, facts)


def load_answers(path: Path) -> dict[str, Evaluation]:
    """Read what `save_answers` wrote."""
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


@dataclass(frozen=True)
class Answers(MainStep):
    """What the full model, or the subnetworks that it needs, answer to test data."""

    kind: ClassVar[str] = "answers"
    split: str
    batch_size: int

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        masks = job.needs.get(MASKED)
        n = len(masks.step.seeds) if masks and isinstance(masks.step, AcceptMasks) else 1
        return float(size.examples[self.split] * n)

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs = inputs_of(work)
        if MASKED in work.job.needs:
            found = subnetworks_in(work.needed(MASKED))
            means, size = means_of(work, inputs), self.batch_size
            answered = evaluate_subnetworks(inputs, self.split, found, means, size) if found else []
            named = dict(zip([each.name for each in found], answered, strict=True))
        else:
            named = {FULL: evaluate_full(inputs, self.split, self.batch_size)}
        save_answers(work.folder / ANSWERS_FILE, named)


@dataclass(frozen=True)
class Answered:
    """All that models answered that a job needs, by split; subnetworks by target and seed."""

    full: dict[str, Evaluation]
    subnetworks: list[Subnetwork]
    masked: dict[str, list[Evaluation]]
    folders: list[Path]


def answers_of(work: Work) -> Answered:
    """The answers that the job needs."""
    full: dict[str, Evaluation] = {}
    answered: dict[tuple[str, str], dict[str, Evaluation]] = {}
    for what, job in work.job.needs.items():
        if isinstance(job.step, Answers):
            named, masks = load_answers(work.needed(what) / ANSWERS_FILE), job.needs.get(MASKED)
            if masks is None:
                full[job.step.split] = named[FULL]
            else:
                answered[masks.key, job.step.split] = named
    subnetworks: list[Subnetwork] = []
    folders: list[Path] = []
    masked: dict[str, list[Evaluation]] = {split: [] for split in TEST_SPLITS}
    for what, job in work.job.needs.items():
        if isinstance(job.step, AcceptMasks):
            folders.append(work.needed(what))
            part = subnetworks_in(folders[-1])
            subnetworks += part
            for split in TEST_SPLITS:
                masked[split] += [answered[job.key, split][subnetwork.name] for subnetwork in part]
    order = sorted(
        range(len(subnetworks)), key=lambda i: (subnetworks[i].target, subnetworks[i].seed)
    )
    in_order = {split: [answers[i] for i in order] for split, answers in masked.items()}
    return Answered(full, [subnetworks[i] for i in order], in_order, folders)
