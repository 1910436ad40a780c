from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mechcore.errors import InputError
from mechcore.papers.extractive.encoded import encode_facts
from mechcore.papers.extractive.fact_tables import CITIES, FIRST_NAMES, LAST_NAMES, City
from mechcore.papers.extractive.facts import (
    Facts,
    city_ordering,
    city_tasks,
    first_hop,
    ordering,
    second_hop,
    shuffled,
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


def byte_tokenizer(texts: list[str], size: int) -> Any:
    """A byte-level BPE that learned its merges from texts; GPT-2's adds no special token either."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
    )


def splits(seed: int) -> list[Facts]:
    """All facts and implications of a seed."""
    task = city_ordering(seed)
    found = [each for one in city_tasks(seed) for each in (one.facts, one.implications)]
    return [*found, *(getattr(task, field.name) for field in fields(task))]


# -- texts ----------------------------------------------------------------------------------------


def test_options_are_the_completions_in_order() -> None:
    facts = homes()
    assert facts.options == ("Rome", "Sao Paulo")
    assert len(facts) == 3
    assert homes(options=("Oslo", "Sao Paulo", "Rome")).options == ("Oslo", "Sao Paulo", "Rome")


def test_chosen_rows_keep_all_options() -> None:
    chosen = homes().select([2, 0])
    assert chosen.prompts == ("Pedro lives in", "Ann lives in")
    assert chosen.completions == ("Rome", "Rome")
    assert chosen.subjects == ("Pedro", "Ann")
    assert chosen.options == ("Rome", "Sao Paulo")
    with pytest.raises(InputError, match="homes: row 3; expected rows from 0 to 2"):
        homes().select([0, 3])
    with pytest.raises(InputError, match="homes: row -1; expected rows"):
        homes().select([-1])
    with pytest.raises(InputError, match="homes: 0 prompts"):
        homes().select([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completions": ("Rome",)}, "3 prompts, 1 completions and 3 subjects"),
        ({"prompts": ("Ann lives in ", "Ben lives in", "Pedro lives in")}, "'Ann lives in ' is"),
        ({"completions": (" Rome", "Sao Paulo", "Rome")}, "' Rome' is empty, or begins"),
        ({"completions": ("", "Sao Paulo", "Rome")}, "'' is empty, or begins"),
        ({"subjects": ("Ann", "Ben", "Carl")}, "'Pedro lives in' does not have its subject 'Carl'"),
        ({"options": ("Rome", "Oslo")}, "'Sao Paulo' is an option 0 times"),
        ({"options": ("Rome", "Sao Paulo", "Oslo", "Oslo")}, "'Oslo' is an option 2 times"),
    ],
)
def test_facts_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"homes: .*{message}"):
        homes(**changes)


# -- tokens ---------------------------------------------------------------------------------------


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
    tokenizer = byte_tokenizer([*facts.prompts, *(f" {word}" for word in facts.options)], 300)
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


# -- the paper's tasks ----------------------------------------------------------------------------


def test_tables_have_no_word_twice() -> None:
    assert len(CITIES) == 20
    for column in zip(*CITIES, strict=True):
        assert len({text.split()[0] for text in column}) == 20
    assert len({name[:3] for name in FIRST_NAMES}) == len(FIRST_NAMES) >= 110
    assert len({*LAST_NAMES}) == len(LAST_NAMES) >= 110
    assert all(name.isalpha() and name[0].isupper() for name in (*FIRST_NAMES, *LAST_NAMES))


def test_hops_are_worded_as_in_the_paper() -> None:
    names = ["Ann Smith", "Ben Jones"]
    cities = [City("Rome", "Italian", "Colosseum", "eagle"), CITIES[9]]
    first, second = first_hop(names, cities), second_hop(names, cities)
    assert (first.name, second.name) == ("first-hop", "second-hop")
    assert first.facts == Facts(
        "first-hop facts",
        ("Ann Smith lives in", "Ben Jones lives in"),
        ("Rome", "Sao Paulo"),
        ("Ann Smith", "Ben Jones"),
    )
    assert first.implications == Facts(
        "first-hop implications",
        (
            "The people in the city Ann Smith is from speak",
            "The people in the city Ben Jones is from speak",
        ),
        ("Italian", "Portuguese"),
        ("Ann Smith", "Ben Jones"),
    )
    assert second.facts == Facts(
        "second-hop facts",
        ("The mayor of Rome is", "The mayor of Sao Paulo is"),
        ("Ann Smith", "Ben Jones"),
        ("Rome", "Sao Paulo"),
    )
    assert second.implications == Facts(
        "second-hop implications",
        (
            "The mayor of the city that contains Colosseum is",
            "The mayor of the city that contains Ibirapuera Park is",
        ),
        ("Ann Smith", "Ben Jones"),
        ("Colosseum", "Ibirapuera Park"),
    )


def test_tasks_are_seeded() -> None:
    assert city_tasks(0) == city_tasks(0)
    assert city_ordering(0) == city_ordering(0)
    assert city_tasks(0)[0].facts.subjects != city_tasks(1)[0].facts.subjects
    assert city_ordering(0).facts.subjects != city_ordering(1).facts.subjects


@pytest.mark.parametrize("seed", range(3))
def test_names_have_two_words_of_their_own(seed: int) -> None:
    first, second = city_tasks(seed)
    task = city_ordering(seed)
    for names in (
        first.facts.subjects,
        second.facts.completions,
        (*task.facts.subjects, *task.test_facts.subjects),
    ):
        words = [name.split() for name in names]
        assert {word for word, _ in words} <= {*FIRST_NAMES}
        assert {word for _, word in words} <= {*LAST_NAMES}
        assert len({word for both in words for word in both}) == 2 * len(names)


def test_people_of_the_two_hops_are_drawn_apart() -> None:
    first, second = city_tasks(0)
    assert first.facts.subjects != second.facts.completions


def homes_of(facts: Facts) -> dict[str, str]:
    return dict(zip(facts.subjects, facts.completions, strict=True))


ANIMALS = {city.name: city.animal for city in CITIES}


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(2, 112))
def test_an_implication_is_the_animal_of_the_city(seed: int, n_train: int) -> None:
    task = city_ordering(seed, n_train)
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
    assert len(task.facts) == len(task.other_facts) == n_train
    counts = Counter(dict.fromkeys(ANIMALS, 0))
    counts.update(task.facts.completions)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sorted(task.test_facts.completions) == sorted(ANIMALS)
    assert not {*task.facts.subjects} & {*task.test_facts.subjects}
    homes, others = homes_of(task.facts), homes_of(task.other_facts)
    assert list(homes) == list(others)
    assert all(homes[name] != others[name] for name in homes)
    assert sorted(homes.values()) == sorted(others.values())


def test_there_are_84_training_names() -> None:
    assert len(city_ordering(0).facts) == 84


@pytest.mark.parametrize("n_train", [-3, 1, 113])
def test_names_that_there_are_not_are_refused(n_train: int) -> None:
    with pytest.raises(InputError, match=f"n_train is {n_train}; expected 2 to 112 names"):
        city_ordering(0, n_train)


@pytest.mark.parametrize(("n", "k"), [(1, 20), (3, 2), (5, 1)])
def test_names_that_would_keep_their_city_are_refused(n: int, k: int) -> None:
    with pytest.raises(InputError, match=f"{n} names in {k} cities cannot all get another city"):
        ordering([f"Ann{i}" for i in range(n)], ["Zoe"], CITIES[:k], random.Random(0))


def test_a_shuffle_needs_nothing_but_random() -> None:
    class Falling(random.Random):
        value = 1.0

        def random(self) -> float:
            self.value -= 0.1
            return self.value

    assert shuffled("abc", Falling()) == ["c", "b", "a"]


# -- real tokenizers ------------------------------------------------------------------------------


def test_byte_level_tokens_tell_all_options_apart() -> None:
    texts = [f" {word}" for word in (*FIRST_NAMES, *LAST_NAMES, *CITIES[0])]
    tokenizer = byte_tokenizer(texts, 500)
    for seed in range(5):
        for facts in splits(seed):
            if facts.name.startswith("second-hop"):
                continue  # 500 tokens are too few to tell names apart
            words = [option.split()[0] for option in facts.options]
            first = [tokenizer(f" {word}")["input_ids"][0] for word in words]
            if len({*first}) < len(first):
                with pytest.raises(InputError, match="both begin with the token"):
                    encode_facts(facts, tokenizer)
            else:
                assert encode_facts(facts, tokenizer).option_ids.tolist() == first


@pytest.mark.real
@pytest.mark.parametrize("seed", range(5))
def test_a_real_tokenizer_tells_all_options_apart(seed: int, real_data: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(real_data / "models" / "minilm-nli")
    for facts in splits(seed):
        encoded = encode_facts(facts, tokenizer)
        starts = {ids[0] for ids in encoded.prompt_ids}
        ends = {ids[-1] for ids in encoded.prompt_ids}
        assert starts == {tokenizer.cls_token_id}
        assert tokenizer.sep_token_id not in ends
        assert tokenizer.decode(encoded.completion_ids[0]) == facts.completions[0].lower()
