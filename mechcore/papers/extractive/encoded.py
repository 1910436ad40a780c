"""Facts as token ids; how a model ranks the options of a prompt, and the reward of the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from mechcore.errors import InputError, MechcoreError, reason
from mechcore.evaluation.intervals import Interval, mean_intervals
from mechcore.models.protocol import Batch, forward, is_causal, is_classifier, last_real_position
from mechcore.papers.extractive.facts import Facts, FactTask, OrderingTask
from mechcore.session import plain_session
from mechcore.showing import Shown
from mechcore.tables import Column


@dataclass(frozen=True, eq=False, repr=False)
class EncodedFacts(Shown):
    """Facts as token ids: prompts with the special tokens before them, completions without.

    Attributes:
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
        return len(self.prompt_ids)

    @property
    def chance(self) -> float:
        """Mean rank of guessing among the options; 0 is best."""
        return (len(self.option_ids) - 1) / 2

    def first(self, n: int) -> EncodedFacts:
        """The first ``n``, or all if there are fewer, with all options."""
        names = ("prompt_ids", "completion_ids", "answers", "tokens")
        return replace(self, **{name: getattr(self, name)[:n] for name in names})


EncodedTask: TypeAlias = FactTask[EncodedFacts]
EncodedOrdering: TypeAlias = OrderingTask[EncodedFacts]


def encode_facts(facts: Facts, tokenizer: PreTrainedTokenizerBase) -> EncodedFacts:
    """Tokenize prompts and completions, each completion as it is read after its prompt.

    Raises:
        InputError: two options begin with the same token, a word is unknown, or a completion's
            tokens cannot be separated from its prompt's.
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


TASK = Column("task", "text", "``first-hop`` or ``second-hop``")
SPLIT = Column("data", "text", "which facts or implications")
MEAN_RANK = Column("mean_rank", "number", "mean rank of the right answer, 0 best")
POINTS = Column("n", "whole", "prompts")
CHANCE = Column("chance", "number", "mean rank of guessing", digits=1)

BATCH_SIZE = 16


def prompt_batch(prompts: Sequence[Sequence[int]]) -> dict[str, Int[Tensor, "row pos"]]:
    """Token ids padded on the right to the longest, and the attention mask."""
    ids = [torch.tensor(list(prompt), dtype=torch.long) for prompt in prompts]
    columns = {"input_ids": ids, "attention_mask": list(map(torch.ones_like, ids))}
    return {name: pad_sequence(rows, batch_first=True) for name, rows in columns.items()}


def next_token_logits(model: Any, batch: Batch) -> Float[Tensor, "row pos word"]:
    """Logits of the words after every token; raises `InputError` for encoders and classifiers."""
    if not is_causal(model) or is_classifier(model):
        kind = "a classifier" if is_classifier(model) else "an encoder"
        raise InputError(
            f"model: {type(model).__name__} is {kind}; expected a causal language model"
        )
    return forward(model, batch)


def option_logits(
    model: Any, batch: Batch, option_ids: Int[Tensor, " option"]
) -> Float[Tensor, "row option"]:
    """Logits of the options' first tokens after the last token of every prompt."""
    logits = next_token_logits(model, batch)
    last = last_real_position(torch.as_tensor(batch["attention_mask"], device=logits.device))
    rows = torch.arange(len(last), device=logits.device)
    return logits[rows, last][:, option_ids.to(logits.device)]


def reward(
    logits: Float[Tensor, "row option"], answers: Int[Tensor, " row"]
) -> Float[Tensor, " row"]:
    """Logit of the right option minus the mean over all options, R of arXiv 2412.04614."""
    rows = torch.arange(len(logits), device=logits.device)
    return logits[rows, answers.to(logits.device)] - logits.mean(dim=1)


@torch.no_grad()
def all_option_logits(
    model: Any, data: EncodedFacts, batch_size: int = BATCH_SIZE
) -> Float[Tensor, "point option"]:
    """Logits of all options after every prompt, in float32 at least, on the CPU."""
    parts = []
    for start in range(0, len(data), batch_size):
        batch = prompt_batch(data.prompt_ids[start : start + batch_size])
        parts.append(full(option_logits(model, batch, data.option_ids).cpu()))
    logits = torch.cat(parts)
    if not bool(logits.isfinite().all()):
        row = int((~logits.isfinite()).any(dim=1).nonzero()[0])
        raise MechcoreError(
            f"ranks: logits after {data.facts.prompts[row]!r} are not finite; the model's weights "
            "are damaged, as by training with too high a learning rate"
        )
    return logits


def full(tensor: Tensor) -> Tensor:
    """The same in float32 at least."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@plain_session()
def ranks(model: Any, data: EncodedFacts) -> Float[Tensor, " point"]:
    """How many options have a larger logit than the right one, ties counting half: 0 is best."""
    logits = all_option_logits(model, data)
    right = logits.gather(1, data.answers[:, None])
    above, ties = (logits > right).sum(dim=1), (logits == right).sum(dim=1) - 1
    return above + ties / 2


@plain_session()
def rewards(model: Any, data: EncodedFacts) -> Float[Tensor, " point"]:
    """`reward` of every prompt, in logits."""
    return reward(all_option_logits(model, data), data.answers)


def mean_rank(model: Any, data: EncodedFacts) -> float:
    """Mean of `ranks`; chance is half the number of options less a half (9.5 of 20)."""
    return float(ranks(model, data).double().mean())


def rank_interval(
    ranked: Float[np.ndarray, " point"], n_options: int, *, n_resamples: int = 1000
) -> Interval:
    """The wider of `mean_intervals` of ranks and of Student's t with one more prompt, a guess."""
    [measured] = mean_intervals(ranked[None], n_resamples=n_resamples)
    if len(ranked) == 1:
        return measured
    with_guess = np.append(ranked, (n_options - 1) / 2)
    error = with_guess.std(ddof=1) / np.sqrt(len(with_guess))
    reach = stats.t.ppf(0.975, len(with_guess) - 1) * error
    low = min(measured.low, with_guess.mean() - reach)
    high = max(measured.high, with_guess.mean() + reach)
    return Interval(measured.mean, max(low, 0.0), min(high, n_options - 1.0))


def measured(
    model: Any, splits: Mapping[str, EncodedFacts], /, **labels: object
) -> list[dict[str, Any]]:
    """Rows of a table: labels, then data (the split's name), mean_rank, n (points) and chance."""
    return [
        {
            **labels,
            "data": name,
            "mean_rank": mean_rank(model, data),
            "n": len(data),
            "chance": data.chance,
        }
        for name, data in splits.items()
    ]
