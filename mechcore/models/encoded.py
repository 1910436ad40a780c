"""Examples and prompts as a model reads them: as tokens of its own tokenizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from mechcore.data.encoding import PER_TOKEN, EncodedExamples, encode
from mechcore.data.examples import CLUSTER, Examples
from mechcore.data.formats import KNOWN_COLUMNS
from mechcore.data.given import EXPECTED, given_examples, given_table
from mechcore.data.readers import examples_of
from mechcore.errors import InputError, shown, warn
from mechcore.models.protocol import (
    Batch,
    is_causal,
    is_classifier,
    longest_input,
    n_token_types,
    n_tokens,
    name_of,
    padding_token,
    weights_of,
)
from mechcore.models.tokenizers import as_read, check_vocabulary, load_tokenizer

if TYPE_CHECKING:
    import pandas as pd

_tokenizers: weakref.WeakKeyDictionary[Any, PreTrainedTokenizerBase]
_tokenizers = weakref.WeakKeyDictionary()

_origins: weakref.WeakKeyDictionary[Any, tuple[str, str | None]] = weakref.WeakKeyDictionary()
"""Checkpoint and revision of models, for the whole process."""


def remember_origin(model: Any, source: str, revision: str | None) -> None:
    """Record the checkpoint of a model."""
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
    """Examples in any form, as a model reads them.

    Every function that takes examples calls this with the defaults; call it yourself to set more:
    columns, meanings of labels, the prompt of a language model.

    Args:
        model: any TransformerLens model.
        data: see `mechcore.data.given` and, for language models, `prompt_table`;
            `EncodedExamples` are returned unchanged.
        split: split of a task: ``"train"``, ``"id"`` or ``"ood"``.
        tokenizer: replaces that of the model's checkpoint.
        columns: see `mechcore.data.readers.examples_of`.
        label_map: likewise.
        labelled: whether labels are required.
        max_length: maximum tokens, after which texts are cut; without it, longer ones are refused.
        prompt: for language models, see `mechcore.data.encoding.encode`.
        answers: likewise.
        words: whether to find the words of texts, for head categories.

    Raises:
        InputError: the data cannot be read, or the model's tokenizer is not known.
    """
    if isinstance(data, EncodedExamples):
        return data
    table = None if columns else prompt_table(data)
    if table is not None:
        return encoded_prompts(model, table, split, lambda: tokenizer or tokenizer_of(model), words)
    examples = given_examples(data, split, columns=columns, label_map=label_map, labelled=labelled)
    if examples is None:
        raise InputError(f"{split} data: found {type(data).__name__}; expected {EXPECTED}")
    options: dict[str, Any] = {"max_length": max_length, "prompt": prompt}
    options |= {"answers": answers, "words": words}
    return encode_for(model, tokenizer or tokenizer_of(model), examples, **options)


def as_data(
    model: Any, data: Any, split: str, *, labelled: bool = True
) -> EncodedExamples | Iterable[Batch]:
    """Batches unchanged (also those of a ``DataLoader``), everything else by `as_encoded`."""
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
    """Tokenize examples for a model, with the token types it reads; takes options of `encode`."""
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
    """Warn of prompts without the token with which the tokenizer starts every text."""
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
    """Warn of texts for an encoder that lack the special token its head reads."""
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
    """The tokenizer of a model's checkpoint; raises `InputError` if unknown."""
    if model not in _tokenizers:
        tokenizer = getattr(model, "tokenizer", None)
        # For models loaded elsewhere, the configuration of the Hugging Face model may name it.
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


# -- prompts ---------------------------------------------------------------------------------------


def prompt_table(data: Any) -> pd.DataFrame | None:
    """Prompts of language models, each with its own answers, as a table; None for other data.

    They are token ids [batch, pos], or rows with a column ``prompt`` (token ids, or texts, to which
    the tokenizer's initial tokens are added), and optionally ``correct`` and ``wrong`` (one-token
    words that continue the prompt, token ids, or lists), ``counterfactual`` (the prompt of
    ``fill="counterfactual"``), ``subset`` and ``cluster``.
    """
    import pandas as pd

    if torch.is_tensor(data):
        return pd.DataFrame({"prompt": data.tolist()}) if data.ndim == 2 else None
    table = given_table(data)
    known = set() if table is None else {*table.columns}
    return table if "prompt" in known and not known & {*KNOWN_COLUMNS["text_a"]} else None


def encoded_prompts(
    model: Any,
    table: pd.DataFrame,
    name: str,
    tokenizer: Callable[[], PreTrainedTokenizerBase],
    words: bool = False,
) -> EncodedExamples:
    """Rows of prompts as examples, or an `InputError`; only texts need the tokenizer."""
    if is_classifier(model) or not is_causal(model):
        raise InputError(f"prompts: found {name_of(model)}; expected a causal language model")
    known: dict[str, Any] = {
        column: _answers(table, column, tokenizer)
        for column in ("correct", "wrong")
        if column in table.columns
    }
    for row, columns in enumerate(zip(*known.values(), strict=True), 1):
        answers = sorted(sum(columns, ()))
        if answers[-1] >= n_tokens(model) or len({*answers}) < len(answers):
            raise InputError(
                f"prompts: row {row} has the answers {answers}; expected different tokens, from 0 "
                f"to {n_tokens(model) - 1}"
            )
    if "counterfactual" in table.columns:
        known["pairs"] = _prompts(model, table, "counterfactual", name, tokenizer, words)
    return replace(_prompts(model, table, "prompt", name, tokenizer, words), **known)


def _prompts(
    model: Any, table: pd.DataFrame, column: str, name: str, tokenizer: Any, words: bool
) -> EncodedExamples:
    cells = [cell if isinstance(cell, str) else _ids(cell) for cell in table[column]]
    pad_id, may_begin = padding_token(model)
    longest = longest_input(model)

    def is_padded(ids: list[int]) -> bool:
        first = next((i for i, token in enumerate(ids) if token != pad_id), len(ids))
        return first > may_begin or (len(ids) > 1 and ids[-1] == pad_id)

    for row, (ids, given) in enumerate(zip(cells, table[column], strict=True), 1):
        bad = isinstance(ids, list) and (is_padded(ids) or len(ids) > longest)
        if not ids or type(ids) is not type(cells[0]) or bad:
            raise InputError(
                f"prompts: row {row}, column {column}: found {shown(repr(given))}; expected a text "
                f"or a list of at most {longest} token ids, of one kind in all rows, without "
                f"padding ({pad_id}): pass rows of their own lengths, [{{'prompt': [5, 3]}}, ...], "
                "or batches with an attention_mask"
            )
    texts = [cell if isinstance(cell, str) else " ".join(map(str, cell)) for cell in cells]
    roles = (*KNOWN_COLUMNS["subset"], *KNOWN_COLUMNS[CLUSTER])
    own = table[[role for role in roles if role in table.columns]].assign(text_a=texts)
    examples = examples_of(own, f"{name} data", name=name, labelled=False)
    if not isinstance(cells[0], str):
        if words:
            raise InputError(
                f"prompts: column {column} has token ids, whose words are not known; give texts"
            )
        return EncodedExamples(examples, [*map(_ids, cells)], None, None, None, None, pad_id or 0)
    begin = _begin(model, tokenizer())
    room = longest - len(begin)
    encoded = encode(examples, tokenizer(), max_length=room, prompt="{a}", words=words)
    before = [[] if [*ids[: len(begin)]] == begin else begin for ids in encoded.input_ids]
    tokens = [[*b, *ids] for b, ids in zip(before, encoded.input_ids, strict=True)]
    # Special tokens that are written out in a prompt are no words of it.
    marks = {*tokenizer().all_special_ids} - {tokenizer().unk_token_id}
    known: dict[str, Any] = {
        what: [_unmarked(*row, filler, marks) for row in zip(tokens, values, strict=True)]
        for what, filler in PER_TOKEN.items()
        if (values := getattr(encoded, what)) is not None
    }
    if words:
        ends = {tokenizer().sep_token_id, tokenizer().eos_token_id}
        known["separators"] = [[int(i in ends) for i in ids] for ids in tokens]
    return replace(encoded, input_ids=tokens, **known)


def _unmarked(ids: list[int], row: list[int], filler: int, marks: set[int]) -> list[int]:
    """The values of tokens, after those put before them; ``filler`` at special tokens."""
    row = [filler] * (len(ids) - len(row)) + [*row]
    return [filler if i in marks else value for i, value in zip(ids, row, strict=True)]


def _begin(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that start a text; those of the model itself if it has this tokenizer."""
    own = getattr(model, "tokenizer", None) is tokenizer
    whole = model.to_tokens("a")[0].tolist() if own else tokenizer("a")["input_ids"]
    text = tokenizer("a", add_special_tokens=False)["input_ids"]
    starts = (i for i in range(len(whole)) if whole[i : i + len(text)] == text)
    return list(whole[: next(starts, 0)])


def _answers(table: pd.DataFrame, column: str, tokenizer: Any) -> list[tuple[int, ...]]:
    """The tokens of answers, row by row."""
    known: dict[str, int] = {}
    rows, joined, apart = [], [], []
    for number, (cell, prompt) in enumerate(zip(table[column], table["prompt"], strict=True), 1):
        several = cell.tolist() if hasattr(cell, "tolist") else cell
        several = several if isinstance(several, (list, tuple)) else [several]
        for answer in several:
            if isinstance(answer, str) and answer not in known:
                tokens = tokenizer()(answer, add_special_tokens=False)["input_ids"]
                if len(tokens) != 1 or tokens[0] == tokenizer().unk_token_id:
                    raise InputError(
                        f"prompts: row {number}, column {column}: {answer!r} is "
                        f"{tokenizer().convert_ids_to_tokens(tokens)}; expected one known token: "
                        "mind the leading space, choose another word, or give a token id"
                    )
                known[answer] = tokens[0]
            if isinstance(answer, str) and isinstance(prompt, str):
                joined.append(prompt + answer)
                apart.append((prompt, answer))
        tokens = _ids([known.get(answer, answer) for answer in several])
        if not tokens:
            raise InputError(
                f"prompts: row {number}, column {column}: found {shown(repr(cell))}; expected a "
                "word, a token id, or a list of these"
            )
        rows.append(tuple(tokens))
    if apart:
        options = {"add_special_tokens": False, "verbose": False}
        whole = tokenizer()(joined, **options)["input_ids"]
        alone = tokenizer()([prompt for prompt, _ in apart], **options)["input_ids"]
        pairs = zip(whole, alone, apart, strict=True)
        if wrong := [at for ids, part, at in pairs if ids != [*part, known[at[1]]]]:
            warn(
                f"prompts, column {column}: {len(wrong)} of {len(apart)} answers are other tokens "
                f"after their prompts, such as {wrong[0][1]!r} after {wrong[0][0][-40:]!r}, so "
                "that another word is scored: move the space between them to the other of the two"
            )
    return rows


def _ids(cell: Any) -> list[int]:
    """Token ids in a cell; empty if it holds anything else."""
    cell = cell.tolist() if hasattr(cell, "tolist") else cell
    whole = isinstance(cell, (list, tuple)) and all(isinstance(i, Integral) for i in cell)
    return [*map(int, cell)] if whole and min(cell, default=-1) >= 0 else []
