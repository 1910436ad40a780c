"""Files of what models answered: `mechcore.Evaluation` objects on the same examples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from mechcore.evaluation.evaluate import Evaluation
from mechcore.files import write_safetensors


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
