"""The tasks of the experiments as token ids."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from mechcore.papers.extractive.facts import EncodedFacts, FactTask, OrderingTask, encode_facts


@dataclass(frozen=True, eq=False)
class EncodedTask:
    """A `FactTask` as token ids.

    Attributes:
        name: of the task.
        facts: trained.
        implications: never trained.
    """

    name: str
    facts: EncodedFacts
    implications: EncodedFacts


@dataclass(frozen=True, eq=False)
class EncodedOrdering:
    """An `OrderingTask` as token ids.

    Attributes:
        facts, implications: of the training names.
        test_facts, test_implications: of the test names.
        other_facts, other_implications: of the training names, with another assignment.
        scored_implications: the first of ``implications``, which scores are taken on.
    """

    facts: EncodedFacts
    implications: EncodedFacts
    test_facts: EncodedFacts
    test_implications: EncodedFacts
    other_facts: EncodedFacts
    other_implications: EncodedFacts
    scored_implications: EncodedFacts


def encode_task(task: FactTask, tokenizer: PreTrainedTokenizerBase) -> EncodedTask:
    """A task as token ids.

    Raises:
        InputError: the tokenizer cannot write it, or does not tell its options apart.
    """
    facts, implications = (
        encode_facts(each, tokenizer) for each in (task.facts, task.implications)
    )
    return EncodedTask(task.name, facts, implications)


def encode_ordering(
    task: OrderingTask, tokenizer: PreTrainedTokenizerBase, *, n_scored: int = 20
) -> EncodedOrdering:
    """A task as token ids.

    Args:
        task: the texts.
        tokenizer: a fast tokenizer.
        n_scored: number of training implications that scores are taken on; all if there are fewer.

    Raises:
        InputError: the tokenizer cannot write it, or does not tell its options apart.
    """
    first = range(min(n_scored, len(task.implications)))
    parts = (
        *(task.facts, task.implications, task.test_facts, task.test_implications),
        *(task.other_facts, task.other_implications, task.implications.select(first)),
    )
    return EncodedOrdering(*(encode_facts(part, tokenizer) for part in parts))


def chance(data: EncodedFacts) -> float:
    """Mean rank of guessing among the options; 0 is best."""
    return (len(data.option_ids) - 1) / 2
