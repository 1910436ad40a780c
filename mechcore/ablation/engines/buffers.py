"""What engines write the answers of models to, set by set and example by example."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechcore.ablation.cuts import Cut
from mechcore.ablation.effects.changes import Ablations, Answers, Measurements
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.evaluate import evaluation_of, is_correct, kl, margins, sampled_as
from mechcore.evaluation.metrics import Measured, Targets
from mechcore.evaluation.readout import Readout
from mechcore.models.protocol import Batch


class Buffer(ABC):
    """Answers of the full model and of sets, filled by an engine; the full model's come first."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By name."""
        return {name: value for name, value in vars(self).items() if torch.is_tensor(value)}

    @abstractmethod
    def note_full(self, batch: Batch, logits: Float[Tensor, "example *pos out"]) -> None:
        """Take the full model's answers to the examples of a batch."""

    @abstractmethod
    def note(
        self,
        rows: Sequence[int] | Tensor,
        batch: Batch,
        logits: Float[Tensor, "set example *pos out"],
    ) -> None:
        """Take the answers of sets, by number, to the examples of a batch."""

    @abstractmethod
    def result(
        self, sets: Sequence[Cut], data: EncodedExamples | list[Batch], facts: Mapping[str, Any]
    ) -> Measurements:
        """All answers, by set, in the order of the job; ``facts`` are further attributes."""


class AnswerBuffer(Buffer):
    """Answers to labelled examples: of the full model [example], and of sets [set, example]."""

    def __init__(
        self, n_sets: int, readout: Readout, correct_classes: Bool[Tensor, "example cls"]
    ) -> None:
        self.readout, self._correct_classes = readout, [correct_classes]  # no tensor to be kept
        n_examples = len(correct_classes)
        self.full = torch.zeros(n_examples, readout.n_classes)
        self.correct = torch.zeros(n_sets, n_examples, dtype=torch.bool)
        self.margin = torch.zeros(n_sets, n_examples)
        self.kl = torch.zeros(n_sets, n_examples)
        n_kept = 0 if readout.whole_vocabulary else readout.n_classes
        self.logits = torch.zeros(n_sets, n_examples, n_kept)

    def note_full(self, batch: Batch, logits: Float[Tensor, "example cls"]) -> None:
        """See `Buffer.note_full`."""
        self.full[batch["index"]] = logits

    def note(
        self, rows: Sequence[int] | Tensor, batch: Batch, logits: Float[Tensor, "set example cls"]
    ) -> None:
        """See `Buffer.note`."""
        index = batch["index"]
        correct = self._correct_classes[0][index]
        place = (torch.as_tensor(rows)[:, None], index)
        self.correct[place] = is_correct(logits, correct)
        self.margin[place] = margins(logits, correct).float()
        self.kl[place] = kl(self.full[index], logits).float()
        self.logits[place] = logits[..., : self.logits.shape[-1]]

    def result(
        self, sets: Sequence[Cut], data: EncodedExamples | list[Batch], facts: Mapping[str, Any]
    ) -> Ablations:
        """See `Buffer.result`."""
        full = evaluation_of(self.full, self._correct_classes[0], data, self.readout.mapping)
        rows = (self.correct.numpy(), self.margin.numpy(), self.kl.numpy(), self.logits.numpy())
        by_set = {cut: Answers(*(row[i] for row in rows)) for i, cut in enumerate(sets)}
        if not self.logits.shape[-1]:
            by_set = {cut: replace(answers, logits=None) for cut, answers in by_set.items()}
        return Ablations(full, by_set, **facts)


class MetricBuffer(Buffer):
    """A metric of the full model [example] and of sets [set, example]."""

    def __init__(self, n_sets: int, n_examples: int, targets: Targets) -> None:
        self.targets, self.metric = targets, targets.metric
        self.full = torch.zeros(n_examples, dtype=torch.float64)
        self.values = torch.zeros(n_sets, n_examples, dtype=torch.float64)
        n_kept = targets.readout.n_classes if "full" in self.metric.needs else 0
        self.logits = torch.zeros(n_examples, n_kept)

    def _asked(self, batch: Batch) -> dict[str, Any]:
        """What the metric gets beside logits."""
        known: Mapping[str, Tensor] = {name: value.cpu() for name, value in batch.items()}
        full = {"full": self.logits[batch["index"]]} if self.logits.shape[-1] else {}
        return {**known, **self.targets.of(batch["index"]), **full}

    def note_full(self, batch: Batch, logits: Float[Tensor, "example *pos out"]) -> None:
        """See `Buffer.note_full`."""
        if self.logits.shape[-1]:
            self.logits[batch["index"]] = logits
        self.full[batch["index"]] = self.metric(logits, self._asked(batch))

    def note(
        self,
        rows: Sequence[int] | Tensor,
        batch: Batch,
        logits: Float[Tensor, "set example *pos out"],
    ) -> None:
        """See `Buffer.note`."""
        asked = self._asked(batch)
        for row, of_set in zip(torch.as_tensor(rows).tolist(), logits, strict=True):
            self.values[row, batch["index"]] = self.metric(of_set, asked)

    def result(
        self, sets: Sequence[Cut], data: EncodedExamples | list[Batch], facts: Mapping[str, Any]
    ) -> Measurements:
        """See `Buffer.result`."""
        sample = sampled_as(data, len(self.full))
        full = Measured(self.metric, self.full.numpy(), *sample)
        values = zip(sets, self.values.numpy(), strict=True)
        without = {cut: Measured(self.metric, row, *sample) for cut, row in values}
        return Measurements(full, without, **facts)
