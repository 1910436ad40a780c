"""Tokenized examples and the length-bucketed batches that models read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mechcore import progress
from mechcore.data.examples import Examples
from mechcore.data.tokens import (
    SPECIAL,
    answer_ids,
    check_continues,
    check_file,
    check_unknown,
    whole_words,
)
from mechcore.errors import InputError, reason, shown, warn
from mechcore.session import plain_session
from mechcore.showing import Shown

if TYPE_CHECKING:
    import pandas as pd

PER_TOKEN = {
    "token_type_ids": 0,
    "segments": SPECIAL,
    "words": SPECIAL,
    "separators": 0,
    "spans": SPECIAL,
}
"""Optional fields with a value per token, and their values at padding."""

MOST_PADDING = (256, 0.1)
"""Padding tokens that any batch may have, and their maximum share in a larger batch."""

_PLACE = re.compile(r"\{(a|b)\}")


@dataclass(frozen=True, repr=False)
class EncodedExamples(Shown):
    """Examples as token ids; fields that are not known are None.

    Attributes:
        input_ids: token ids, one list per example, without padding.
        token_type_ids: segment ids as the model reads them.
        segments: 0 and 1 for tokens of the first and second text, `SPECIAL` elsewhere.
        words: equal numbers for tokens of equal words (as the tokenizer normalises them, case
            ignored), `SPECIAL` for special tokens and punctuation.
        separators: whether a token is a separator ([SEP], </s>, end of text).
        pad_id: token id for padding, on the right.
        answers: for language models, the answer tokens of each label name.
        n_cut: number of texts that were too long and were cut.
        spans: equal numbers for the tokens of one occurrence of a word or punctuation mark,
            `SPECIAL` elsewhere.
        correct, wrong: tokens that answer each example, see `mechcore.models.encoded.prompt_table`.
        pairs: the counterfactual of every example.
    """

    examples: Examples
    input_ids: Sequence[Sequence[int]]
    token_type_ids: Sequence[Sequence[int]] | None
    segments: Sequence[Sequence[int]] | None
    words: Sequence[Sequence[int]] | None
    separators: Sequence[Sequence[int]] | None
    pad_id: int
    answers: Mapping[str, tuple[int, ...]] | None = None
    n_cut: int = 0
    spans: Sequence[Sequence[int]] | None = None
    correct: Sequence[Sequence[int]] | None = None
    wrong: Sequence[Sequence[int]] | None = None
    pairs: EncodedExamples | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the texts."""
        return self.examples.fingerprint

    def part(self, rows: Sequence[int]) -> EncodedExamples:
        """These rows only, in the order given."""
        chosen: dict[str, Any] = {"examples": self.examples.part(rows)}
        for name in ("input_ids", *PER_TOKEN, "correct", "wrong"):
            values = getattr(self, name)
            chosen[name] = None if values is None else [values[i] for i in rows]
        chosen["pairs"] = None if self.pairs is None else self.pairs.part(rows)
        return replace(self, **chosen)

    def batches(self, batch_size: int = 64) -> Iterator[dict[str, Tensor]]:
        """Batches padded to their longest example, see `rows`, of up to ``batch_size``.

        They are grouped by length, longest first, smaller if padding would exceed `MOST_PADDING`.
        """
        if batch_size < 1:
            raise InputError(f"batch size {batch_size}: expected at least 1")
        yield from map(self.rows, self._by_length(batch_size))

    def n_batches(self, batch_size: int) -> int:
        """The number of `batches` by length."""
        return len(self._by_length(batch_size))

    def _by_length(self, batch_size: int) -> list[list[int]]:
        lengths = [len(ids) for ids in self.input_ids]
        free, share = MOST_PADDING
        batches: list[list[int]] = []
        padded = padding = 0
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            longest = lengths[batches[-1][0]] if batches else 0
            padded, padding = padded + longest, padding + longest - lengths[i]
            full = not batches or len(batches[-1]) == batch_size
            if full or padding > max(free, share * padded):
                batches.append([])
                padded, padding = lengths[i], 0
            batches[-1].append(i)
        return batches

    @plain_session()
    def rows(self, index: Sequence[int]) -> dict[str, Tensor]:
        """The given examples as one batch.

        It has ``input_ids``, ``attention_mask``, ``index`` (row in the examples, [batch]) and,
        where known, ``token_type_ids``, ``segments``, ``words``, ``separators`` and ``spans``.
        """
        batch = {
            "index": torch.tensor(index),
            "input_ids": _padded([self.input_ids[i] for i in index], self.pad_id),
            "attention_mask": _padded([[1] * len(self.input_ids[i]) for i in index], 0),
        }
        for name, filler in PER_TOKEN.items():
            values = getattr(self, name)
            if values is not None:
                batch[name] = _padded([values[i] for i in index], filler)
        return batch

    def _summary(self) -> str:
        lengths = [len(ids) for ids in self.input_ids] or [0]
        return f"{self.examples._summary()}, tokens {min(lengths)} to {max(lengths)}"

    def _rows(self) -> pd.DataFrame:
        return self.examples.frame


def encode(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    truncate: bool = True,
    prompt: str | None = None,
    answers: Mapping[str, str] | None = None,
    words: bool = False,
    token_types: bool | None = None,
) -> EncodedExamples:
    """Tokenize examples, with a warning if many tokens are unknown or differ from the file's.

    Args:
        examples: the texts.
        tokenizer: a fast tokenizer.
        max_length: maximum length of an input in tokens, including special ones.
        truncate: whether to cut longer texts, with a warning, or to raise an error.
        prompt: for language models, a text with ``{a}`` and ``{b}`` (only ``{a}`` for one
            segment), special tokens written out; without one, the tokenizer's own layout.
        answers: for language models, the answer of each label, which continues the prompt.
        words: whether to find segments, words and separators, which head categories need.
        token_types: whether to give segment ids; None follows the tokenizer.

    Raises:
        InputError: a text is too long and must not be cut, or has no token; the prompt lacks a
            placeholder; two answers are indistinguishable, or one does not continue the prompt.
    """
    if prompt is None:
        _check_room(max_length, tokenizer, examples.two_segments)
    tokens = None if answers is None else answer_ids(answers, tokenizer, prompt)
    if tokens is not None:
        # The last token of an answer is never an input, only predicted.
        max_length -= max(map(len, tokens.values())) - 1
    first = examples.frame["text_a"].tolist()
    second = examples.frame["text_b"].tolist()
    texts: Any = first
    if prompt is not None:
        filled = _prompt_spans(prompt, first, second, examples.two_segments)
        texts = [text for text, _ in filled]
    elif examples.two_segments:
        texts = list(zip(first, second, strict=True))
    try:
        encoded = tokenizer(
            texts,
            add_special_tokens=prompt is None,
            truncation=True,
            max_length=max_length,
            return_token_type_ids=token_types,
        )
    except Exception as error:  # tokenizers raises plain exceptions
        raise InputError(
            f"examples {examples.name!r}: {type(tokenizer).__name__} cannot encode them: "
            f"{reason(error)}; check that the tokenizer is the model's own (its tokenizer.json)"
        ) from error
    n_cut = _n_cut(examples, tokenizer, encoded, texts, prompt, max_length, truncate)
    special = prompt is None
    check_file(examples, tokenizer, encoded, texts, special=special, max_length=max_length)
    check_unknown(examples, tokenizer, encoded, texts, special=special)
    if answers is not None and tokens is not None:
        check_continues(answers, tokens, texts, encoded["input_ids"], tokenizer)
    known: dict[str, Any] = dict.fromkeys(("segments", "words", "separators", "spans"))
    if words:
        places = [
            [SPECIAL if s is None else s for s in encoding.sequence_ids]
            if prompt is None
            else [_segment_at(offset, filled[row][1]) for offset in encoding.offsets]
            for row, encoding in enumerate(encoded.encodings)
        ]
        both = list(zip(first, second, strict=True)) if prompt is None else [(t, t) for t in texts]
        known = _words(encoded, tokenizer, places, both)
    if empty := [row for row, ids in enumerate(encoded["input_ids"]) if not ids]:
        raise InputError(
            f"examples {examples.name!r}: {len(empty)} of {len(examples)} texts have no token, the "
            f"first {first[empty[0]]!r} in row {empty[0] + 1}, because {type(tokenizer).__name__} "
            "drops all its characters and adds no special token; remove them"
        )
    # Any token can serve as padding: no model in mechcore attends to it.
    pad_ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    pad_id = int(next(i for i in pad_ids if i is not None))
    types = encoded.get("token_type_ids") if prompt is None else None
    ids = encoded["input_ids"]
    return EncodedExamples(
        examples, ids, types, pad_id=pad_id, answers=tokens, n_cut=n_cut, **known
    )


def _n_cut(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Any,
    texts: Sequence[Any],
    prompt: str | None,
    max_length: int,
    truncate: bool,
) -> int:
    """The number of texts cut, with a warning; an `InputError` if they must not be cut."""
    rows = [row for row, encoding in enumerate(encoded.encodings) if encoding.overflowing]
    if not rows:
        return 0
    message = (
        f"examples {examples.name!r}: {len(rows)} of {len(examples)} "
        f"{'texts' if prompt is None else 'prompts'} are longer than {max_length} tokens"
    )
    if prompt is not None:
        remedy = "remove them" + ", or raise --max-length if the model takes more" * truncate
        raise InputError(
            f"{message}, and cutting them would cut off the place of the answer; {remedy}"
        )
    lengths = list(map(len, tokenizer([texts[row] for row in rows], verbose=False)["input_ids"]))
    most = max(lengths)
    text = texts[rows[lengths.index(most)]]
    longest = text if isinstance(text, str) else max(text, key=len)
    message = f"{message} (the longest has {most} and begins {shown(repr(longest), 60)})"
    if not truncate:
        raise InputError(
            f"{message}, and truncation is off; set --max-length {max_length} "
            "(max_length in Python and in files) to cut them, or remove them"
        )
    warn(f"{message} and were cut")
    return len(rows)


def _words(
    encoded: Any,
    tokenizer: PreTrainedTokenizerBase,
    places: list[list[int]],
    texts: Sequence[tuple[str, str]],
) -> dict[str, list[Any]]:
    """The segment and word of every token, whether it separates texts, and the words' spans."""
    ends = {tokenizer.sep_token_id, tokenizer.eos_token_id} - {None}
    vocabulary: dict[str, int] = {}
    rows = [*zip(encoded.encodings, places, texts, strict=True)]
    words = [whole_words(*row, tokenizer, vocabulary) for row in rows]
    numbers, spans = map(list, zip(*words, strict=True))
    separators = [
        [int(place == SPECIAL and i in ends) for i, place in zip(row.ids, at, strict=True)]
        for row, at, _ in rows
    ]
    return {"segments": places, "words": numbers, "separators": separators, "spans": spans}


def _check_room(max_length: int, tokenizer: PreTrainedTokenizerBase, pair: bool) -> None:
    """Check that special tokens leave a token for every text; otherwise tokenizers do not cut."""
    special = tokenizer.num_special_tokens_to_add(pair)
    least = special + 1 + pair
    if max_length < least:
        raise InputError(
            f"max_length {max_length}: expected at least {least}: the tokenizer adds {special} "
            f"special tokens to {'a pair' if pair else 'a text'} and "
            f"{'each of its texts' if pair else 'the text'} needs one of its own; raise "
            "--max-length (max_length in Python and in files)"
        )


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])


def _prompt_spans(
    prompt: str, first: Sequence[str], second: Sequence[str], two_segments: bool
) -> list[tuple[str, dict[int, tuple[int, int]]]]:
    """Filled prompts with the character range of each segment."""
    pieces = _PLACE.split(prompt)
    wanted = {"a", "b"} if two_segments else {"a"}
    if set(pieces[1::2]) != wanted or len(pieces[1::2]) != len(wanted):
        pairs, single = "places {a} and {b}, each once, for pairs of", "place {a} once, for single"
        places = pairs if two_segments else single
        raise InputError(f"prompt {prompt!r}: expected the {places} texts (--prompt)")
    filled = []
    for a, b in zip(first, second, strict=True):
        text, ranges = "", {}
        for i, piece in enumerate(pieces):
            part = piece if i % 2 == 0 else {"a": a, "b": b}[piece]
            if i % 2:
                ranges["ab".index(piece)] = (len(text), len(text) + len(part))
            text += part
        filled.append((text, ranges))
    return filled


def _segment_at(offset: tuple[int, int], ranges: Mapping[int, tuple[int, int]]) -> int:
    start, end = offset
    for segment, (low, high) in ranges.items():
        if end > start and end > low and end <= high:  # a leading space may lie outside
            return segment
    return SPECIAL


BATCH_SIZE = 64

Batches: TypeAlias = EncodedExamples | Iterable[Mapping[str, Any]]


def as_batches(data: Batches, batch_size: int = BATCH_SIZE) -> Iterator[Mapping[str, Any]]:
    """Batches of encoded examples, or the given ones; a lone dict is one batch."""
    if isinstance(data, EncodedExamples):
        return data.batches(batch_size)
    return iter([data] if hasattr(data, "keys") else data)  # type: ignore[list-item]


def batch_bar(
    title: str, data: Batches, batch_size: int = BATCH_SIZE
) -> AbstractContextManager[Callable[[], None]]:
    """Progress over the batches of `as_batches`; none if their number is unknown."""
    if isinstance(data, EncodedExamples) and batch_size > 0:
        return progress.bar(title, data.n_batches(batch_size))
    return nullcontext(lambda: None)
