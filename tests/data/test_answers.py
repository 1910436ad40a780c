"""Chats that prompts are turns of."""

from __future__ import annotations

from typing import Any

import helpers
import pandas as pd
import pytest
import transformers as hf

from mechcore.data.answers import chat_prompt
from mechcore.data.encoding import encode
from mechcore.data.examples import Examples
from mechcore.errors import InputError


def examples(first: str, second: str) -> Examples:
    row = {"text_a": [first], "text_b": [second], "label": ["entailment"], "subset": ["s"]}
    return Examples("one", pd.DataFrame(row))


CHAT = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def chatting(template: str | None) -> hf.PreTrainedTokenizerFast:
    tokenizer = helpers.word_tokenizer(False)
    tokenizer.chat_template = template
    return tokenizer


def test_a_prompt_is_a_turn_of_the_user_and_the_answer_is_next() -> None:
    found = chat_prompt(chatting(CHAT), "{a} , so {b} ? ")
    assert found == "<user>{a} , so {b} ?</><assistant>"
    tokenizer = helpers.word_tokenizer(False)
    data = encode(examples("the cat", "a dog"), tokenizer, max_length=20, prompt=found, words=True)
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
            "chat template: the tokenizer of the model has none; expected that of",
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
