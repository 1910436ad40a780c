"""Metrics: a number for the answer to every example, by name or as a function of one's own.

A metric is a function ``(logits, batch) -> values [batch]``. Of classifiers it gets the logits
[batch, class]; of language models those at the last real position, [batch, token], or with
``everywhere`` those at all positions, [batch, pos, token]. A batch has ``input_ids`` and
``attention_mask`` [batch, pos], ``index`` [batch], the number of every row's example, and, where
they are known, ``correct`` and ``wrong`` [batch, out]: which outputs are answers of either kind.

    @METRICS.register("entropy")
    def entropy(logits, batch):
        return torch.distributions.Categorical(logits=logits).entropy()

Data with labels are measured on their classes: the outputs are the classifier's, or the answers
that a language model was given. Other data are measured on the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Population
from mechcore.errors import InputError, NotFiniteError, shown
from mechcore.evaluation.evaluate import Sampled, is_correct, kl, margins
from mechcore.evaluation.readout import Readout
from mechcore.models.protocol import Batch, is_classifier
from mechcore.registry import Registry

Function: TypeAlias = Callable[[Tensor, Batch], Float[Tensor, " batch"]]
Need: TypeAlias = Literal["correct", "wrong", "full"]


@dataclass(frozen=True)
class Metric:
    """What is measured of the answer to every example.

    Attributes:
        name: in tables.
        function: of logits and a batch, see the module; it runs on the processor.
        unit: of its values.
        more_is_better: whether larger values are better; None where that is not said.
        needs: entries that a batch must have: ``"correct"`` and ``"wrong"`` answers, ``"full"``,
            the logits of the full model.
        everywhere: whether it reads the logits at all positions of a language model.
        among_answers: whether the logits of correct and wrong answers are all that it reads.
    """

    name: str
    function: Function
    unit: str = ""
    more_is_better: bool | None = None
    needs: tuple[Need, ...] = ()
    everywhere: bool = False
    among_answers: bool = False

    def __call__(
        self, logits: Float[Tensor, "batch *pos out"], batch: Batch
    ) -> Float[Tensor, " batch"]:
        """Its values.

        Raises:
            InputError: the function returned something else.
            NotFiniteError: a value is NaN or infinite.
        """
        values = self.function(logits, batch)
        n = len(batch["index"])
        if not torch.is_tensor(values) or values.shape != (n,):
            given = tuple(values.shape) if torch.is_tensor(values) else type(values).__name__
            raise InputError(
                f"metric {self.name!r}: returned {given} for logits {tuple(logits.shape)}; "
                f"expected a tensor ({n},), a value for every example"
            )
        bad = (~values.isfinite()).nonzero()
        if len(bad):
            raise NotFiniteError(
                f"metric {self.name!r}: is {float(values[bad[0, 0]])} for example "
                f"{int(batch['index'][bad[0, 0]])}; expected a finite number for every example: "
                "leave out examples that have none"
            )
        return values.detach().double()


MetricLike: TypeAlias = str | Metric | Function
"""The name of a metric, a metric, or a function that is one, see the module."""


def as_metric(metric: MetricLike) -> Metric:
    """The metric meant.

    Raises:
        InputError: there is none of that name, or a function has the name of another.
    """
    if isinstance(metric, str):
        registered = METRICS[metric]
        return registered if isinstance(registered, Metric) else Metric(metric, registered)
    if isinstance(metric, Metric):
        return metric
    if not callable(metric):
        raise InputError(
            f"metric: found {shown(repr(metric))}; expected one of {', '.join(METRICS)}, or a "
            "function of logits and a batch, see mechcore.evaluation.metrics"
        )
    name = getattr(metric, "__name__", type(metric).__name__)
    if name in METRICS and METRICS[name] is not metric:
        raise InputError(
            f"metric: the function is called {name!r}, as mechcore's own; expected another name: "
            f"rename it, or pass {name!r}"
        )
    return Metric(name, metric)


# -- what is read ---------------------------------------------------------------------------------


class Targets:
    """Which outputs a metric reads of a model, and which count as correct and as wrong.

    Args:
        metric: that is to be measured.
        model: any TransformerLens model.
        data: encoded examples, or batches.
        class_names: names of a classifier's classes, in place of its ``id2label``.

    Raises:
        InputError: the data lack what the metric needs, or the model does.
    """

    def __init__(
        self,
        metric: Metric,
        model: Any,
        data: EncodedExamples | list[Batch],
        class_names: Sequence[str] | None,
    ) -> None:
        self.metric, self.data = metric, data
        self.classes: Bool[Tensor, "example cls"] | None = None
        encoded = data if isinstance(data, EncodedExamples) else None
        prompts = encoded is not None and encoded.answers is None and not is_classifier(model)
        labelled = "correct" in metric.needs and not prompts
        if metric.everywhere or prompts:
            self._check(model, encoded)
            tokens = None
            if metric.among_answers and encoded is not None and encoded.wrong is not None:
                lists = [*(encoded.correct or ()), *encoded.wrong]
                tokens = sorted({token for row in lists for token in row})
            self.readout = Readout.of_tokens(model, tokens, everywhere=metric.everywhere)
        else:
            self.readout = Readout.of(model, data, class_names, labelled=labelled)
        if labelled:
            self.classes = self.readout.correct_classes(data)
            if "wrong" in metric.needs and self.readout.whole_vocabulary:
                raise _lacks(metric, "wrong")

    def _check(self, model: Any, data: EncodedExamples | None) -> None:
        metric = self.metric
        if is_classifier(model):
            raise InputError(
                f"metric {metric.name!r}: reads all positions of a language model; found a "
                "classifier: choose another metric"
            )
        for need in metric.needs:
            if need != "full" and getattr(data, need, None) is None:
                raise _lacks(metric, need)
        if metric.everywhere and "full" in metric.needs:
            raise InputError(
                f"metric {metric.name!r}: needs the full model's logits at all positions, which "
                "are not kept; expected one of the two, needs=('full',) or everywhere=True"
            )

    def of(self, index: Tensor) -> dict[str, Tensor]:
        """``correct`` and ``wrong`` answers of some examples, by number, [example, out]."""
        if self.classes is not None:
            correct = self.classes[index]
            return {"correct": correct, "wrong": ~correct}
        if not isinstance(self.data, EncodedExamples) or self.data.correct is None:
            return {}
        correct = self._flags(self.data.correct, index)
        if self.data.wrong is None:
            return {"correct": correct, "wrong": ~correct}
        return {"correct": correct, "wrong": self._flags(self.data.wrong, index)}

    def _flags(self, answers: Sequence[Sequence[int]], index: Tensor) -> Tensor:
        flags = torch.zeros(len(index), self.readout.n_classes, dtype=torch.bool)
        for row, number in enumerate(index.tolist()):
            tokens = torch.tensor(answers[number])
            if self.readout.tokens is not None:  # which are sorted
                tokens = torch.searchsorted(self.readout.tokens, tokens)
            flags[row, tokens] = True
        return flags


def _lacks(metric: Metric, need: str) -> InputError:
    return InputError(
        f"metric {metric.name!r}: the data have no {need} answers; expected rows with the columns "
        f"prompt and {need}, whose cells are words of one token each, or token ids"
    )


@dataclass(frozen=True, eq=False, repr=False)
class Measured(Sampled):
    """A metric of one model on every example.

    Attributes:
        metric: what was measured.
        by_example: its values, float64 [example].
        subsets, clusters, population: of the examples, see `Evaluation`.
    """

    metric: Metric
    by_example: Float[np.ndarray, " example"]
    subsets: np.ndarray
    clusters: np.ndarray | None = None
    population: Population = "clusters"

    def values(self, metric: str) -> Float[np.ndarray, " example"]:
        """The values; ``metric`` is what the caller takes them for.

        Raises:
            InputError: another metric was measured.
        """
        if metric != self.metric.name:
            raise InputError(f"metric {metric!r}: found values of {self.metric.name!r}")
        return self.by_example

    def part(self, rows: Any) -> Measured:
        """The values of these examples, see `Evaluation.part`."""
        clusters = None if self.clusters is None else self.clusters[rows]
        values, subsets = self.by_example[rows], self.subsets[rows]
        return Measured(self.metric, values, subsets, clusters, self.population)

    def __getattr__(self, name: str) -> Any:
        """Refuse what answers to labelled examples have.

        Raises:
            InputError: the attribute is one of theirs.
        """
        if name in ("logits", "correct", "correct_classes", "margin", "kl", "accuracy"):
            raise InputError(
                f"metric {self.metric.name!r}: has no {name}, which is asked for here; expected "
                "answers to labelled examples: leave metric out of mechcore.ablate"
            )
        raise AttributeError(name)

    def _summary(self) -> str:
        unit = f" {self.metric.unit}" if self.metric.unit else ""
        return f"n={len(self.subsets)}, {self.metric.name}={self.by_example.mean():.3f}{unit}"


# -- mechcore's own -------------------------------------------------------------------------------


def _among(logits: Tensor, batch: Batch) -> Tensor:
    """Logits of the answers; those of other outputs are minus infinity."""
    return logits.masked_fill(~(batch["correct"] | batch["wrong"]), -torch.inf)


def _accuracy(logits: Tensor, batch: Batch) -> Tensor:
    return is_correct(_among(logits, batch), batch["correct"]).double()


def _margin(logits: Tensor, batch: Batch) -> Tensor:
    return margins(_among(logits, batch), batch["correct"])


def _logit_difference(logits: Tensor, batch: Batch) -> Tensor:
    return _mean(logits, batch["correct"]) - _mean(logits, batch["wrong"])


def _mean(logits: Tensor, flags: Tensor) -> Tensor:
    return logits.double().masked_fill(~flags, 0).sum(-1) / flags.sum(-1)


def _logprob(logits: Tensor, batch: Batch) -> Tensor:
    wanted = logits.double().log_softmax(-1).masked_fill(~batch["correct"], -torch.inf)
    return wanted.logsumexp(-1)


def _rank(logits: Tensor, batch: Batch) -> Tensor:
    best = logits.masked_fill(~batch["correct"], -torch.inf).amax(-1, keepdim=True)
    return 1.0 + (logits > best).sum(-1)


def _kl(logits: Tensor, batch: Batch) -> Tensor:
    return kl(batch["full"], logits)


def _losses(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Losses of all tokens but the first, [batch, pos - 1], and which of them count."""
    ids, real = batch["input_ids"], batch["attention_mask"] != 0
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")
    return loss.double(), real[:, 1:] & real[:, :-1]


def _loss(logits: Tensor, batch: Batch) -> Tensor:
    loss, counts = _losses(logits, batch)
    return loss.masked_fill(~counts, 0).sum(1) / counts.sum(1)


def loss_at(*positions: int) -> Metric:
    """The mean loss of the tokens at some positions, given all before them, in nats.

    Args:
        positions: among the real tokens of a row: from 1, or from -1, the last, backwards.

    Raises:
        InputError: there is no position, or one is 0, the first token, which nothing predicts.
    """
    if not positions or 0 in positions:
        raise InputError(f"loss_at: found positions {positions}; expected some, none of them 0")

    def loss(logits: Tensor, batch: Batch) -> Tensor:
        losses, counts = _losses(logits, batch)
        lengths = counts.sum(1)
        first = counts.int().argmax(1)  # of a row padded on the left
        total = losses.new_zeros(len(losses))
        for position in positions:
            place = position - 1 if position > 0 else lengths + position
            outside = (place < torch.zeros_like(lengths)) | (place >= lengths)
            value = losses.gather(1, (first + place).clamp(0, losses.shape[1] - 1)[:, None])[:, 0]
            total = total + value.masked_fill(outside, torch.nan)
        return total / len(positions)

    name = f"loss at {', '.join(map(str, positions))}"
    return Metric(name, loss, "nats", False, everywhere=True)


_BOTH: tuple[Need, ...] = ("correct", "wrong")
ACCURACY = Metric("accuracy", _accuracy, "share", True, ("correct",), among_answers=True)
MARGIN = Metric("margin", _margin, "nats", True, ("correct",), among_answers=True)
LOGIT_DIFFERENCE = Metric(
    "logit_difference", _logit_difference, "logits", True, _BOTH, among_answers=True
)
LOGPROB = Metric("logprob", _logprob, "nats", True, ("correct",))
RANK = Metric("rank", _rank, "places", False, ("correct",))
KL = Metric("kl", _kl, "nats", False, ("full",))
LOSS = Metric("loss", _loss, "nats", False, everywhere=True)

METRICS: Registry[Metric | Function] = Registry(
    "metric",
    "mechcore.metrics",
    {
        name: f"mechcore.evaluation.metrics:{name.upper()}"
        for name in ("accuracy", "margin", "logit_difference", "logprob", "rank", "kl", "loss")
    },
)
"""Metrics by name.

- ``accuracy``: whether a correct answer has the largest logit among the answers, 0 or 1;
- ``margin``: log-odds of the correct among the answers, nats;
- ``logit_difference``: mean logit of the correct answers less that of the wrong ones;
- ``logprob``: log-probability of the correct answers together, nats;
- ``rank``: 1 and how many outputs have a larger logit than the best correct answer;
- ``kl``: KL(full model || ablated one) of the outputs, nats;
- ``loss``: mean loss of all tokens but the first, given those before, nats (see `loss_at`).

Where no wrong answers are given, all other outputs are wrong.
"""
