"""A few examples as the models of `helpers` read them."""

from collections.abc import Callable
from typing import Any

import helpers
import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from mechcore.ablation import Ablations
from mechcore.ablation.effects.information import INFORMATION
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


def of_margins(margin: Any, label: Any = 1, subsets: Any = "s", clusters: Any = None) -> Evaluation:
    """Answers of a model with these log-odds of the second of two classes, by default the right."""
    margin = np.asarray(margin, dtype=float)
    logits = torch.tensor(np.stack([np.zeros_like(margin), margin], axis=1))
    right = torch.tensor(np.eye(2, dtype=bool)[np.broadcast_to(label, margin.shape)])
    names = np.broadcast_to(np.asarray(subsets, dtype=object), margin.shape)
    return Evaluation(logits, right, names, "", clusters)


SMALL = 0.002
"""The standard error of a change that is known well."""


def information_rows(losses: Any, threshold: Any = None, shift: Any = None) -> pd.DataFrame:
    """Rows of losses of information with their standard errors, by a threshold and of shifts."""
    rows = []
    for name, (loss, error) in losses.items():
        row: dict[str, Any] = {"set": name, "reason": ""}
        moved, shifted = ((given or {}).get(name, 0.0) for given in (threshold, shift))
        figures = ("information", loss, error), ("threshold", moved, SMALL)
        for figure, value, spread in (*figures, ("shift", shifted, SMALL)):
            row |= {f"{figure}_change": -value, f"{figure}_change_se": spread}
            for end, sign in (("low", -1), ("high", 1)):
                row[f"{figure}_change_{end}"] = -value + sign * 1.96 * spread
            row[f"{figure}_p"] = 2 * stats.norm.sf(abs(value) / max(spread, 1e-9))
        rows.append(row)
    return pd.DataFrame(rows, columns=INFORMATION.required)


def means_of(model: Any, data: EncodedExamples, **options: Any) -> MeanActivations:
    return MeanActivations.compute(model, data, **{"n_samples": 0, **options})


def assert_close(swept: Ablations, expected: Ablations, atol: float = 2e-5) -> None:
    """The same answers of the full model and without every set, up to rounding."""
    assert list(swept.without) == list(expected.without)
    helpers.close(swept.full.logits, expected.full.logits, atol)
    for cut, wanted in expected.without.items():
        got = swept.without[cut]
        np.testing.assert_array_equal(got.correct, wanted.correct)
        np.testing.assert_allclose(got.margin, wanted.margin, rtol=0, atol=atol)
        np.testing.assert_allclose(got.kl, wanted.kl, rtol=0, atol=atol)
        if wanted.logits is not None:
            np.testing.assert_allclose(got.logits, wanted.logits, rtol=0, atol=atol)


class Runs:
    """Notes what runs, and interrupts or forbids the next run."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.stop_at: int | None = None
        self.error: type[BaseException] = KeyboardInterrupt

    def watched(self, what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if len(self.done) == self.stop_at:
                raise self.error
            self.done.append(what)
            return real(*args, **options)

        return run

    def until(self, stop_at: int | None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.done, self.stop_at, self.error = [], stop_at, error


def plain_logits(model: Any, data: EncodedExamples, means: Any, values: Tensor) -> Tensor:
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


def plain_margin(model: Any, data: EncodedExamples, means: Any, values: Tensor) -> Tensor:
    """Mean margin likewise."""
    total = torch.zeros(())
    logits = plain_logits(model, data, means, values)
    for row, label in zip(logits, data.examples.frame["label"], strict=True):
        classes = [model.config.id2label[i] for i in range(3)]
        right = [c != "entailment" if label == "non-entailment" else c == label for c in classes]
        flags = torch.tensor(right)
        total = total + row[flags].logsumexp(0) - row[~flags].logsumexp(0)
    return total / len(data)
