"""Prompts of language models, each with answers of its own: token ids [batch, pos], or rows.

Rows have a column ``prompt`` (texts, begun as the tokenizer begins them, or token ids), and perhaps
``correct`` and ``wrong`` (words of one token as they go on with the prompt, token ids, or lists),
``counterfactual`` (the prompt of ``fill="counterfactual"``), ``subset`` and ``cluster``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import CLUSTER
from mechcore.data.formats import KNOWN_COLUMNS
from mechcore.data.given import given_table
from mechcore.data.readers import examples_of
from mechcore.errors import InputError, shown, warn
from mechcore.models.protocol import (
    is_causal,
    is_classifier,
    longest_input,
    n_tokens,
    name_of,
    padding_token,
)

if TYPE_CHECKING:
    import pandas as pd


def prompt_table(data: Any) -> pd.DataFrame | None:
    """Rows of prompts as a table; None where ``data`` are something else."""
    import pandas as pd

    if torch.is_tensor(data):
        return pd.DataFrame({"prompt": data.tolist()}) if data.ndim == 2 else None
    table = given_table(data)
    known = set() if table is None else {*table.columns}
    return table if "prompt" in known and not known & {*KNOWN_COLUMNS["text_a"]} else None


def encoded_prompts(
    model: Any, table: pd.DataFrame, name: str, tokenizer: Callable[[], PreTrainedTokenizerBase]
) -> EncodedExamples:
    """Rows of prompts as examples without labels; asks for the tokenizer for texts alone.

    Raises:
        InputError: the model is no causal language model, a cell is no prompt or answer, an answer
            has several tokens, or a prompt has padding or too many tokens.
    """
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
        known["pairs"] = _prompts(model, table, "counterfactual", name, tokenizer)
    return replace(_prompts(model, table, "prompt", name, tokenizer), **known)


def _prompts(
    model: Any, table: pd.DataFrame, column: str, name: str, tokenizer: Any
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
        return EncodedExamples(examples, [*map(_ids, cells)], None, None, None, None, pad_id or 0)
    begin = _begin(model, tokenizer())
    encoded = encode(examples, tokenizer(), max_length=longest - len(begin), prompt="{a}")
    begun = [
        [*ids] if [*ids[: len(begin)]] == begin else [*begin, *ids] for ids in encoded.input_ids
    ]
    return replace(encoded, input_ids=begun)


def _begin(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that a text begins with, by the model itself where it has this tokenizer."""
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
    """Token ids in a cell; none if it holds something else."""
    cell = cell.tolist() if hasattr(cell, "tolist") else cell
    whole = isinstance(cell, (list, tuple)) and all(isinstance(i, Integral) for i in cell)
    return [*map(int, cell)] if whole and min(cell, default=-1) >= 0 else []
