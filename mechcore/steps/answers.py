"""What models answered: the step, its files, and what other steps read of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from mechcore import progress
from mechcore.components import Mask
from mechcore.evaluation.evaluate import Evaluation, evaluate
from mechcore.files import write_safetensors
from mechcore.pruning import Subnetwork
from mechcore.steps.base import MainStep, Size, inputs_of, means_of, subnetworks_in
from mechcore.steps.config import TEST_SPLITS
from mechcore.steps.masks import AcceptMasks
from mechcore.study.step import Job, Work
from mechcore.wording import FULL

ANSWERS_FILE = "answers.safetensors"
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

    kind = "answers"
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
        options: dict[str, Any] = {"class_names": inputs.config.class_names}
        options |= {"batch_size": self.batch_size}
        if MASKED not in work.job.needs:
            names, options["in_domain"] = [FULL], self.split == "id"
        else:
            subnetworks = subnetworks_in(work.needed(MASKED))
            names = [subnetwork.name for subnetwork in subnetworks]
            if not names:
                return
            options["mask"] = Mask.stack([subnetwork.mask for subnetwork in subnetworks])
            options["means"] = means_of(work, inputs)
        what = "subnetworks" if "mask" in options else "full model"
        with progress.bar(f"{what}, {self.split}", 1) as advance:
            answers = evaluate(inputs.model, inputs.data[self.split], **options)
            advance()
        answers = answers if "mask" in options else [answers]
        save_answers(work.folder / ANSWERS_FILE, dict(zip(names, answers, strict=True)))


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
