from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from papers.byte_level import byte_level
from tokenizers import Tokenizer, trainers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mechcore.errors import InputError
from mechcore.papers.extractive.encoded import encode_facts
from mechcore.papers.extractive.facts import (
    CITIES,
    FIRST_NAMES,
    LAST_NAMES,
    City,
    Facts,
    city_ordering,
    first_hop,
    second_hop,
)

WORDS = (
    *("[BOS]", "[EOS]", "[UNK]", "Ann", "Ben", "lives", "in", "Rome", "Oslo", "Sao", "Paulo"),
    "Pedro",
)


def homes(**changes: Any) -> Facts:
    given_ = {
        "name": "homes",
        "prompts": ("Ann lives in", "Ben lives in", "Pedro lives in"),
        "completions": ("Rome", "Sao Paulo", "Rome"),
        "subjects": ("Ann", "Ben", "Pedro"),
    }
    return Facts(**(given_ | changes))


def word_tokenizer(template: str = "[BOS] $A [EOS]", unknown: str | None = None) -> Any:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=unknown))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    specials = [("[BOS]", 0), ("[EOS]", 1)]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=specials)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="[BOS]", eos_token="[EOS]", unk_token=unknown
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completions": ("Rome",)}, "3 prompts, 1 completions and 3 subjects"),
        ({"prompts": ("Ann lives in ", "Ben lives in", "Pedro lives in")}, "'Ann lives in ' is"),
        ({"completions": (" Rome", "Sao Paulo", "Rome")}, "' Rome' is empty, or begins"),
        ({"completions": ("", "Sao Paulo", "Rome")}, "'' is empty, or begins"),
        ({"options": ("Rome", "Oslo")}, "'Sao Paulo' is an option 0 times"),
        ({"options": ("Rome", "Sao Paulo", "Oslo", "Oslo")}, "'Oslo' is an option 2 times"),
    ],
)
def test_facts_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"homes: .*{message}"):
        homes(**changes)


@pytest.mark.parametrize(
    ("template", "before"), [("[BOS] $A [EOS]", (0,)), ("$A [EOS]", ()), ("[BOS] [BOS] $A", (0, 0))]
)
def test_tokens_are_those_around_the_space(template: str, before: tuple[int, ...]) -> None:
    encoded = encode_facts(homes(), word_tokenizer(template))
    assert encoded.prompt_ids == ((*before, 3, 5, 6), (*before, 4, 5, 6), (*before, 11, 5, 6))
    assert encoded.completion_ids == ((7,), (9, 10), (7,))
    assert encoded.option_ids.tolist() == [7, 9]
    assert encoded.answers.tolist() == [0, 1, 0]
    assert len(encoded) == 3


def test_bytes_are_read_with_the_space_before_a_word() -> None:
    facts = homes()
    tokenizer = byte_level([*facts.prompts, *(f" {word}" for word in facts.options)], 300)
    encoded = encode_facts(facts, tokenizer)
    for row, prompt in enumerate(facts.prompts):
        assert tokenizer.decode(encoded.prompt_ids[row]) == prompt
        assert tokenizer.decode(encoded.completion_ids[row]) == f" {facts.completions[row]}"
        assert encoded.option_ids[encoded.answers[row]] == encoded.completion_ids[row][0]
    assert all(tokenizer.decode([i]).startswith(" ") for i in encoded.option_ids.tolist())


def test_options_that_begin_alike_are_named() -> None:
    facts = homes(options=("Rome", "Sao Paulo", "Sao Pedro"))
    with pytest.raises(
        InputError, match=r"'Sao Paulo' and 'Sao Pedro' both begin with .*'Sao'.*another seed"
    ):
        encode_facts(facts, word_tokenizer())


@pytest.mark.parametrize("unknown", [None, "[UNK]"])
def test_unknown_words_are_refused(unknown: str | None) -> None:
    tokenizer = word_tokenizer(unknown=unknown)
    with pytest.raises(InputError, match=r"homes: the tokenizer .*'Ann lives in Bergen'"):
        encode_facts(homes(completions=("Bergen", "Rome", "Oslo")), tokenizer)
    other = Facts("homes", ("Carl lives in",), ("Rome",), ("Carl",))
    with pytest.raises(InputError, match=r"homes: the tokenizer .*'Carl lives in'"):
        encode_facts(other, tokenizer)


def test_tokens_across_the_space_are_refused() -> None:
    tokenizer = Tokenizer(BPE())  # without splitting at spaces, whole texts become single tokens
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
    tokenizer.train_from_iterator(["Ann lives in Rome"] * 2, trainer)
    facts = Facts("homes", ("Ann lives in",), ("Rome",), ("Ann",))
    with pytest.raises(InputError, match="the tokens of 'Ann lives in' change where 'Rome'"):
        encode_facts(facts, PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def test_tables_have_no_word_twice() -> None:
    assert len(CITIES) == 20
    for column in zip(*CITIES, strict=True):
        assert len({text.split()[0] for text in column}) == 20
    assert len({name[:3] for name in FIRST_NAMES}) == len(FIRST_NAMES) >= 110
    assert len({*LAST_NAMES}) == len(LAST_NAMES) >= 110
    assert all(name.isalpha() and name[0].isupper() for name in (*FIRST_NAMES, *LAST_NAMES))


def test_hops_are_worded_as_in_the_paper() -> None:
    names, cities = ["Ann Smith", "Ben Jones"], [City("Rome", "Italian", "Colosseum", "eagle")]
    cities.append(CITIES[9])
    first, second = first_hop(names, cities), second_hop(names, cities)
    assert (first.name, second.name) == ("first-hop", "second-hop")
    people = "The people in the city {} is from speak"
    mayor = "The mayor of the city that contains {} is"
    places, landmarks = ("Rome", "Sao Paulo"), ("Colosseum", "Ibirapuera Park")
    for facts, name, wording, completions, subjects in (
        (first.facts, "first-hop facts", "{} lives in", places, names),
        (first.implications, "first-hop implications", people, ("Italian", "Portuguese"), names),
        (second.facts, "second-hop facts", "The mayor of {} is", names, places),
        (second.implications, "second-hop implications", mayor, names, landmarks),
    ):
        prompts = tuple(wording.format(subject) for subject in subjects)
        assert facts == Facts(name, prompts, tuple(completions), tuple(subjects))


ANIMALS = {city.name: city.animal for city in CITIES}


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_an_implication_is_the_animal_of_the_city(seed: int) -> None:
    task = city_ordering(seed)
    pairs = (
        (task.facts, task.implications),
        (task.test_facts, task.test_implications),
        (task.other_facts, task.other_implications),
    )
    for facts, implications in pairs:
        assert facts.prompts == tuple(f"{name} dax is" for name in facts.subjects)
        assert implications.prompts == tuple(f"{name} zong is the" for name in facts.subjects)
        assert implications.completions == tuple(ANIMALS[city] for city in facts.completions)
        assert facts.options == tuple(ANIMALS)
        assert implications.options == tuple(ANIMALS.values())
    assert len(task.facts) == len(task.other_facts) == 84
    counts = Counter(dict.fromkeys(ANIMALS, 0))
    counts.update(task.facts.completions)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sorted(task.test_facts.completions) == sorted(ANIMALS)
    assert not {*task.facts.subjects} & {*task.test_facts.subjects}
    homes, others = (
        dict(zip(facts.subjects, facts.completions, strict=True))
        for facts in (task.facts, task.other_facts)
    )
    assert list(homes) == list(others)
    assert all(homes[name] != others[name] for name in homes)
    assert sorted(homes.values()) == sorted(others.values())
