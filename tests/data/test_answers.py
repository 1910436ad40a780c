"""Chats that prompts are turns of, and answers that prompts go on with."""

from __future__ import annotations

from typing import Any

import helpers
import pytest
import transformers as hf

from mechcore.data.encoding import encode
from mechcore.data.examples import Examples
from mechcore.data.tokens import chat_prompt, check_continues
from mechcore.errors import InputError, MechcoreWarning


def examples(first: str, second: str) -> Examples:
    return helpers.examples_of([(first, second)])


CHAT = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def chatting(template: str | None) -> hf.PreTrainedTokenizerFast:
    tokenizer = helpers.word_tokenizer(False)
    tokenizer.chat_template = template
    return tokenizer


def test_a_prompt_is_a_turn_of_the_user_and_the_answer_is_next() -> None:
    prompt = chat_prompt(chatting(CHAT), "{a} , so {b} ? ")
    assert prompt == "<user>{a} , so {b} ?</><assistant>"
    tokenizer = helpers.word_tokenizer(False)
    data = encode(examples("the cat", "a dog"), tokenizer, max_length=20, prompt=prompt, words=True)
    words = tokenizer.convert_ids_to_tokens(data.input_ids[0])
    assert [word for word in words if word != "[UNK]"] == ["the", "cat", ",", "a", "dog"]
    assert data.segments is not None
    places = dict(zip(words, data.segments[0], strict=True))
    assert (places["cat"], places["dog"], places[","]) == (0, 1, -1)


def test_templates_that_write_the_date_write_the_same_every_day() -> None:
    tokenizer = chatting("{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}")
    assert chat_prompt(tokenizer, "{a}") == "26 Jul 2024: {a}"


@pytest.mark.parametrize(
    ("template", "prompt", "message"),
    [
        (CHAT, None, r"chat template: needs a prompt \(--prompt\)"),
        (
            None,
            "{a}",
            "chat template: the tokenizer of the model has none; expected an instruct",
        ),
        (
            "{{ raise_exception('system first') }}",
            "{a}",
            "cannot hold the prompt: system first",
        ),
    ],
)
def test_prompts_that_no_chat_can_hold(template: Any, prompt: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chat_prompt(chatting(template), prompt)


def test_a_template_that_loses_a_text_is_refused() -> None:
    prompt = chat_prompt(chatting("<user>{{ messages[0].content[:4] }}"), "{a} so {b}")
    with pytest.raises(InputError, match=r"expected the places \{a\} and \{b\}, each once"):
        encode(examples("the cat", "a dog"), helpers.word_tokenizer(), max_length=9, prompt=prompt)


class Letters:
    """A tokenizer of letters that joins a "t" and an "h" after it; it counts what it reads."""

    def __init__(self) -> None:
        self.n_read = 0

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[str]]]:
        self.n_read += len(texts)
        return {"input_ids": [[*text.replace("th", "\u00fe")] for text in texts]}

    def convert_ids_to_tokens(self, ids: list[str]) -> list[str]:
        return ids


def continues(prompts: list[str], answers: dict[str, str]) -> Letters:
    tokenizer: Any = Letters()
    ids = tokenizer(prompts)["input_ids"]
    tokens = {label: tuple(word) for label, word in answers.items()}
    tokenizer.n_read = 0
    check_continues(answers, tokens, prompts, ids, tokenizer)
    return tokenizer


def test_prompts_that_end_alike_are_tried_once() -> None:
    prompts = [f"{i} of many is" for i in range(500)] + ["a  is", "is", "is ", "which are", ""]
    assert continues(prompts, {"a": "he", "b": "ha"}).n_read == 2 * 5  # " is" comes 501 times


@pytest.mark.parametrize("n_before", [0, 3])
def test_a_prompt_that_is_joined_is_found_wherever_it_is(n_before: int) -> None:
    prompts = ["it is"] * n_before + ["not a", "a cat", "the cat"]
    with pytest.raises(
        InputError, match=r"'he' of label 'a': is \['h', 'e'\] alone, but 'a cathe'"
    ):
        continues(prompts, {"a": "he"})
    with pytest.warns(MechcoreWarning, match="but 'a cath' ends in"):
        continues(prompts, {"a": "h"})
