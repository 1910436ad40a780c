"""A few examples as the models of `helpers` read them."""

from __future__ import annotations

from typing import Any

import helpers
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.evaluation.evaluate import Evaluation
from mechcore.masking.means import MeanActivations

ANSWERS = {"entailment": "yes", "contradiction": "no", "neutral": "never"}
PAIRS = [
    ("the cat saw a dog", "the cat saw", "entailment"),
    ("a bird ran", "the bird ran quickly , and a cat saw the dog", "neutral"),
    ("never", "often", "contradiction"),
    ("the dog who saw a cat ran here", "no", "non-entailment"),
    ("if a bird ran the dog saw a cat", "the cat never ran", "neutral"),
    ("yes", "no , not here", "entailment"),
    ("a dog ran", "a dog ran", "contradiction"),
]


def encoded(name: str = "bert") -> EncodedExamples:
    """Seven examples as a model of `helpers` reads them."""
    first, second, labels = zip(*PAIRS, strict=True)
    subsets = ["u", "v", "u", "v", "v", "v", "u"]
    frame = pd.DataFrame({"text_a": first, "text_b": second, "label": labels, "subset": subsets})
    options: dict[str, Any] = {}
    if name == "gpt2-lm":
        options = {"prompt": "{a} , {b} .", "answers": ANSWERS}
    tokenizer = helpers.word_tokenizer(segments=name == "bert")
    return encode(Examples("few", frame), tokenizer, max_length=48, **options)


def of_margins(
    margin: Any, label: Any = 1, subsets: Any = "s", clusters: np.ndarray | None = None
) -> Evaluation:
    """Answers of a model with these log-odds of the second of two classes, by default the right."""
    margin = np.asarray(margin, dtype=float)
    logits = torch.tensor(np.stack([np.zeros_like(margin), margin], axis=1))
    right = torch.tensor(np.eye(2, dtype=bool)[np.broadcast_to(label, margin.shape)])
    names = np.broadcast_to(np.asarray(subsets, dtype=object), margin.shape)
    return Evaluation(logits, right, names, "", clusters)


def means_of(model: Any, data: EncodedExamples, **options: Any) -> MeanActivations:
    return MeanActivations.compute(model, data, **{"n_samples": 0, **options})


def plain_logits(
    model: Any, data: EncodedExamples, means: MeanActivations, values: Tensor
) -> Tensor:
    """Logits [example, class] of Hugging Face's ``model`` under mask values, by torch hooks."""

    def on_z(layer: int, z: Tensor) -> Tensor:
        fill = means.z[layer].to(z)
        return fill + values[layer, :-1, None].to(z) * (z - fill)

    def on_mlp(layer: int, x: Tensor) -> Tensor:
        fill = means.mlp[layer].to(x)
        return fill + values[layer, -1].to(x) * (x - fill)

    rows = []
    with helpers.torch_hooks(model, on_z, on_mlp):
        for i, ids in enumerate(data.input_ids):
            inputs = {"input_ids": torch.tensor([ids])}
            if data.token_type_ids is not None:
                inputs["token_type_ids"] = torch.tensor([data.token_type_ids[i]])
            rows.append(model(**inputs).logits[0])
    return torch.stack(rows)


def plain_margin(
    model: Any, data: EncodedExamples, means: MeanActivations, values: Tensor
) -> Tensor:
    """Mean margin likewise."""
    total = torch.zeros(())
    logits = plain_logits(model, data, means, values)
    for row, label in zip(logits, data.examples.frame["label"], strict=True):
        classes = [model.config.id2label[i] for i in range(3)]
        right = [c != "entailment" if label == "non-entailment" else c == label for c in classes]
        flags = torch.tensor(right)
        total = total + row[flags].logsumexp(0) - row[~flags].logsumexp(0)
    return total / len(data)
