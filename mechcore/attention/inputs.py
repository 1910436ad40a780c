"""From encoded examples, texts or plain batches to batches whose words are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mechcore.attention.tokens import TokenInfo
from mechcore.data.encoding import EncodedExamples
from mechcore.data.given import EXPECTED
from mechcore.data.words import SPECIAL, Words, words_of
from mechcore.errors import InputError, warn
from mechcore.models.batches import real_tokens_first
from mechcore.models.encoded import as_data, tokenizer_of
from mechcore.models.protocol import Batch, is_causal, model_inputs, weights_of

HeadData: TypeAlias = Any
"""Data to see heads on:

- `EncodedExamples` that were encoded with ``words=True``;
- examples of any other form, see `mechcore.data.given`, and lists of texts or of pairs of texts;
  the tokenizer is that of the checkpoint that the model came from, unless another is passed;
- plain batches, dicts of tokenizer outputs padded on either side; the tokenizer is the same (also
  that of a HookedTransformer). Where there is none, pieces are not joined to words, every token
  counts as one, and separators and special tokens are those that the model's configuration names.
"""


def batches_of(
    model: Any, data: HeadData, tokenizer: Any, batch_size: int
) -> Iterator[tuple[Batch, TokenInfo]]:
    """Batches, with their number in the data (``index``), and what is known of their tokens.

    Where examples go together in clusters, these have numbers, too (``cluster``).

    Raises:
        InputError: the data is none of `HeadData`, or the tokenizer is missing.
    """
    causal = is_causal(model)
    if tokenizer is None:
        tokenizer = getattr(model, "tokenizer", None)
    data = as_data(model, data, "id", labelled=False, tokenizer=tokenizer, words=True)
    if not isinstance(data, EncodedExamples):
        yield from _plain(model, data, tokenizer or _own_tokenizer(model), causal)
        return
    if data.words is None:
        raise InputError(
            "attention scores: found examples without words; expected EncodedExamples whose words "
            "are known: encode them with encode(..., words=True)"
        )
    clusters = data.examples.clusters
    for batch in data.batches(batch_size):
        tokens = TokenInfo.of(batch, causal=causal)
        known = {} if clusters is None else {"cluster": torch.from_numpy(clusters[batch["index"]])}
        yield {**batch, **known}, tokens


# -- plain batches --------------------------------------------------------------------------------


def _own_tokenizer(model: Any) -> Any:
    """That of the checkpoint that the model came from; None where there is none."""
    try:
        return tokenizer_of(model)
    except InputError:
        return None


def _plain(
    model: Any, data: Any, tokenizer: Any, causal: bool
) -> Iterator[tuple[Batch, TokenInfo]]:
    if isinstance(data, Mapping):
        raise InputError(
            f"attention scores: found {type(data).__name__}; expected a list of batches (dicts of "
            f"tokenizer outputs), or examples: {EXPECTED}"
        )
    special, separators = _special_ids(model, tokenizer)
    if tokenizer is None and not separators and not causal:
        warn(
            "attention scores: neither a tokenizer is known nor, from the model's configuration, "
            "which tokens are separators, so that these count as words that are repeated; pass "
            "the tokenizer (tokenizer=mechcore.load_tokenizer(path))"
        )
    vocabulary: dict[str, int] = {}
    start = 0
    for given in data:
        inputs = model_inputs(model, given)
        batch, _ = real_tokens_first(inputs, inputs["attention_mask"])
        ids, real = batch["input_ids"], batch["attention_mask"] != 0
        is_separator = _among(ids, separators) & real
        segments = _segments(batch, is_separator, _among(ids, special) | ~real, causal)
        words, spans = ids.masked_fill(segments == SPECIAL, SPECIAL), None
        if tokenizer is not None:
            words, spans = _whole_words(ids, segments, tokenizer, vocabulary)
        index = torch.arange(start, start + len(ids))
        start += len(ids)
        tokens = TokenInfo(ids, real, segments, words, is_separator, causal, spans)
        yield {**batch, "index": index}, tokens


def _among(ids: Tensor, some: Sequence[int]) -> Tensor:
    return torch.isin(ids, torch.tensor(some, dtype=ids.dtype, device=ids.device))


def _special_ids(model: Any, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids of special tokens, and those of separators among them."""
    source = tokenizer
    if source is None:  # the configuration of the Hugging Face model, or TransformerLens's own
        source = getattr(weights_of(model), "config", model.cfg)
    ids: dict[str, list[int]] = {}
    for name in ("bos", "eos", "cls", "sep", "pad", "mask"):
        known = getattr(source, f"{name}_token_id", None)  # one id, several or none
        several = known if isinstance(known, (list, tuple)) else [known]
        ids[name] = [int(i) for i in several if i is not None]
    special = {i for some in ids.values() for i in some}
    special |= {*getattr(tokenizer, "all_special_ids", ())}
    special -= {getattr(tokenizer, "unk_token_id", None)}  # a word, if an unknown one
    return sorted(special), sorted({*ids["sep"], *ids["eos"]})


def _segments(batch: Batch, separators: Tensor, special: Tensor, causal: bool) -> Tensor:
    """Of an encoder's row the second begins after its first separator.

    Where separators are not known, token types tell.
    """
    after = (separators.long().cumsum(1) > 0).long() * (not causal)
    if not separators.any() and "token_type_ids" in batch and not causal:
        after = batch["token_type_ids"].long().clamp(max=1)
    return after.masked_fill(special, SPECIAL)


def _whole_words(
    ids: Tensor, segments: Tensor, tokenizer: Any, vocabulary: dict[str, int]
) -> tuple[Tensor, Tensor]:
    """Number tokens by their whole words, one run of a segment's tokens at a time.

    Returns:
        Numbers of words, and spans, see `Words`.
    """
    words, spans, lost = [], [], 0
    for row, places in zip(ids.tolist(), segments.tolist(), strict=True):
        row_words, row_spans = Words([], [])
        for place, run in groupby(zip(places, row, strict=True), key=itemgetter(0)):
            pieces = [token for _, token in run]
            of_run: Words | None = Words([SPECIAL] * len(pieces), [SPECIAL] * len(pieces))
            if place != SPECIAL:
                of_run = words_of(pieces, tokenizer, vocabulary)
            if of_run is None:
                lost += 1
                numbers = [vocabulary.setdefault(f"token {i}", len(vocabulary)) for i in pieces]
                of_run = Words(numbers, list(range(len(pieces))))
            free = max(row_spans, default=SPECIAL) + 1
            row_words += of_run.numbers
            row_spans += [SPECIAL if span == SPECIAL else free + span for span in of_run.spans]
        words.append(row_words)
        spans.append(row_spans)
    if lost:
        warn(
            f"attention scores: {lost} texts of a batch are no longer what the tokenizer made "
            "of them when decoded, so their words are not known, and every token counts as a "
            "word; encode them with encode(..., words=True)"
        )
    return torch.tensor(words, device=ids.device), torch.tensor(spans, device=ids.device)
