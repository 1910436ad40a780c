"""What is known about the tokens of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechcore.data.words import SPECIAL
from mechcore.errors import InputError
from mechcore.models.protocol import Batch


@dataclass(frozen=True, eq=False)
class TokenInfo:
    """What is known about the tokens of one batch, for deciding who attends to what.

    Attributes:
        ids: token ids.
        real: False at padding.
        segments: 0 and 1 for tokens of the first and second text, `SPECIAL` elsewhere.
        words: equal numbers for tokens of equal words, `SPECIAL` for what is no word.
        separators: whether a token is a separator.
        causal: whether keys after the query are out of reach.
        spans: equal numbers for the tokens of one word where it stands; None where the pieces of
            words are not known.
    """

    ids: Int[Tensor, "batch pos"]
    real: Bool[Tensor, "batch pos"]
    segments: Int[Tensor, "batch pos"]
    words: Int[Tensor, "batch pos"]
    separators: Bool[Tensor, "batch pos"]
    causal: bool
    spans: Int[Tensor, "batch pos"] | None = None

    @classmethod
    def of(cls, batch: Batch, *, causal: bool) -> TokenInfo:
        """Read a right-padded batch of examples that were encoded with ``words=True``."""
        names = ("input_ids", "attention_mask", "segments", "words", "separators")
        missing = [name for name in names if batch.get(name) is None]
        if missing:
            raise InputError(
                f"batch: no {' and no '.join(missing)}; expected examples whose words are known: "
                "encode them with encode(..., words=True)"
            )
        ids, real, segments, words, separators = (batch[name] for name in names)
        return cls(ids, real != 0, segments, words, separators != 0, causal, batch.get("spans"))

    def to(self, device: torch.device) -> TokenInfo:
        """The same on another device."""
        names = ("ids", "real", "segments", "words", "separators")
        there = {name: getattr(self, name).to(device) for name in names}
        return replace(self, **there, spans=None if self.spans is None else self.spans.to(device))

    @cached_property
    def positions(self) -> Int[Tensor, " pos"]:
        """0, 1, 2 and so on."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)

    @cached_property
    def allowed(self) -> Bool[Tensor, "batch query key"]:
        """Pairs of real tokens whose key the query can see."""
        pairs = self.real[:, :, None] & self.real[:, None, :]
        return pairs & (self._distance >= 0) if self.causal else pairs

    @cached_property
    def same_word(self) -> Bool[Tensor, "batch query key"]:
        """Pairs of tokens of equal words."""
        is_word = self.words != SPECIAL
        return (self.words[:, :, None] == self.words[:, None, :]) & is_word[:, :, None]

    @cached_property
    def occurrences(self) -> Int[Tensor, "batch pos"]:
        """Equal numbers for the pieces of one occurrence of a word, rising along the row.

        Without spans, it ends where the word or segment changes, or its first piece comes again.
        """
        changes = torch.ones_like(self.real)
        if self.spans is not None:
            changes[:, 1:] = self.spans.diff(dim=1) != 0
            return changes.cumsum(1)
        changes[:, 1:] = self.words.diff(dim=1) != 0
        changes[:, 1:] |= self.segments.diff(dim=1) != 0
        run_start = (changes * self.positions).cummax(1).values
        return (changes | (self.ids == self.ids.gather(1, run_start))).cumsum(1)

    @cached_property
    def two_segments(self) -> Bool[Tensor, " batch"]:
        """Whether a row has a second text."""
        return (self.segments == 1).any(1)

    @cached_property
    def _distance(self) -> Int[Tensor, "query key"]:
        return self.positions[:, None] - self.positions[None, :]

    def at_distance(self, distance: int) -> Bool[Tensor, "batch query key"]:
        """Pairs whose key is ``distance`` tokens before the query, behind it where negative."""
        return (self._distance == distance).expand_as(self.allowed)

    def key_is(self, which: Bool[Tensor, "*batch pos"]) -> Bool[Tensor, "batch query key"]:
        """Pairs whose key is one of ``which``."""
        return which[..., None, :].expand_as(self.allowed)
