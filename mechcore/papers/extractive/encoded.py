"""Facts as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mechcore.errors import InputError, reason
from mechcore.papers.extractive.facts import Facts, FactTask, OrderingTask
from mechcore.showing import Shown


@dataclass(frozen=True, eq=False, repr=False)
class EncodedFacts(Shown):
    """Facts as token ids: prompts with the special tokens before them, completions without.

    Attributes:
        facts: the texts.
        option_ids: the first token of a space and each option, all different.
        answers: index of every prompt's completion among the options.
        tokens: the text of every token of the prompts.
    """

    facts: Facts
    prompt_ids: tuple[tuple[int, ...], ...]
    completion_ids: tuple[tuple[int, ...], ...]
    option_ids: Int[Tensor, " option"]
    answers: Int[Tensor, " point"]
    tokens: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def chance(self) -> float:
        """Mean rank of guessing among the options; 0 is best."""
        return (len(self.option_ids) - 1) / 2

    def first(self, n: int) -> EncodedFacts:
        """The first ``n``, or all if there are fewer, with all options."""
        return replace(
            self,
            facts=self.facts.first(n),
            prompt_ids=self.prompt_ids[:n],
            completion_ids=self.completion_ids[:n],
            answers=self.answers[:n],
            tokens=self.tokens[:n],
        )


EncodedTask: TypeAlias = FactTask[EncodedFacts]
EncodedOrdering: TypeAlias = OrderingTask[EncodedFacts]


def encode_facts(facts: Facts, tokenizer: PreTrainedTokenizerBase) -> EncodedFacts:
    """Tokenize prompts and completions, each completion as it is read after its prompt.

    Raises:
        InputError: two options begin with the same token, a word is unknown, or a completion's
            tokens cannot be told from its prompt's.
    """
    prompts = [_read(prompt, facts.name, tokenizer) for prompt in facts.prompts]

    def after(row: int, text: str) -> tuple[int, ...]:
        ids = _read(f"{facts.prompts[row]} {text}", facts.name, tokenizer)
        length = len(prompts[row])
        if ids[:length] != prompts[row] or len(ids) == length:
            raise InputError(
                f"{facts.name}: the tokens of {facts.prompts[row]!r} change where {text!r} comes "
                "after it; use a tokenizer that splits texts at spaces first"
            )
        return ids[length:]

    completions = [after(row, completion) for row, completion in enumerate(facts.completions)]
    first = [after(0, option)[0] for option in facts.options]
    _check_options(facts, first, tokenizer)
    answers = [facts.options.index(completion) for completion in facts.completions]
    for row, answer in enumerate(answers):
        if completions[row][0] != first[answer]:
            raise InputError(
                f"{facts.name}: {facts.completions[row]!r} begins with another token after "
                f"{facts.prompts[row]!r} than after {facts.prompts[0]!r}; use a tokenizer that "
                "splits texts at spaces first"
            )
    return EncodedFacts(
        facts,
        tuple(prompts),
        tuple(completions),
        torch.tensor(first),
        torch.tensor(answers),
        tuple(tuple(_text(token, tokenizer) for token in ids) for ids in prompts),
    )


def encode_task(task: FactTask[Facts], tokenizer: PreTrainedTokenizerBase) -> EncodedTask:
    """`encode_facts` of both parts of a task."""
    return FactTask(task.name, *(encode_facts(f, tokenizer) for f in task.splits.values()))


def encode_ordering(
    task: OrderingTask[Facts], tokenizer: PreTrainedTokenizerBase
) -> EncodedOrdering:
    """`encode_facts` of all parts of a task."""
    return OrderingTask(*(encode_facts(f, tokenizer) for f in task.splits.values()))


def _text(token: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of a token, or its name where it is nothing but a space."""
    return str(tokenizer.decode([token])).strip() or str(tokenizer.convert_ids_to_tokens(token))


def _read(text: str, name: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids of a text with the special tokens before it, and none after it."""
    try:
        read = tokenizer(text, return_special_tokens_mask=True)
    except Exception as error:  # tokenizers raises errors without a type of their own
        raise InputError(
            f"{name}: the tokenizer cannot write {text!r} ({reason(error)}); use one that knows "
            "all its words"
        ) from error
    ids, special = list(read["input_ids"]), list(read["special_tokens_mask"])
    if any(i == tokenizer.unk_token_id and not s for i, s in zip(ids, special, strict=True)):
        raise InputError(
            f"{name}: the tokenizer does not know a word of {text!r}; use one that knows them all"
        )
    while special and special[-1]:
        del ids[-1], special[-1]
    return tuple(ids)


def _check_options(facts: Facts, first: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> None:
    seen: dict[int, str] = {}
    for option, token in zip(facts.options, first, strict=True):
        if token in seen:
            raise InputError(
                f"{facts.name}: the options {seen[token]!r} and {option!r} both begin with the "
                f"token {tokenizer.convert_ids_to_tokens(token)!r}, and their first tokens are "
                "what tells options apart; choose other completions (where names are drawn, "
                "another seed)"
            )
        seen[token] = option
