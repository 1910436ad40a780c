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
    """The words of one example, with a value per token.

    Attributes:
        numbers: equal for tokens of equal words, `SPECIAL` for other tokens.
        spans: equal for tokens of one occurrence of a word or mark, rising; `SPECIAL` elsewhere.
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
    """Number every token by its whole word; punctuation is not a word.

    In SentencePiece tokenizers a word may be a whole text, or extend from space to
    space, so words also end at white space and at pieces of punctuation.

    Args:
        encoding: encoding by the tokenizer.
        places: the segment of every token, `SPECIAL` outside of all.
        texts: texts of the segments.
        tokenizer: a fast tokenizer.
        vocabulary: numbers of the words known so far; new ones are added.
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


def words_of(
    ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, vocabulary: dict[str, int]
) -> Words | None:
    """Number tokens of one text by their whole words, as `encode` does, from token ids alone.

    Args:
        ids: token ids without special tokens.
        tokenizer: a fast tokenizer.
        vocabulary: numbers of the words known so far; new ones are added.

    Returns:
        None if the tokenizer gives other tokens for the decoded text, so that the words are
        unknown.
    """
    text = str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
    encoded = tokenizer([text], add_special_tokens=False)
    if encoded["input_ids"][0] != list(ids):
        return None
    places = [0] * len(ids)
    words = whole_words(encoded.encodings[0], places, (text, text), tokenizer, vocabulary)
    unknown = tokenizer.unk_token_id  # its original text is lost
    pairs = zip(ids, words.numbers, strict=True)
    return Words([SPECIAL if i == unknown else word for i, word in pairs], words.spans)


def _name(word: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The key of equal words: the same to the model, or except for case and encoding.

    Tokenizers may strip accents, as uncased BERT's does. NFKC and case folding are those of the
    Unicode Standard, sections 3.11 and 3.13.
    """
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
