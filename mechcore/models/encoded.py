"""Examples as a model reads them: tokens of the tokenizer of the checkpoint it came from."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.data.given import EXPECTED, given_examples
from mechcore.errors import InputError, warn
from mechcore.models.prompts import encoded_prompts, prompt_table
from mechcore.models.protocol import (
    Batch,
    is_causal,
    longest_input,
    n_token_types,
    name_of,
    weights_of,
)
from mechcore.models.tokenizers import as_read, check_vocabulary, load_tokenizer

_tokenizers: weakref.WeakKeyDictionary[Any, PreTrainedTokenizerBase]
_tokenizers = weakref.WeakKeyDictionary()

_origins: weakref.WeakKeyDictionary[Any, tuple[str, str | None]] = weakref.WeakKeyDictionary()
"""The checkpoint and revision of models, wherever the process goes."""


def remember_origin(model: Any, source: str, revision: str | None) -> None:
    """Note which checkpoint a model came from."""
    _origins[model] = str(Path(source).resolve()) if Path(source).exists() else source, revision


def as_encoded(
    model: Any,
    data: Any,
    *,
    split: str = "id",
    tokenizer: PreTrainedTokenizerBase | None = None,
    columns: Mapping[str, str] | None = None,
    label_map: Mapping[str, str] | None = None,
    labelled: bool = True,
    max_length: int | None = None,
    prompt: str | None = None,
    answers: Mapping[str, str] | None = None,
    words: bool = False,
) -> EncodedExamples:
    """Examples of any form as a model reads them.

    Every function that works on examples does this itself, with the defaults; call it where there
    is more to say: columns, meanings of labels, the prompt of a language model.

    Args:
        model: any TransformerLens model.
        data: see `mechcore.data.given` and, of language models, `mechcore.models.prompts`;
            `EncodedExamples` come back as they are.
        split: which split of a task is meant: ``"train"``, ``"id"`` or ``"ood"``.
        tokenizer: in place of that of the checkpoint that the model came from.
        columns: see `mechcore.data.readers.examples_of`.
        label_map: likewise.
        labelled: whether there must be labels.
        max_length: tokens after which texts are cut; without it longer ones are refused.
        prompt: of a language model, see `mechcore.data.encoding.encode`.
        answers: likewise.
        words: whether to find the words of texts, which head categories need.

    Raises:
        InputError: the data cannot be read, or the model's tokenizer is not known.
    """
    if isinstance(data, EncodedExamples):
        return data
    table = None if columns else prompt_table(data)
    if table is not None:
        return encoded_prompts(model, table, split, lambda: tokenizer or tokenizer_of(model))
    examples = given_examples(data, split, columns=columns, label_map=label_map, labelled=labelled)
    if examples is None:
        raise InputError(f"{split} data: found {type(data).__name__}; expected {EXPECTED}")
    return encode_for(
        model,
        tokenizer or tokenizer_of(model),
        examples,
        max_length=max_length,
        prompt=prompt,
        answers=answers,
        words=words,
    )


def as_data(
    model: Any,
    data: Any,
    split: str,
    *,
    labelled: bool = True,
) -> EncodedExamples | Iterable[Batch]:
    """Batches as they are (also those of a ``DataLoader``), everything else by `as_encoded`."""
    if not isinstance(data, EncodedExamples) and prompt_table(data) is None:
        examples = given_examples(data, split, labelled=labelled)
        if examples is None and isinstance(data, Iterable) and not isinstance(data, str):
            return data
        data = data if examples is None else examples
    return as_encoded(model, data, split=split, labelled=labelled)


def encode_for(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    *,
    max_length: int | None = None,
    prompt: str | None = None,
    **options: Any,
) -> EncodedExamples:
    """Tokenize examples for a model, with the token types it reads; options as of `encode`."""
    known = n_token_types(model)
    limits = [tokenizer.model_max_length, longest_input(model)]
    encoded = encode(
        examples,
        tokenizer,
        max_length=min(limits if max_length is None else [max_length, *limits]),
        truncate=max_length is not None,
        prompt=prompt,
        token_types=known > 1 or None,
        **options,
    )
    if prompt is not None:
        _check_beginning(encoded, tokenizer)
    elif not is_causal(model):
        _check_class_token(encoded, tokenizer, name_of(model))
    return as_read(encoded, tokenizer, known, name_of(model))


def _check_beginning(encoded: EncodedExamples, tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn of prompts without the token that the tokenizer begins every text with."""
    first = list(tokenizer("a")["input_ids"][:1])
    n = sum(list(ids[:1]) != first for ids in encoded.input_ids)
    if first == [tokenizer.bos_token_id] and n:
        token = tokenizer.bos_token
        warn(
            f"prompt: {n} of {len(encoded)} do not begin with {token!r}, with which the tokenizer "
            "begins texts, and nothing is added to a prompt: models that were trained with it "
            f"answer otherwise without it; write {token} at the beginning of the prompt (--prompt),"
            " unless the model was fine-tuned without it"
        )


def _check_class_token(
    encoded: EncodedExamples, tokenizer: PreTrainedTokenizerBase, reader: str
) -> None:
    """Warn of texts for an encoder without the special token that its head reads."""
    token = tokenizer.cls_token
    n = sum(tokenizer.cls_token_id not in ids for ids in encoded.input_ids)
    if token and n:
        warn(
            f"examples {encoded.examples.name!r}: {n} of {len(encoded)} have no {token!r}, as "
            f"{type(tokenizer).__name__} has that token but does not put it into texts, and "
            f"{reader} reads its answer from the first token of each: check that the tokenizer is "
            "the model's own (post_processor in its tokenizer.json)"
        )


def tokenizer_of(model: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's checkpoint; raises `InputError` if it is not known."""
    if model not in _tokenizers:
        tokenizer = getattr(model, "tokenizer", None)
        # Of models that others loaded, the configuration of the Hugging Face model may tell.
        named = getattr(getattr(weights_of(model), "config", None), "name_or_path", None)
        source, revision = _origins.get(model) or (named and str(named), None)
        if source:
            tokenizer = load_tokenizer(source, revision=revision)
            check_vocabulary(source, tokenizer, model)
        if tokenizer is None:
            raise InputError(
                f"tokenizer: not known for {name_of(model)}, which did not come from a checkpoint; "
                "load the model with mechcore.load_model, or encode the examples with "
                "as_encoded(model, data, tokenizer=mechcore.load_tokenizer(path))"
            )
        _tokenizers[model] = tokenizer
    return _tokenizers[model]
