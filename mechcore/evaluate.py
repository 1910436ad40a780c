"""Accuracy and margin of a model, masked or not, per subset, with paired bootstrap intervals."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechcore.components import Mask
from mechcore.errors import InputError, MechcoreWarning
from mechcore.interventions import Mode, masked
from mechcore.means import MeanActivations, as_batches
from mechcore.models.running import (
    Batch,
    class_names,
    forward,
    is_causal,
    last_real_position,
    model_inputs,
)
from mechcore.tasks.encoding import EncodedExamples
from mechcore.tasks.labels import LabelMap

ALL = "all"
"""Subset name of data without subsets, and of the row over all examples in tables."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model answered, example by example, in the order of the data.

    Attributes:
        logits: [example, class]; of the answer tokens for language models.
        correct_classes: which classes count as correct, [example, class].
        subsets: subset of every example.
        mapping: how labels were matched to classes, in words.
    """

    logits: Float[Tensor, "example cls"]
    correct_classes: Bool[Tensor, "example cls"]
    subsets: np.ndarray
    mapping: str

    @property
    def correct(self) -> np.ndarray:
        """Whether the class with the largest logit counts as correct, bool [example]."""
        best = self.logits.argmax(1, keepdim=True)
        return self.correct_classes.gather(1, best).squeeze(1).numpy()

    @property
    def margin(self) -> np.ndarray:
        """Log-odds of the set of correct classes, in nats, [example]; infinite if all are."""
        logits, correct = self.logits.double(), self.correct_classes
        right = logits.masked_fill(~correct, -torch.inf).logsumexp(1)
        wrong = logits.masked_fill(correct, -torch.inf).logsumexp(1)
        return (right - wrong).numpy()

    @property
    def accuracy(self) -> float:
        """Share of correct examples."""
        return float(self.correct.mean())

    @property
    def chance(self) -> float:
        """Expected accuracy of guessing uniformly among the classes."""
        return float(self.correct_classes.double().mean())

    @property
    def subset_names(self) -> list[str]:
        """Subsets in order of first appearance."""
        return list(dict.fromkeys(self.subsets.tolist()))

    @property
    def macro_accuracy(self) -> float:
        """Mean over subsets of the subset's accuracy."""
        return float(np.mean([self.correct[self.subsets == s].mean() for s in self.subset_names]))

    def table(self) -> pd.DataFrame:
        """One row per subset and one for all examples: subset, n, accuracy, margin (nats)."""
        rows = [(name, self.subsets == name) for name in self.subset_names]
        if len(rows) > 1 or rows[0][0] != ALL:
            rows.append((ALL, np.ones(len(self.subsets), dtype=bool)))
        return pd.DataFrame(
            {
                "subset": name,
                "n": int(where.sum()),
                "accuracy": self.correct[where].mean(),
                "margin": self.margin[where].mean(),
            }
            for name, where in rows
        )


def evaluate(
    model: Any,
    data: EncodedExamples | Iterable[Batch],
    *,
    mask: Mask | None = None,
    means: MeanActivations | None = None,
    mode: Mode = "mean",
    class_labels: Sequence[str] | None = None,
    in_domain: bool = True,
    batch_size: int = 64,
) -> Any:
    """Run ``data`` through ``model`` and compare the answers with the labels.

    Args:
        model: any TransformerLens model.
        data: encoded examples, or plain dicts of tokenizer outputs with ``labels``: class indices
            for classifiers, token ids [batch] for language models, read after the last real
            position.
        mask: components to mask; a batched mask gives one result per mask.
        means: the model's mean activations, see `mechcore.masked`.
        mode: what replaces ablated outputs, see `mechcore.masked`.
        class_labels: names of the classifier's classes in index order, in place of its own
            ``id2label``.
        in_domain: whether an accuracy under chance points to a wrong label mapping and is worth
            a warning; pass False for out-of-domain data, where it is a finding.
        batch_size: examples per batch, for encoded examples.

    Returns:
        An `Evaluation`, or a list of them for a batched mask.

    Raises:
        InputError: labels are missing or cannot be matched to the model's classes.
    """
    reader = _reader(model, data, class_labels)
    context: Any = nullcontext(None) if mask is None else masked(model, mask, means, mode)
    logits: list[Tensor] = []
    correct: list[Tensor] = []
    index: list[Tensor] = []
    with torch.no_grad(), context as run:
        for batch in as_batches(data, batch_size):
            answer = forward(model, batch) if run is None else run(batch)
            logits.append(reader.read(answer, model_inputs(model, batch)).float().cpu())
            correct.append(reader.correct(batch))
            index.append(batch.get("index", torch.arange(len(correct[-1])) + sum(map(len, index))))
    if not logits:
        raise InputError("evaluate: no batch; expected at least one")
    order = torch.cat(index).argsort()
    all_logits = torch.cat(logits, dim=-2)[..., order, :]
    all_correct = torch.cat(correct)[order]
    if isinstance(data, EncodedExamples):
        subsets = data.examples.frame["subset"].to_numpy(dtype=object)
    else:
        subsets = np.full(len(all_correct), ALL, dtype=object)
    results = [
        Evaluation(each, all_correct, subsets, reader.mapping)
        for each in (all_logits if mask is not None and mask.is_batched else [all_logits])
    ]
    if mask is None and in_domain:
        _warn_under_chance(results[0])
    return results if mask is not None and mask.is_batched else results[0]


class _Reader:
    """How to read answers and labels; one subclass per kind of model and data."""

    mapping: str

    def __init__(self, data: EncodedExamples | Iterable[Batch], names: Sequence[str] | None):
        self.labels: list[str] | None = None
        if isinstance(data, EncodedExamples):
            self.labels = data.examples.frame["label"].tolist()
            assert names is not None
            label_map = LabelMap.between(data.examples.label_names, names)
            self.matrix = label_map.matrix(self.labels)
            self.mapping = str(label_map)

    def correct(self, batch: Batch) -> Tensor:
        """Correct classes of a batch, [batch, class]."""
        if self.labels is not None:
            return self.matrix[batch["index"]]
        labels = batch.get("labels")
        if labels is None:
            raise InputError("batch: no labels; expected class indices (token ids for LMs)")
        labels = torch.as_tensor(labels).cpu()
        if labels.ndim != 1 or not 0 <= int(labels.min()) <= int(labels.max()) < self.n_classes:
            raise InputError(
                f"batch: labels {tuple(labels.shape)} from {int(labels.min())} to "
                f"{int(labels.max())}; expected one per example, from 0 to {self.n_classes - 1}"
            )
        return torch.nn.functional.one_hot(labels.long(), self.n_classes).bool()

    n_classes: int

    def read(self, logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits of the classes, [*masks, batch, class]."""
        raise NotImplementedError


class _ClassReader(_Reader):
    def __init__(self, model: Any, data: Any, names: Sequence[str]) -> None:
        super().__init__(data, names)
        self.n_classes = len(names)
        if self.labels is None:
            self.mapping = "; ".join(f"{i} -> {name}" for i, name in enumerate(names))

    def read(self, logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        return logits


class _AnswerReader(_Reader):
    """Reads a causal language model's answer tokens after the last real position."""

    def __init__(self, model: Any, data: Any) -> None:
        if not is_causal(model):
            raise InputError(
                f"model: {type(model).__name__} is a masked language model, which has no answer "
                "position; evaluate a sequence classifier or a causal language model"
            )
        answers = data.answers if isinstance(data, EncodedExamples) else None
        if isinstance(data, EncodedExamples) and answers is None:
            raise InputError(
                "examples: a language model needs answer words for the labels; encode them with a "
                "prompt and answers (--prompt, --answers)"
            )
        super().__init__(data, None if answers is None else list(answers))
        self.tokens = None if answers is None else torch.tensor(list(answers.values()))
        self.n_classes = model.cfg.d_vocab if answers is None else len(answers)
        if answers is None:
            self.mapping = "labels are token ids"

    def read(self, logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        last = last_real_position(inputs["attention_mask"])
        rows = torch.arange(len(last), device=last.device)
        final = logits[..., rows, last, :]
        return final if self.tokens is None else final[..., self.tokens.to(final.device)]


def _reader(model: Any, data: Any, class_labels: Sequence[str] | None) -> _Reader:
    names = class_names(model)
    if names is None:
        return _AnswerReader(model, data)
    if class_labels is not None and len(class_labels) != len(names):
        raise InputError(
            f"class names: {len(class_labels)} given ({', '.join(class_labels)}), but the "
            f"checkpoint has {len(names)} classes"
        )
    return _ClassReader(model, data, class_labels or names)


def _warn_under_chance(result: Evaluation) -> None:
    if result.accuracy < result.chance:
        warnings.warn(
            f"in-domain accuracy {result.accuracy:.3f} is under chance ({result.chance:.3f}): the "
            f"labels may be mapped wrongly. Mapping used: {result.mapping}. If the data is "
            "out-of-domain, pass in_domain=False",
            MechcoreWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class Interval:
    """A mean with a bootstrap percentile interval."""

    mean: float
    low: float
    high: float


def bootstrap_mean(
    values: np.ndarray, *, n_resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of the mean of ``values`` [example] over examples.

    For a paired interval of a difference, pass the differences example by example.

    Raises:
        InputError: there is no value.
    """
    values = np.asarray(values, dtype=float)
    if values.size == 0:
        raise InputError("bootstrap: no example; at least one is needed")
    return Interval(float(values.mean()), *_bootstrap(values[None], n_resamples, level, seed)[0])


def _bootstrap(
    values: np.ndarray, n_resamples: int, level: float, seed: int
) -> list[tuple[float, float]]:
    """Intervals for several rows [row, example] from the same resamples."""
    n = values.shape[1]
    generator = np.random.default_rng(seed)
    means = np.empty((len(values), n_resamples))
    for i in range(n_resamples):
        counts = np.bincount(generator.integers(n, size=n), minlength=n)
        means[:, i] = values @ counts / n
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=1)
    return list(zip(low.tolist(), high.tolist(), strict=True))
