"""Metrics of the answer to every example, by name or as functions of one's own: see `METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Population
from mechcore.errors import InputError, NotFiniteError, shown
from mechcore.evaluation.evaluate import Data, Sampled, is_correct, kl, margins
from mechcore.evaluation.readout import Readout
from mechcore.models.encoded import as_data
from mechcore.models.protocol import Batch, is_causal, is_classifier
from mechcore.registry import Registry
from mechcore.source_code import code_digests

Function: TypeAlias = Callable[[Tensor, Batch], Float[Tensor, " batch"]]
Need: TypeAlias = Literal["correct", "wrong", "full"]


@dataclass(frozen=True)
class Metric:
    """What is measured of the answer to every example.

    Attributes:
        function: of logits and a batch, both on the CPU.
        more_is_better: None where that is not said.
        needs: ``"correct"`` and ``"wrong"`` answers; ``"full"``, the full model's logits.
        everywhere: whether it reads the logits at all positions of a language model.

    Raises:
        InputError: the name is that of a column of tables.
    """

    name: str
    function: Function
    unit: str = ""
    more_is_better: bool | None = None
    needs: tuple[Need, ...] = ()
    everywhere: bool = False

    def __post_init__(self) -> None:
        if self.name in ("set", "kind", "size", "data", "split", "subset", "n"):
            raise InputError(
                f"metric {self.name!r}: tables have such a column; choose another name"
            )

    @property
    def worse(self) -> int:
        """The sign of changes for the worse; negative where that is not said."""
        return 1 if self.more_is_better is False else -1

    def __call__(
        self, logits: Float[Tensor, "batch *pos out"], batch: Batch
    ) -> Float[Tensor, " batch"]:
        """Its values; raises an InputError or NotFiniteError where the function returned others."""
        values, n = self.function(logits, batch), len(batch["index"])
        if not torch.is_tensor(values) or values.shape != (n,):
            given = tuple(values.shape) if torch.is_tensor(values) else type(values).__name__
            raise InputError(
                f"metric {self.name!r}: returned {given} for logits {tuple(logits.shape)}; "
                f"expected a tensor ({n},), a value for every example"
            )
        if len(bad := (~values.isfinite()).nonzero()):
            raise NotFiniteError(
                f"metric {self.name!r}: is {float(values[bad[0, 0]])} for example "
                f"{int(batch['index'][bad[0, 0]])}; expected a finite number: leave it out"
            )
        return values.double()


MetricLike: TypeAlias = str | Metric | Function
"""The name of a metric, a metric, or a function that is one, see `METRICS`."""


def as_metric(metric: MetricLike) -> Metric:
    """The metric meant; an InputError for an unknown name, or a function with a taken one."""
    if isinstance(metric, str):
        registered = METRICS[metric]
        return registered if isinstance(registered, Metric) else Metric(metric, registered)
    if isinstance(metric, Metric):
        return metric
    name = getattr(metric, "__name__", type(metric).__name__)
    if callable(metric) and name not in METRICS:
        return Metric(name, metric)
    raise InputError(
        f"metric: found {shown(repr(metric))}; expected one of {', '.join(METRICS)}, or a function "
        "of logits and a batch with another name, see mechcore.evaluation.metrics"
    )


def directed(metric: Metric, what: str) -> Metric:
    """The metric; an InputError, on ``what``, if it does not say whether more is better."""
    if metric.more_is_better is None:
        raise InputError(
            f"{what}: metric {metric.name!r} does not say whether more is better; expected "
            "mechcore.evaluation.metrics.Metric(name, function, more_is_better=...)"
        )
    return metric


def metric_key(metric: MetricLike | None, state: str | Path | None) -> dict[str, Any]:
    """What tells unfinished work by this metric from other work, if ``state`` keeps any."""
    if metric is None or state is None:
        return {}
    if not isinstance(metric, str):
        raise InputError("state: to resume, a metric needs a name; register this one in METRICS")
    return {"metric": [metric, code_digests([as_metric(metric).function])]}


def data_for(
    metric: Metric | None, model: Any, data: Any, split: str
) -> EncodedExamples | Iterable[Batch]:
    """Data as a metric reads them, labelled only if it needs that; texts are prompts to measure."""
    texts = isinstance(data, (list, tuple)) and all(isinstance(text, str) for text in data)
    if metric is not None and texts and is_causal(model) and not is_classifier(model):
        data = [{"prompt": text} for text in data]
    labelled = metric is None or "correct" in metric.needs
    return as_data(model, data, split, labelled=labelled)


# -- what is read ---------------------------------------------------------------------------------


class Targets:
    """What a metric reads, and what is correct and wrong, or an `InputError` if unknown."""

    def __init__(
        self, metric: Metric, model: Any, data: Data, class_names: Sequence[str] | None
    ) -> None:
        self.metric, self.classes = metric, None
        self.prompts = data if isinstance(data, EncodedExamples) and data.answers is None else None
        if is_classifier(model) or not (metric.everywhere or self.prompts):
            self.prompts, labelled = None, "correct" in metric.needs
            self.readout = Readout.of(model, data, class_names, labelled=labelled)
            self.classes = self.readout.correct_classes(data) if labelled else None
        else:
            self.readout = Readout.of_vocabulary(model, everywhere=metric.everywhere)
        whole = self.readout.whole_vocabulary
        wanted = [need for need in metric.needs if need != "full"]
        missing = [need for need in wanted if getattr(self.prompts, need, None) is None]
        if missing and (self.classes is None or ("wrong" in missing and whole)):
            raise InputError(
                f"metric {metric.name!r}: the data have no {missing[-1]} answers; expected rows "
                f"with the columns prompt and {missing[-1]}, see mechcore.models.encoded"
            )
        if metric.everywhere and (is_classifier(model) or "full" in metric.needs):
            raise InputError(
                f"metric {metric.name!r}: reads all positions; expected a language model, and no "
                "need of the full model's logits, which are not kept there"
            )

    def of(self, index: Tensor) -> dict[str, Bool[Tensor, "example out"]]:
        """``correct`` and ``wrong`` answers of some examples, by number, where they are known."""
        if self.classes is not None:
            return {"correct": self.classes[index], "wrong": ~self.classes[index]}
        if self.prompts is None or self.prompts.correct is None:
            return {}
        correct, given = self._flags(self.prompts.correct, index), self.prompts.wrong
        wrong = ~correct if given is None else self._flags(given, index)
        return {"correct": correct, "wrong": wrong}

    def asked(self, batch: Batch, full: Tensor | None = None) -> dict[str, Tensor]:
        """What the metric gets beside logits: the batch and its answers, and the full logits."""
        known = {name: values.cpu() for name, values in batch.items()} | self.of(batch["index"])
        return known if full is None else known | {"full": full.cpu()}

    def _flags(self, answers: Sequence[Sequence[int]], index: Tensor) -> Tensor:
        flags = torch.zeros(len(index), self.readout.n_classes, dtype=torch.bool)
        for row, number in zip(flags, index.tolist(), strict=True):
            row[[*answers[number]]] = True
        return flags


@dataclass(frozen=True, eq=False, repr=False)
class Measured(Sampled):
    """A metric of one model on every example, float64; the rest is as in `Evaluation`."""

    metric: Metric
    by_example: Float[np.ndarray, " example"]
    subsets: np.ndarray
    clusters: np.ndarray | None = None
    population: Population = "clusters"

    def values(self, metric: str) -> Float[np.ndarray, " example"]:
        """The values of ``metric``; refuses another than was measured."""
        if metric != self.metric.name:
            raise InputError(f"metric {metric!r}: found values of {self.metric.name!r}")
        return self.by_example

    def __getattr__(self, name: str) -> Any:
        """Refuse what answers to labelled examples have, with an InputError."""
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
    """Whether a correct answer has the largest logit among the answers."""
    return is_correct(_among(logits, batch), batch["correct"]).double()


def _margin(logits: Tensor, batch: Batch) -> Tensor:
    """Log-odds of the correct ones among the answers."""
    return margins(_among(logits, batch), batch["correct"])


def _logit_difference(logits: Tensor, batch: Batch) -> Tensor:
    """Mean logit of the correct answers less that of the wrong ones."""
    correct, wrong = (
        logits.double().masked_fill(~batch[kind], 0).sum(-1) / batch[kind].sum(-1)
        for kind in ("correct", "wrong")
    )
    return correct - wrong


def _logprob(logits: Tensor, batch: Batch) -> Tensor:
    """Log-probability of the correct answers together."""
    wanted = logits.double().log_softmax(-1).masked_fill(~batch["correct"], -torch.inf)
    return wanted.logsumexp(-1)


def _rank(logits: Tensor, batch: Batch) -> Tensor:
    """One more than there are outputs with a larger logit than the best correct answer."""
    best = logits.masked_fill(~batch["correct"], -torch.inf).amax(-1, keepdim=True)
    return 1.0 + (logits > best).sum(-1)


def _kl(logits: Tensor, batch: Batch) -> Tensor:
    """KL(full model || ablated one) of the outputs."""
    return kl(batch["full"], logits)


def _loss(logits: Tensor, batch: Batch) -> Tensor:
    """Mean loss of all real tokens but the first, given those before."""
    ids, real = batch["input_ids"], batch["attention_mask"] != 0
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")
    counts = real[:, 1:] & real[:, :-1]
    return loss.double().masked_fill(~counts, 0).sum(1) / counts.sum(1)


_BOTH: tuple[Need, ...] = ("correct", "wrong")
ACCURACY = Metric("accuracy", _accuracy, "share", True, ("correct",))
MARGIN = Metric("margin", _margin, "nats", True, ("correct",))
LOGIT_DIFFERENCE = Metric("logit_difference", _logit_difference, "logits", True, _BOTH)
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
"""Metrics by name; where no wrong answers are given, all other outputs are wrong.

A metric is a function ``(logits, batch) -> values [batch]``. Of classifiers it gets the logits
[batch, class]; of language models those at the last real position, [batch, token], or with
``everywhere`` those at all positions, [batch, pos, token]. Of data with labels, a language model's
outputs are the answers that it was given. A batch has ``input_ids`` and ``attention_mask``
[batch, pos], ``index`` [batch], the number of every row's example, and, where they are known,
``correct`` and ``wrong`` [batch, out].

    @METRICS.register("entropy")
    def entropy(logits, batch):
        return torch.distributions.Categorical(logits=logits).entropy()
"""
