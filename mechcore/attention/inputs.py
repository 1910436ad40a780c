"""From encoded examples, texts or plain batches to batches whose words are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from mechcore.attention.tokens import TokenInfo
from mechcore.errors import InputError
from mechcore.models.padding import real_tokens_first
from mechcore.models.running import Batch, is_causal, model_inputs, weights_of
from mechcore.tasks.encoding import SPECIAL, EncodedExamples, encode
from mechcore.tasks.examples import Examples

Text: TypeAlias = "str | tuple[str, str]"

HeadData: TypeAlias = "EncodedExamples | Examples | Sequence[Text] | Iterable[Batch]"
"""Data to see heads on:

- `EncodedExamples` that were encoded with ``words=True``;
- `Examples`, or a list of texts or of pairs of texts, with the tokenizer;
- plain batches, dicts of tokenizer outputs padded on either side. With the tokenizer, pieces are
  joined to words; without it every token counts as a word. Separators and special tokens are the
  tokenizer's, or those that the model's configuration names.
"""


def batches_of(
    model: Any, data: HeadData, tokenizer: Any, batch_size: int
) -> Iterator[tuple[Batch, TokenInfo]]:
    """Batches, with their number in the data (``index``), and what is known of their tokens.

    Raises:
        InputError: the data is none of `HeadData`, or the tokenizer is missing.
    """
    causal = is_causal(model)
    if not isinstance(data, EncodedExamples):
        texts = as_examples(data)
        if texts is None:
            yield from _plain(model, data, tokenizer, causal)
            return
        if tokenizer is None:
            raise InputError(
                "attention scores: found texts without a tokenizer; pass tokenizer=..., for "
                "example mechcore.load_tokenizer(path)"
            )
        limit = min(tokenizer.model_max_length, int(model.cfg.n_ctx))
        data = encode(texts, tokenizer, max_length=limit, words=True)
    if data.words is None:
        raise InputError(
            "attention scores: found examples without words; expected EncodedExamples whose words "
            "are known: encode them with encode(..., words=True)"
        )
    for batch in data.batches(batch_size):
        yield batch, TokenInfo.of(batch, causal=causal)


def as_examples(data: Any) -> Examples | None:
    """Texts or pairs of texts as examples; None for what is neither."""
    if isinstance(data, Examples):
        return data
    if not isinstance(data, Sequence) or not data:
        return None
    pairs = [(each, "") if isinstance(each, str) else each for each in data]
    if not all(
        isinstance(p, (tuple, list)) and len(p) == 2 and all(isinstance(t, str) for t in p)
        for p in pairs
    ):
        return None
    frame = pd.DataFrame(list(pairs), columns=["text_a", "text_b"])
    return Examples("texts", frame.assign(label="", subset="all"))


# -- plain batches --------------------------------------------------------------------------------


def _plain(
    model: Any, data: Any, tokenizer: Any, causal: bool
) -> Iterator[tuple[Batch, TokenInfo]]:
    if not isinstance(data, Iterable) or isinstance(data, (str, Mapping)):
        raise InputError(
            f"attention scores: found {type(data).__name__}; expected EncodedExamples with words, "
            "texts with a tokenizer, or a list of batches (dicts of tokenizer outputs)"
        )
    special, separators = _special_ids(model, tokenizer)
    start = 0
    for each in data:
        inputs = model_inputs(model, each)
        batch, _ = real_tokens_first(inputs, inputs["attention_mask"])
        ids, real = batch["input_ids"], batch["attention_mask"] != 0
        is_special = torch.isin(ids, torch.tensor(special, dtype=ids.dtype, device=ids.device))
        is_separator = torch.isin(ids, torch.tensor(separators, dtype=ids.dtype, device=ids.device))
        is_separator &= real
        segments = _segments(is_separator, is_special | ~real, causal)
        words = ids.masked_fill(segments == SPECIAL, SPECIAL)
        if tokenizer is not None:
            words = _whole_words(ids, segments, tokenizer)
        index = torch.arange(start, start + len(ids))
        start += len(ids)
        yield {**batch, "index": index}, TokenInfo(ids, real, segments, words, is_separator, causal)


def _special_ids(model: Any, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids of special tokens, and those of separators among them."""
    source = tokenizer
    if source is None:  # the configuration of the Hugging Face model, or TransformerLens's own
        source = getattr(weights_of(model), "config", model.cfg)
    named = {
        name: getattr(source, f"{name}_token_id", None)
        for name in ("bos", "eos", "cls", "sep", "pad", "mask")
    }
    ids = {name: value for name, value in named.items() if isinstance(value, int)}
    special = set(ids.values()) | set(getattr(tokenizer, "all_special_ids", ()))
    return sorted(special), sorted({ids[name] for name in ("sep", "eos") if name in ids})


def _segments(separators: Tensor, special: Tensor, causal: bool) -> Tensor:
    """The second segment of an encoder's row begins after its first separator."""
    after = (separators.long().cumsum(1) > 0).long() * (not causal)
    return after.masked_fill(special, SPECIAL)


def _whole_words(ids: Tensor, segments: Tensor, tokenizer: Any) -> Tensor:
    """Number tokens by their whole words, whatever their case; punctuation is no word."""
    marks = _marks(tokenizer)
    numbers: dict[str, int] = {}
    rows = []
    for row, places in zip(ids.tolist(), segments.tolist(), strict=True):
        pieces = tokenizer.convert_ids_to_tokens(row)
        words: list[list[int]] = []
        texts: list[str] = []
        for i, (piece, place) in enumerate(zip(pieces, places, strict=True)):
            joins, text = marks(piece)
            if place == SPECIAL:
                continue
            if joins and words and words[-1][-1] == i - 1 and places[i - 1] == place:
                words[-1].append(i)
                texts[-1] += text
            else:
                words.append([i])
                texts.append(text)
        row_words = [SPECIAL] * len(row)
        for members, text in zip(words, texts, strict=True):
            if any(c.isalnum() for c in text):
                for i in members:
                    row_words[i] = numbers.setdefault(text.lower(), len(numbers))
        rows.append(row_words)
    return torch.tensor(rows, device=ids.device)


def _marks(tokenizer: Any) -> Any:
    """A function that says of a piece whether it goes on with the word before, and its text."""
    vocabulary = tokenizer.get_vocab()

    @cache
    def by_start(piece: str) -> tuple[bool, str]:  # "Ġ" or "▁" begin a word
        begins = piece[:1] in ("\u0120", "\u2581")
        text = piece.lstrip("\u0120\u2581")
        return not begins and text.isalnum(), text

    @cache
    def by_continuation(piece: str) -> tuple[bool, str]:  # "##" goes on with one
        return piece.startswith("##"), piece.removeprefix("##")

    return by_continuation if any(piece.startswith("##") for piece in vocabulary) else by_start
