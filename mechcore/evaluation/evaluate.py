"""Accuracy and margin of a model, masked or not, per subset, with paired intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import Self, Unpack

from mechcore.components import Mask
from mechcore.data.encoding import EncodedExamples, as_batches
from mechcore.data.examples import ALL, Population
from mechcore.errors import InputError, NotFiniteError, warn
from mechcore.evaluation.intervals import Interval, Sample, Statistics, mean_intervals
from mechcore.evaluation.readout import Readout
from mechcore.masking.fills import FillMaker
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_data
from mechcore.models.finite import check_finite
from mechcore.models.model_identity import check_is_mask
from mechcore.models.protocol import Batch, forward, model_inputs
from mechcore.session import plain_session
from mechcore.showing import Shown

MAX_ROWS = 1024
"""Most rows of one forward, examples times masks; further masks run after one another."""


ClassMetric: TypeAlias = Literal["accuracy", "margin"]
CLASS_METRICS: tuple[ClassMetric, ...] = get_args(ClassMetric)
"""Metrics of answers to labelled examples; others are in `mechcore.evaluation.metrics`."""

Data: TypeAlias = EncodedExamples | list[Batch]
Logits: TypeAlias = Float[Tensor, "*masks example cls"]
Correct: TypeAlias = Bool[Tensor, "example cls"]
ByExample: TypeAlias = Float[Tensor, "*masks example"]


class ByExampleAnswers(Shown):
    """A dataclass of answers, whose arrays have a row for every example."""

    def part(self, rows: Any) -> Self:
        """The answers to these examples, in the order given; one may be there several times."""
        arrays = {name: of for name, of in vars(self).items() if hasattr(of, "shape")}
        return replace(self, **{name: of[rows] for name, of in arrays.items()})  # type: ignore[type-var]

    def values(self: Any, metric: str) -> Float[np.ndarray, " example"]:
        """``correct`` as 0 and 1 for ``"accuracy"``, or ``margin``; an InputError for others."""
        if metric not in CLASS_METRICS:
            known = " or ".join(map(repr, CLASS_METRICS))
            raise InputError(f"metric is {metric!r}; expected {known}")
        return (self.correct if metric == "accuracy" else self.margin).astype(float)


class Sampled(ByExampleAnswers):
    """Answers to examples with their subsets, and clusters where these are known."""

    subsets: np.ndarray
    clusters: np.ndarray | None
    population: Population

    @property
    def subset_names(self) -> list[str]:
        """Subsets in order of first appearance."""
        return list(dict.fromkeys(self.subsets.tolist()))

    def samples(self, rows: Any = slice(None)) -> dict[str, Sample]:
        """How examples were drawn; ``"other_"`` is for the other population than intervals are."""
        if self.clusters is None:
            return {"": Sample()}
        both = [Sample(self.clusters[rows]), Sample(strata=self.subsets[rows])]
        if self.population == "texts":
            both.reverse()
        return {"": both[0], "other_": both[1]}

    def groups(
        self, named: Mapping[str, Sequence[str]] | None = None
    ) -> list[tuple[str, Bool[np.ndarray, " example"]]]:
        """Which examples are in every subset, in all, and in groups, or an `InputError`."""
        names = self.subset_names
        members = {name: self.subsets == name for name in names}
        members[ALL] = np.ones(len(self.subsets), dtype=bool)
        for group, parts in (named or {}).items():
            unknown = [name for name in parts if name not in names]
            if unknown or not parts or group in (*names, ALL):
                wrong = f"subset {unknown[0]!r}" if unknown else f"{len(parts)} subsets"
                raise InputError(
                    f"group {group!r}: found {wrong}; expected some of {', '.join(names)}, under a "
                    f"name that is none of theirs, nor {ALL!r}, the name for all examples"
                )
            members[group] = np.isin(self.subsets.astype(str), list(parts))
        return [*members.items()]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Sampled):
    """What a model answered, example by example, in the order of the data.

    Attributes:
        logits: [example, class]; log-probabilities for answers of several tokens.
        mapping: how labels were matched to classes, in words.
        clusters: number of the cluster of every example, if known.
        population: what intervals are for, see `mechcore.evaluation.intervals`.

    Raises:
        NotFiniteError: a logit is not finite, except minus infinity for a class that always has it
            and is never correct.
    """

    logits: Float[Tensor, "example cls"]
    correct_classes: Bool[Tensor, "example cls"]
    subsets: np.ndarray
    mapping: str
    clusters: np.ndarray | None = None
    population: Population = "clusters"

    def __post_init__(self) -> None:
        check_finite(self.logits, range(len(self.logits)), never=True)
        said, correct = self.logits > -torch.inf, self.correct_classes
        for side in (correct, ~correct):
            empty = (side.any(-1) & ~(said & side).any(-1)).nonzero()
            if len(empty):
                which = "correct" if side is correct else "wrong"
                raise NotFiniteError(
                    f"evaluation: example {int(empty[0])} has the logit minus infinity for all of "
                    f"its {which} classes, so its log-odds are infinite; expected a finite one"
                )

    @property
    def correct(self) -> np.ndarray:
        """Whether the class with the largest logit counts as correct, bool [example]."""
        return is_correct(self.logits, self.correct_classes).numpy()

    @property
    def margin(self) -> np.ndarray:
        """Log-odds of the set of correct classes, in nats, [example]; infinite if all are."""
        return margins(self.logits, self.correct_classes).numpy()

    @property
    def accuracy(self) -> float:
        """Share of correct examples."""
        return float(self.correct.mean())

    @property
    def chance(self) -> float:
        """Expected accuracy of guessing uniformly among the classes."""
        return float(self.correct_classes.double().mean())

    @property
    def macro_accuracy(self) -> float:
        """Mean over subsets of the subset's accuracy."""
        return float(np.mean([self.correct[self.subsets == s].mean() for s in self.subset_names]))

    def table(self) -> pd.DataFrame:
        """One row per subset and one for all examples: subset, n, accuracy, margin (nats)."""
        return pd.DataFrame(
            {
                "subset": name,
                "n": int(where.sum()),
                "accuracy": self.correct[where].mean(),
                "margin": self.margin[where].mean(),
            }
            for name, where in self.groups()
        )

    def _summary(self) -> str:
        margin = f"margin={self.margin.mean():.3f} nats"
        return f"n={len(self.subsets)}, accuracy={self.accuracy:.3f}, {margin}"

    _rows = table


def is_correct(logits: Logits, correct: Correct) -> Bool[Tensor, "*masks example"]:
    """Whether the class with the largest logit counts as correct."""
    best = logits.argmax(-1, keepdim=True)
    return correct.expand(logits.shape).gather(-1, best).squeeze(-1)


def margins(logits: Logits, correct: Correct) -> ByExample:
    """Log-odds of the set of correct classes, float64, in nats."""
    logits = logits.double()
    right = logits.masked_fill(~correct, -torch.inf).logsumexp(-1)
    return right - logits.masked_fill(correct, -torch.inf).logsumexp(-1)


def kl(full: Float[Tensor, "example cls"], other: Logits) -> ByExample:
    """KL(full || other) between class distributions, float64, in nats."""
    wanted, got = full.double().log_softmax(-1), other.double().log_softmax(-1)
    terms = wanted.exp() * (wanted - got)
    return terms.masked_fill(wanted == -torch.inf, 0).sum(-1)  # 0 log 0 is 0


@plain_session()
def evaluate(
    model: Any,
    data: Any,
    *,
    mask: Mask | None = None,
    means: MeanActivations | None = None,
    fill: FillMaker = "mean",
    class_names: Sequence[str] | None = None,
    in_domain: bool = True,
    batch_size: int = 64,
    seed: int = 0,
) -> Any:
    """Run ``data`` through ``model`` and compare the answers with the labels.

    - ``data``: examples of any form, see `mechcore.data.given`; or batches of tokenizer outputs
      with ``labels`` [batch]: class indices, or token ids that follow the last real position.
    - ``mask``, ``means``, ``fill``, ``seed`` (of its draws): see `mechcore.masked`.
    - ``class_names``: names of a classifier's classes, in place of its ``id2label``.
    - ``in_domain``: which split of a task is meant, and whether an accuracy under chance warns.

    Returns an `Evaluation`, or for a batched mask a list of them.

    Raises:
        InputError: labels are missing or cannot be matched to the model's classes.
        NotFiniteError: a logit is NaN or infinite.
    """
    data = as_data(model, data, "id" if in_domain else "ood")
    readout = Readout.of(model, data, class_names)
    if not isinstance(data, EncodedExamples):
        data = list(as_batches(data))
    parts = [mask]
    if mask is not None:
        check_is_mask(mask)
        if mask.is_batched:
            size = max(1, MAX_ROWS // batch_size)
            parts = [mask[i : i + size] for i in range(0, len(mask), size)]
    batches = list(as_batches(data, batch_size))
    if not batches:
        raise InputError("evaluate: no batch; expected at least one")
    answers = []
    for part in parts:
        context = running(model, part, means, fill, seed)
        logits = torch.cat([of for _, of in forwards(model, readout, batches, context)], dim=-2)
        if isinstance(data, EncodedExamples):
            logits = logits[..., torch.cat([batch["index"] for batch in batches]).argsort(), :]
        answers.append(logits)
    correct = readout.correct_classes(data)
    results = [
        evaluation_of(logits, correct, data, readout.mapping)
        for part in answers
        for logits in (part if part.ndim == 3 else [part])
    ]
    if mask is None and in_domain:
        warn_under_chance(results[0])
    return results if mask is not None and mask.is_batched else results[0]


def running(
    model: Any, mask: Mask | None, means: MeanActivations | None, fill: FillMaker, seed: int
) -> Any:
    """A context that gives what runs batches: the model, or the masked one."""
    if mask is None:
        return nullcontext(partial(forward, model))
    return masked(model, mask, means, fill, seed=seed)


def forwards(
    model: Any, readout: Readout, batches: Iterable[Batch], context: Any
) -> Iterator[tuple[Batch, Logits]]:
    """Batches with the logits of the classes, from what ``context`` gives."""
    n = 0
    with torch.no_grad(), context as run:
        for batch in batches:
            asked = readout.asked(batch)  # with the words that a fill may read
            inputs = model_inputs(model, asked)
            rows = batch.get("index", range(n, n + len(inputs["input_ids"])))
            n += len(rows)
            yield batch, readout.read(run(asked), inputs, rows).float().cpu()


def evaluation_of(logits: Logits, correct: Correct, data: Data, mapping: str) -> Evaluation:
    """Answers to these data, with their subsets and clusters."""
    subsets, clusters, population = sampled_as(data, len(logits))
    return Evaluation(logits, correct, subsets, mapping, clusters, population)


def sampled_as(data: Data, n_examples: int) -> tuple[np.ndarray, np.ndarray | None, Population]:
    """Subsets, clusters and population of data."""
    if not isinstance(data, EncodedExamples):
        return np.full(n_examples, ALL, dtype=object), None, "clusters"
    examples = data.examples
    subsets = examples.frame["subset"].to_numpy(dtype=object)
    return subsets, examples.clusters, examples.population


def warn_under_chance(result: Evaluation) -> None:
    """Warn if in-domain accuracy is so low that labels may be mapped wrongly."""
    if result.accuracy < result.chance:
        warn(
            f"in-domain accuracy {result.accuracy:.3f} is under chance ({result.chance:.3f}): the "
            f"labels may be mapped wrongly. Mapping used: {result.mapping}. If the data is out of "
            "domain, say so (--ood; in Python in_domain=False)"
        )


def paired_change(
    full: Evaluation,
    other: Evaluation,
    metric: ClassMetric = "accuracy",
    **statistics: Unpack[Statistics],
) -> Interval:
    """Accuracy (a share) or margin (nats) of ``other`` minus that of ``full``, by example."""
    if not torch.equal(full.correct_classes, other.correct_classes):
        raise InputError(
            f"paired change: evaluations of {len(full.subsets)} and {len(other.subsets)} examples "
            "with different labels; expected two evaluations of the same examples"
        )
    changes, clusters = other.values(metric) - full.values(metric), full.samples()[""]
    answers = metric == "accuracy"
    return mean_intervals(changes[None], answers=answers, clusters=clusters, **statistics)[0]
