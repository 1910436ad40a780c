"""Prompts of language models, each with answers of its own: tokens, texts, or rows of these.

Rows (a DataFrame, a ``datasets.Dataset`` or a list of dicts) have a column ``prompt`` of texts or
lists of token ids, and perhaps

- ``correct`` and ``wrong``: the answers, words of one token as they go on with the prompt (mind the
  space before them) or token ids; a cell may hold a list of several;
- ``counterfactual``: another prompt, whose activations ``fill="counterfactual"`` puts in place of
  an ablated output (activation patching);
- ``subset`` and ``cluster``, as examples have.

A tensor of token ids [batch, pos] is rows of prompts without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from mechcore.data.columns import KNOWN_COLUMNS
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import CLUSTER
from mechcore.data.given import given_table
from mechcore.data.readers import examples_of
from mechcore.errors import InputError, shown, warn

if TYPE_CHECKING:
    import pandas as pd

PROMPT, COUNTERFACTUAL = "prompt", "counterfactual"
ANSWERS = ("correct", "wrong")


def as_prompts(data: Any) -> Any:
    """Texts as rows of prompts; other data as they are."""
    texts = isinstance(data, (list, tuple)) and all(isinstance(text, str) for text in data)
    return [{PROMPT: text} for text in data] if texts else data


def prompt_table(data: Any) -> pd.DataFrame | None:
    """Rows of prompts as a table; None where ``data`` are something else.

    Raises:
        InputError: they are a tensor of another shape.
    """
    import pandas as pd

    if torch.is_tensor(data):
        if data.ndim != 2 or 0 in data.shape or data.is_floating_point() or data.is_complex():
            raise InputError(
                f"tokens: found a tensor {tuple(data.shape)} of {data.dtype}; expected token ids, "
                "whole numbers [batch, pos], not empty"
            )
        return pd.DataFrame({PROMPT: data.tolist()})
    table = given_table(data)
    if table is None or PROMPT not in table.columns:
        return None
    return None if set(KNOWN_COLUMNS["text_a"]) & {*table.columns} else table


@dataclass(frozen=True)
class Reader:
    """How a language model reads prompts.

    Attributes:
        tokenizer: gives the model's tokenizer; asked for texts alone.
        begins: gives the tokens that the tokenizer begins every text with.
        max_length: most tokens that the model takes.
        pad_id: the token that rows are padded with, None if it is not known.
        in_texts: whether texts may begin with that token.
    """

    tokenizer: Callable[[], PreTrainedTokenizerBase]
    begins: Callable[[], Sequence[int]]
    max_length: int
    pad_id: int | None
    in_texts: bool

    def read(self, table: pd.DataFrame, name: str) -> EncodedExamples:
        """Rows of prompts as examples without labels.

        Raises:
            InputError: a cell is no prompt or answer, an answer has several tokens, or a prompt
                has padding or too many tokens.
        """
        encoded = self._prompts(table, PROMPT, name)
        tokens: dict[str, Any] = {}
        for column in ANSWERS:
            if column in table.columns:
                cells = table[column].tolist()
                tokens[column] = self._answers(cells, column, table[PROMPT].tolist())
        for row, both in enumerate(zip(*tokens.values(), strict=True) if len(tokens) == 2 else ()):
            if same := {*both[0]} & {*both[1]}:
                raise InputError(
                    f"prompts: row {row + 1} has token {min(same)} as a correct and as a wrong "
                    "answer; expected different tokens"
                )
        pairs = None
        if COUNTERFACTUAL in table.columns:
            pairs = self._prompts(table, COUNTERFACTUAL, name)
        return replace(encoded, pairs=pairs, **tokens)

    def _prompts(self, table: pd.DataFrame, column: str, name: str) -> EncodedExamples:
        cells = table[column].tolist()
        rows = [cell if isinstance(cell, str) and cell.strip() else _ids(cell) for cell in cells]
        kinds = {type(row) for row in rows}
        for number, (cell, row) in enumerate(zip(cells, rows, strict=True), 1):
            place = f"prompts: row {number}, column {column}"
            if not row or len(kinds) > 1:
                raise InputError(
                    f"{place}: found {shown(repr(cell))}; expected a text or a list of token ids, "
                    "of one kind in all rows"
                )
            if not isinstance(row, str):
                self._check(row, place)
        written = [row if isinstance(row, str) else " ".join(map(str, row)) for row in rows]
        roles = (*KNOWN_COLUMNS["subset"], *KNOWN_COLUMNS[CLUSTER])
        own = table[[role for role in roles if role in table.columns]].assign(text_a=written)
        examples = examples_of(own, f"{name} data", name=name, labelled=False)
        if str not in kinds:
            pad = 0 if self.pad_id is None else self.pad_id
            return EncodedExamples(examples, [*map(_ids, cells)], None, None, None, None, pad)
        begin = list(self.begins())
        encoded = encode(
            examples, self.tokenizer(), max_length=self.max_length - len(begin), prompt="{a}"
        )
        begun = [
            ids if [*ids[: len(begin)]] == begin else [*begin, *ids] for ids in encoded.input_ids
        ]
        return replace(encoded, input_ids=begun)

    def _check(self, ids: Sequence[int], place: str) -> None:
        """Make sure that token ids fit the model, and are not padded."""
        if len(ids) > self.max_length:
            raise InputError(
                f"{place}: has {len(ids)} tokens; expected at most {self.max_length}, as many as "
                "the model has positions"
            )
        n_before = next((i for i, token in enumerate(ids) if token != self.pad_id), len(ids))
        if n_before > self.in_texts or (len(ids) > 1 and ids[-1] == self.pad_id):
            end = "ends" if n_before <= self.in_texts else "begins"
            raise InputError(
                f"{place}: {end} with the padding token ({self.pad_id}), and no mask tells padding "
                "from text; expected tokens without padding: pass rows of their own lengths, "
                "[{'prompt': [5, 3]}, ...], or batches with an attention_mask"
            )

    def _answers(
        self, cells: Sequence[Any], column: str, prompts: Sequence[Any]
    ) -> list[tuple[int, ...]]:
        """The tokens of answers, row by row."""
        words: dict[str, list[int]] = {}  # with their rows
        tokens: list[tuple[Any, ...]] = []
        for row, cell in enumerate(cells):
            place = f"prompts: row {row + 1}, column {column}"
            several = cell.tolist() if hasattr(cell, "tolist") else cell
            several = several if isinstance(several, (list, tuple)) else [several]
            if not several:
                raise InputError(f"{place}: is empty; expected a word or a token id")
            for answer in several:
                if isinstance(answer, str) and answer.strip():
                    words.setdefault(answer, []).append(row)
                elif not _is_id(answer):
                    raise InputError(
                        f"{place}: found {shown(repr(answer))}; expected a word or a token id, or "
                        "a list of these"
                    )
            tokens.append(tuple(several))
        known = {word: self._token(word, column, rows[0]) for word, rows in words.items()}
        if words and isinstance(prompts[0], str):
            pairs = [(prompts[row], word) for word, rows in words.items() for row in rows]
            self._check_joined(pairs, known, column)
        return [tuple(int(known.get(answer, answer)) for answer in row) for row in tokens]

    def _check_joined(
        self, pairs: Sequence[tuple[str, str]], tokens: dict[str, int], column: str
    ) -> None:
        """Warn of prompts that with their answer are other tokens than the two one by one."""
        alone, joined = (
            self.tokenizer()(texts, add_special_tokens=False, verbose=False)["input_ids"]
            for texts in ([prompt for prompt, _ in pairs], [a + b for a, b in pairs])
        )
        wanted = [[*ids, tokens[word]] for ids, (_, word) in zip(alone, pairs, strict=True)]
        wrong = [i for i, ids in enumerate(joined) if list(ids) != wanted[i]]
        if wrong:
            prompt, word = pairs[wrong[0]]
            warn(
                f"prompts, column {column}: {len(wrong)} of {len(pairs)} answers are other tokens "
                f"after their prompts, such as {word!r} after {prompt[-40:]!r}; what is scored is "
                "another word than the text would have: move the space between prompt and answer "
                "to the other of the two"
            )

    def _token(self, word: str, column: str, row: int) -> int:
        tokenizer = self.tokenizer()
        ids = list(tokenizer(word, add_special_tokens=False)["input_ids"])
        if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
            raise InputError(
                f"prompts: row {row + 1}, column {column}: {word!r} is "
                f"{tokenizer.convert_ids_to_tokens(ids)}; expected one known token: mind the "
                "leading space, choose another word, or give the id of a token"
            )
        return int(ids[0])


def _is_id(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _ids(cell: Any) -> list[int]:
    """Token ids in a cell; none if it holds something else."""
    cell = cell.tolist() if hasattr(cell, "tolist") else cell
    fits = isinstance(cell, (list, tuple)) and all(map(_is_id, cell))
    return [*map(int, cell)] if fits else []
