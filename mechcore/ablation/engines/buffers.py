"""What engines write the answers of models to, set by set and example by example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechcore.ablation.effects.changes import Ablations, Answers
from mechcore.ablation.sets import Cut
from mechcore.evaluation.evaluate import Data, evaluation_of, is_correct, kl, margins, sampled_as
from mechcore.evaluation.metrics import Measured, Targets
from mechcore.evaluation.readout import Readout
from mechcore.models.protocol import Batch

OfSets: TypeAlias = Float[Tensor, "set example *pos out"]


class AnswerBuffer:
    """Answers of the full model [example] and of sets [set, example], filled by an engine."""

    def __init__(self, n_sets: int, readout: Readout, labels: Bool[Tensor, "example cls"]) -> None:
        n_examples = len(labels)
        self.full = torch.zeros(n_examples, readout.n_classes)
        self.correct = torch.zeros(n_sets, n_examples, dtype=torch.bool)
        self.margin = torch.zeros(n_sets, n_examples)
        self.kl = torch.zeros(n_sets, n_examples)
        n_kept = 0 if readout.whole_vocabulary else readout.n_classes
        self.logits = torch.zeros(n_sets, n_examples, n_kept)
        self._readout, self._labels = readout, labels

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By name."""
        return {name: values for name, values in vars(self).items() if name[0] != "_"}

    def note_full(self, batch: Batch, logits: Float[Tensor, "example *pos out"]) -> None:
        """Take the full model's answers to a batch, before those of sets."""
        self.full[batch["index"]] = logits

    def note(self, rows: Sequence[int] | Tensor, batch: Batch, logits: OfSets) -> None:
        """Take the answers of sets, by number, to the examples of a batch."""
        index = batch["index"]
        correct, place = self._labels[index], (torch.as_tensor(rows)[:, None], index)
        self.correct[place] = is_correct(logits, correct)
        self.margin[place] = margins(logits, correct).float()
        self.kl[place] = kl(self.full[index], logits).float()
        self.logits[place] = logits[..., : self.logits.shape[-1]]

    def ablations(self, sets: Sequence[Cut], examples: Data, **facts: Any) -> Ablations:
        """The answers by set, in the order of the job; ``facts`` are further attributes."""
        full = evaluation_of(self.full, self._labels, examples, self._readout.mapping)
        rows = (self.correct.numpy(), self.margin.numpy(), self.kl.numpy(), self.logits.numpy())
        by_set = {cut: Answers(*(row[i] for row in rows)) for i, cut in enumerate(sets)}
        if not self.logits.shape[-1]:
            by_set = {cut: replace(answers, logits=None) for cut, answers in by_set.items()}
        return Ablations(full, by_set, **facts)


class MetricBuffer(AnswerBuffer):
    """A metric of the full model [example] and of sets [set, example]."""

    def __init__(self, n_sets: int, n_examples: int, targets: Targets) -> None:
        self.full = torch.zeros(n_examples, dtype=torch.float64)
        self.values = torch.zeros(n_sets, n_examples, dtype=torch.float64)
        n_kept = targets.readout.n_classes if "full" in targets.metric.needs else 0
        self.full_logits = torch.zeros(n_examples, n_kept)
        self._targets, self._metric = targets, targets.metric

    def _asked(self, batch: Batch) -> dict[str, Tensor]:
        full = self.full_logits[batch["index"]] if "full" in self._metric.needs else None
        return self._targets.asked(batch, full)

    def note_full(self, batch: Batch, logits: Float[Tensor, "example *pos out"]) -> None:
        """See `AnswerBuffer.note_full`."""
        if "full" in self._metric.needs:
            self.full_logits[batch["index"]] = logits
        self.full[batch["index"]] = self._metric(logits, self._asked(batch)).detach()

    def note(self, rows: Sequence[int] | Tensor, batch: Batch, logits: OfSets) -> None:
        """See `AnswerBuffer.note`."""
        asked = self._asked(batch)
        for row, of_set in zip(torch.as_tensor(rows).tolist(), logits, strict=True):
            self.values[row, batch["index"]] = self._metric(of_set, asked).detach()

    def ablations(self, sets: Sequence[Cut], examples: Data, **facts: Any) -> Ablations:
        """See `AnswerBuffer.ablations`."""
        sample = sampled_as(examples, len(self.full))
        without: Mapping[Cut, Any] = {
            cut: Measured(self._metric, values, *sample)
            for cut, values in zip(sets, self.values.numpy(), strict=True)
        }
        full: Any = Measured(self._metric, self.full.numpy(), *sample)
        return Ablations(full, without, **facts)
