"""The words that tokens belong to."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

SPECIAL = -1
"""Segment and word id of special tokens, of prompt text around the segments, and of padding."""


class Words(NamedTuple):
    """Words of one example: ``numbers`` equal for tokens of equal words, `SPECIAL` for others.

    ``spans`` are equal for tokens of one occurrence of a word or mark, rising; `SPECIAL` elsewhere.
    """

    numbers: list[int]
    spans: list[int]


def whole_words(
    encoding: Any,
    places: Sequence[int],
    texts: tuple[str, str],
    tokenizer: PreTrainedTokenizerBase,
    vocabulary: dict[str, int],
) -> Words:
    """Number every token by its whole word in ``vocabulary``; punctuation is not a word.

    ``places`` are the segments of tokens, `SPECIAL` outside of all. In SentencePiece tokenizers a
    word may extend from space to space, so words also end at white space and at punctuation.
    """
    spans: list[list[int]] = []  # segment, start and end of every word
    owners: list[int | None] = []
    last: tuple[int, int | None, bool] | None = None
    for segment, word, (start, end) in zip(
        places, encoding.word_ids, encoding.offsets, strict=True
    ):
        if segment == SPECIAL or word is None:
            owners.append(None)
            last = None
            continue
        text = texts[segment]
        key = segment, word, _is_punctuation(text[start:end])
        reached = spans[-1][2] if key == last else start
        if key != last or text[min(start, reached) : end][:1].isspace():
            spans.append([segment, start, end])
        else:
            spans[-1][2] = max(reached, end)
        owners.append(len(spans) - 1)
        last = key
    numbers = []
    for segment, start, end in spans:
        written = texts[segment][start:end].strip().strip(_AROUND)
        if any(character.isalnum() for character in written):
            numbers.append(vocabulary.setdefault(_name(written, tokenizer), len(vocabulary)))
        else:
            numbers.append(SPECIAL)
    return Words(
        [SPECIAL if owner is None else numbers[owner] for owner in owners],
        [SPECIAL if owner is None else owner for owner in owners],
    )


def _name(word: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The key of equal words: the same to the model, or except for case and encoding (NFKC)."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    read = word if normalizer is None else normalizer.normalize_str(word)
    return unicodedata.normalize("NFKC", read).casefold()


_AROUND = string.punctuation.replace("'", "")
"""Characters that may surround a word in one piece; contractions keep their apostrophe."""


def _is_punctuation(piece: str) -> bool:
    """Whether a piece is not part of a word; a single space belongs to the word after it."""
    marks = piece.lstrip(" ")
    return bool(marks) and all(
        c.isspace() or c in string.punctuation or unicodedata.category(c).startswith("P")
        for c in marks
    )
