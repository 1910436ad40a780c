"""Answers of language models: their tokens, and prompts as turns of a chat."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date

from transformers import PreTrainedTokenizerBase

from mechcore.errors import InputError, reason, warn

_DATE = re.compile(r"""strftime_now\((["'])(.*?)\1\)""")

TODAY = date(2024, 7, 26)
"""Fixed date for chat templates that write one, so that results are reproducible."""


def chat_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | None) -> str:
    """A prompt as the first turn of a chat, in the tokenizer's template, before the answer."""
    if prompt is None:
        raise InputError("chat template: needs a prompt (--prompt) to put into it")
    if not tokenizer.chat_template:
        raise InputError(
            f"chat template: the tokenizer of {tokenizer.name_or_path or 'the model'} has none; "
            "expected an instruct model; leave --chat-template out (chat_template in files)"
        )
    try:
        template = tokenizer.get_chat_template()
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            chat_template=_DATE.sub(lambda now: repr(TODAY.strftime(now[2])), template),
            tokenize=False,
            add_generation_prompt=True,
        )
    except Exception as error:  # templates raise errors of any kind
        raise InputError(f"chat template: cannot hold the prompt: {reason(error)}") from error
    return str(chat)


def answer_ids(
    answers: Mapping[str, str], tokenizer: PreTrainedTokenizerBase, prompt: str | None
) -> dict[str, tuple[int, ...]]:
    """The tokens of every label's answer; `InputError` for unknown or indistinguishable ones."""
    if prompt is None:
        raise InputError("answers: answer words need a prompt that they complete (--prompt)")
    ids: dict[str, tuple[int, ...]] = {}
    for label, words in answers.items():
        tokens = tokenizer(words, add_special_tokens=False)["input_ids"]
        if not tokens or tokenizer.unk_token_id in tokens:
            raise InputError(
                f"answer {words!r} of label {label!r}: its tokens are "
                f"{tokenizer.convert_ids_to_tokens(tokens)}; expected known ones: choose other "
                "words (--answers)"
            )
        ids[label] = tuple(tokens)
    if len(set(ids.values())) < len(ids) or len(ids) < 2:
        raise InputError(
            f"answers {dict(answers)}: expected at least two of different tokens (--answers "
            "LABEL=WORD,LABEL=WORD)"
        )
    for label, tokens in ids.items():
        for other, longer in ids.items():
            if label != other and longer[: len(tokens)] == tokens:
                raise InputError(
                    f"answers {dict(answers)}: the tokens of {answers[other]!r} begin with those "
                    f"of {answers[label]!r}, so it can never be likelier; expected answers none of "
                    "which begins with another: end both alike, for example with a full stop"
                )
    return ids


def single_tokens(answers: Mapping[str, str], ids: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The answers' tokens, one each; raises `InputError` if an answer has several."""
    for label, tokens in ids.items():
        if len(tokens) > 1:
            raise InputError(
                f"answer {answers[label]!r} of label {label!r}: found {len(tokens)} tokens; "
                "expected one: check the leading space, or choose another word"
            )
    return tuple(token for (token,) in ids.values())


def check_continues(
    answers: Mapping[str, str],
    tokens: Mapping[str, tuple[int, ...]],
    prompts: Sequence[str],
    ids: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Check that a prompt with its answer has the tokens of the prompt, then the answer's.

    For an answer of one token it only warns, since that token is scored regardless. No token
    extends beyond a word with the space before it, so one prompt is checked per ending.

    Raises:
        InputError: the tokenizer joins a prompt and an answer of several tokens differently.
    """
    endings: dict[str, int] = {}
    for row, prompt in enumerate(prompts):
        endings.setdefault(_ending(prompt), row)
    for label, answer in tokens.items():
        together = [prompts[row] + answers[label] for row in endings.values()]
        joined = tokenizer(together, add_special_tokens=False, verbose=False)["input_ids"]
        for text, whole, row in zip(together, joined, endings.values(), strict=True):
            if whole == [*ids[row], *answer]:
                continue
            end = tokenizer.convert_ids_to_tokens(whole[-len(answer) - 1 :])
            pieces = tokenizer.convert_ids_to_tokens(list(answer))
            message = (
                f"answer {answers[label]!r} of label {label!r}: is {pieces} alone, but "
                f"{text[-60:]!r} ends in {end}; expected the same tokens: move the space from "
                "the prompt to the answer, or the other way round"
            )
            if len(answer) > 1:
                raise InputError(message)
            warn(f"{message}; otherwise the scored token differs from that of the text")
            break


def _ending(text: str) -> str:
    """The last word, the space before it and what follows it."""
    words = text.split()
    return text[max(text.rstrip().rfind(words[-1]) - 1, 0) :] if words else text
