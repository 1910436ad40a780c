"""Answers of several tokens, scored by the sum of the log-probabilities of their tokens.

A model is asked once for every beginning of an answer, the empty one first: the prompt with the
beginning after it. The token that comes next is read after the last real position, as that of a
one-token answer is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mechcore.models.protocol import Batch


@dataclass(frozen=True)
class Continuations:
    """Which beginnings to ask for, and where the tokens of the answers are read.

    Attributes:
        beginnings: of the answers, each once.
        tokens: of every answer: numbers of beginnings, and the tokens that go on with them.
    """

    beginnings: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, answers: Iterable[tuple[int, ...]]) -> Continuations:
        """Those of answers, given as token ids."""
        answers = list(answers)
        numbers: dict[tuple[int, ...], int] = {}
        tokens = tuple(
            tuple(
                (numbers.setdefault(answer[:i], len(numbers)), token)
                for i, token in enumerate(answer)
            )
            for answer in answers
        )
        return cls(tuple(numbers), tokens)

    def asked(self, batch: Batch) -> dict[str, Tensor]:
        """The batch once for every beginning, with it after the real tokens of each row.

        Args:
            batch: padded on the right; ``index`` stays that of its rows.
        """
        ids, mask = batch["input_ids"], batch["attention_mask"]
        longest = max(map(len, self.beginnings))
        ends = mask.sum(1, keepdim=True)
        rows: dict[str, list[Tensor]] = {"input_ids": [], "attention_mask": []}
        for beginning in self.beginnings:
            places = ends + torch.arange(len(beginning))
            tokens = ids.new_tensor(beginning).expand(len(ids), -1)
            rows["input_ids"].append(F.pad(ids, (0, longest)).scatter(1, places, tokens))
            real = torch.ones_like(tokens)
            rows["attention_mask"].append(F.pad(mask, (0, longest)).scatter(1, places, real))
        return {"index": batch["index"], **{name: torch.cat(each) for name, each in rows.items()}}

    def score(
        self, logits: Float[Tensor, "*masks row vocab"]
    ) -> Float[Tensor, "*masks batch answer"]:
        """Log-probabilities of the answers, nats, from the logits of what was asked."""
        steps = logits.float().log_softmax(-1).unflatten(-2, (len(self.beginnings), -1))
        return torch.stack(
            [
                torch.stack([steps[..., i, :, token] for i, token in answer]).sum(0)
                for answer in self.tokens
            ],
            -1,
        )
