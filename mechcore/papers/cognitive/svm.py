"""What single heads of one model say about its answer in the cognitive task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
from transformers import PreTrainedTokenizerBase

from mechcore.components import Component, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.evaluate import evaluate
from mechcore.models.protocol import hook_z, longest_input
from mechcore.papers.cognitive.probing import activations_at, balanced, decode_table
from mechcore.papers.cognitive.text import CHOICES
from mechcore.papers.cognitive.trials import CONDITIONS, Trials, encode_trials
from mechcore.tables import PART, Column, Schema, estimate

FOLDS = 5
SEED = 0
"""Of cross-validation, subsets, shuffles and bootstrap."""
DECODED = (
    *estimate("accuracy", "share", "cross-validated accuracy", over="binomial"),
    Column("chance", "share", "accuracy of guessing"),
    Column("floor", "share", "what the best of the other variables gives away"),
    Column("shuffled", "share", "mean with shuffled labels"),
    Column("shuffled_high", "share", "its 95th percentile", header="shuffled, 95 %"),
    Column("p", "number", "of the accuracy, by shuffled labels", shown="small"),
)
_TRIALS = Column("n", "whole", "trials")
SVM = Schema(
    "cognitive_svm",
    "What every head's output says, by a linear support vector machine.",
    (
        *PART,
        Column(
            "target",
            "text",
            "``choice``, ``correct``, ``congruent`` or ``condition``",
            header="decoded",
            names={"correct": "right or wrong", "congruent": "congruence"},
        ),
        _TRIALS,
        Column("smallest", "whole", "trials of the rarest class", optional=True),
        *(replace(column, optional=column.name == "floor") for column in DECODED),
    ),
)


def svm_table(
    model: Any, tokenizer: PreTrainedTokenizerBase, trials: Trials, *, shuffles: int = 20
) -> pd.DataFrame:
    """Linear SVM from every head's output (``hook_z``) at the last token: the columns of `SVM`.

    Accuracies are missing where a class has fewer than two trials of different cued numbers for
    every fold. Trials of the same cued numbers are held out together.
    """
    data = encode_trials(trials, tokenizer, max_length=longest_input(model))
    hooks = {hook_z(layer): layer for layer in range(ModelShape.of(model).n_layers)}
    outputs = activations_at(model, data, list(hooks))
    heads = {
        Component(layer, head): z
        for hook, layer in hooks.items()
        for head, z in enumerate(outputs[hook][:, 0].unbind(1))
    }
    answers = answers_of(model, data)
    frame = trials.frame.assign(choice=answers, correct=trials.frame["label"] == answers)
    pairs = trials.pairs["choice"]
    classes: dict[str, list[Any]] = {"choice": [*CHOICES], "correct": [True, False]}
    classes |= {"congruent": [True, False], "condition": [*CONDITIONS]}
    records: list[dict[Any, Any]] = []
    for target, known in classes.items():
        here = _as_many_wrong(frame) if target == "correct" else frame
        different = here.assign(pair=pairs).drop_duplicates([target, "pair"])
        smallest, fewest = (
            int(part[target].value_counts().reindex(known, fill_value=0).min())
            for part in (here, different)
        )
        of_target = {"target": target, "n": len(here), "smallest": smallest}
        if fewest < 2 * FOLDS:
            records += [{"site": head} | of_target for head in heads]
            continue
        rows = here.index.tolist()
        table = decode_table(
            {head: z[rows] for head, z in heads.items()},
            {target: here[target].tolist()},
            given={name: here[name].tolist() for name in ("choice", "congruent")},
            classifier="svm",
            groups=pairs.iloc[rows].tolist(),
            folds=FOLDS,
            shuffles=shuffles,
            seed=SEED,
        )
        records += [row | of_target for row in table.to_dict("records")]
    for row in records:
        head = row["site"]
        row |= {"component": str(head), "layer": head.layer, "head": head.head}
    return pd.DataFrame(records, columns=SVM.names)


def _as_many_wrong(frame: pd.DataFrame) -> pd.DataFrame:
    """As many trials that are answered right as wrong; none if all are one."""
    if frame["correct"].nunique() < 2:
        return frame.iloc[:0]
    return frame.iloc[balanced(frame["correct"].tolist(), seed=SEED)]


def answers_of(model: Any, data: EncodedExamples, *, batch_size: int = 64) -> list[str]:
    """Which of the two answers (`CHOICES`) the model gives to every encoded trial."""
    right = evaluate(model, data, in_domain=False, batch_size=batch_size).correct
    other = {"left": "right", "right": "left"}
    labels = data.examples.frame["label"]
    return [label if hit else other[label] for label, hit in zip(labels, right, strict=True)]
