"""The answers of a sweep so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechcore.ablation.cuts import Cut
from mechcore.ablation.effects.changes import Answers
from mechcore.evaluation.evaluate import is_correct, kl, margins
from mechcore.evaluation.readout import Readout


class AnswerBuffer:
    """Answers of the full model [example] and of sets [set, example], filled by an engine."""

    def __init__(self, n_sets: int, n_examples: int, readout: Readout) -> None:
        self.full = torch.zeros(n_examples, readout.n_classes)
        self.correct = torch.zeros(n_sets, n_examples, dtype=torch.bool)
        self.margin = torch.zeros(n_sets, n_examples)
        self.kl = torch.zeros(n_sets, n_examples)
        n_kept = 0 if readout.whole_vocabulary else readout.n_classes
        self.logits = torch.zeros(n_sets, n_examples, n_kept)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By name."""
        return dict(vars(self))

    def note(
        self,
        rows: Sequence[int] | Tensor,
        index: Tensor,
        logits: Float[Tensor, "set example cls"],
        correct: Bool[Tensor, "example cls"],
        full: Float[Tensor, "example cls"],
    ) -> None:
        """Take the answers of sets to examples, both by number, with the full model's logits."""
        place = (torch.as_tensor(rows)[:, None], index)
        self.correct[place] = is_correct(logits, correct)
        self.margin[place] = margins(logits, correct).float()
        self.kl[place] = kl(full, logits).float()
        self.logits[place] = logits[..., : self.logits.shape[-1]]

    def answers(self, sets: Sequence[Cut]) -> dict[Cut, Answers]:
        """The answers by set, in the order of the job."""
        rows = (self.correct.numpy(), self.margin.numpy(), self.kl.numpy(), self.logits.numpy())
        by_set = {cut: Answers(*(row[i] for row in rows)) for i, cut in enumerate(sets)}
        if self.logits.shape[-1]:
            return by_set
        return {cut: replace(answers, logits=None) for cut, answers in by_set.items()}
