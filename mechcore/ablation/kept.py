"""The answers of a sweep so far, in memory and in its state file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechcore.ablation.effects import Answers, Cut
from mechcore.evaluation.evaluate import is_correct, kl, margins
from mechcore.evaluation.readout import Readout
from mechcore.state import StateFile

SECONDS_BETWEEN_SAVES = 30.0

_KEPT = ("full", "correct", "margin", "kl", "logits")


class Kept:
    """Answers so far, [set, example], and which parts of the work they are of."""

    def __init__(self, n_sets: int, n_examples: int, readout: Readout, store: StateFile) -> None:
        self.full = torch.zeros(n_examples, readout.n_classes)
        self.correct = torch.zeros(n_sets, n_examples, dtype=torch.bool)
        self.margin = torch.zeros(n_sets, n_examples)
        self.kl = torch.zeros(n_sets, n_examples)
        n_kept = 0 if readout.whole_vocabulary else readout.n_classes
        self.logits = torch.zeros(n_sets, n_examples, n_kept)
        self.store = store
        self.done: set[tuple[int, int]] = set()
        self.saved_at = time.monotonic()
        store.restore_by(self._take)

    def _take(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        for name in _KEPT:
            getattr(self, name).copy_(tensors[name])
        self.done = {(part, batch) for part, batch in notes["done"]}

    def note(
        self,
        rows: Sequence[int] | Tensor,
        index: Tensor,
        logits: Float[Tensor, "set example cls"],
        correct: Bool[Tensor, "example cls"],
        full: Float[Tensor, "example cls"],
    ) -> None:
        """Take the answers of some sets to some examples.

        Args:
            rows: numbers of the sets.
            index: numbers of the examples.
            logits: of the sets.
            correct: which classes are correct.
            full: logits of the full model.
        """
        place = (torch.as_tensor(rows)[:, None], index)
        self.correct[place] = is_correct(logits, correct)
        self.margin[place] = margins(logits, correct).float()
        self.kl[place] = kl(full, logits).float()
        self.logits[place] = logits[..., : self.logits.shape[-1]]

    def finish(self, part: int, batch: int) -> None:
        """Note that a task is done, and save if the last time is long ago."""
        self.done.add((part, batch))
        if time.monotonic() - self.saved_at > SECONDS_BETWEEN_SAVES:
            self.save()

    def save(self) -> None:
        """Write all answers so far to the state file."""
        self.store.save({name: getattr(self, name) for name in _KEPT}, {"done": sorted(self.done)})
        self.saved_at = time.monotonic()

    def answers(self, sets: Sequence[Cut]) -> dict[Cut, Answers]:
        """The answers by set, in the order of the job."""
        rows = (self.correct.numpy(), self.margin.numpy(), self.kl.numpy(), self.logits.numpy())
        found = {each: Answers(*(row[i] for row in rows)) for i, each in enumerate(sets)}
        if self.logits.shape[-1]:
            return found
        return {each: replace(answers, logits=None) for each, answers in found.items()}
