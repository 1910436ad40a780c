"""Prompts made from templates: who receives, which years are later, what a corruption changes."""

import re

import pytest

from mechcore.errors import InputError
from mechcore.worlds.prompts import NAMES, indirect_objects, later_years
from mechcore.worlds.small_gpt2 import SPECIALS, texts_of, word_tokenizer


def test_the_receiver_is_the_one_named_once() -> None:
    table = indirect_objects(200, seed=3)
    for row in table.itertuples():
        named = [word for word in re.findall(r"\w+", row.prompt) if word in NAMES]
        receiver, giver = row.correct.strip(), row.wrong.strip()
        assert sorted(named) == sorted([receiver, giver, giver])
        assert named[2] == giver
        assert row.subset == f"receiver {'first' if named[0] == receiver else 'second'}"


def test_in_the_counterfactual_a_third_person_gives() -> None:
    for row in indirect_objects(50).itertuples():
        clean, corrupted = row.prompt.split(), row.counterfactual.split()
        changed = [(a, b) for a, b in zip(clean, corrupted, strict=True) if a != b]
        assert len(changed) == 1
        assert changed[0][0] == row.wrong.strip()
        assert changed[0][1] in {*NAMES} - {row.wrong.strip(), row.correct.strip()}


def test_every_template_and_order_occurs_and_a_seed_draws_the_same() -> None:
    table = indirect_objects(400)
    assert table["cluster"].nunique() == 12
    assert table["subset"].value_counts().min() > 150
    assert table.equals(indirect_objects(400))
    assert not table.equals(indirect_objects(400, seed=1))


@pytest.mark.parametrize("digits", [1, 2])
def test_later_and_earlier_years(digits: int) -> None:
    for row in later_years(100, digits=digits).itertuples():
        century, year, again = re.search(
            r"year (\d\d)(\d\d) to the year (\d\d)$", row.prompt
        ).groups()
        assert century == again
        begin = int(year[:digits])
        assert [*map(int, row.correct)] == [y for y in range(10**digits) if y > begin]
        skipped = {begin} if digits == 1 else set()
        assert {*map(int, row.wrong)} == {*range(begin + 1)} - skipped
        assert all(len(answer) == digits for answer in row.correct + row.wrong)
        assert re.sub(r"\d\d to", "", row.prompt) == re.sub(r"\d\d to", "", row.counterfactual)


def test_other_digits_are_refused() -> None:
    with pytest.raises(InputError, match="digits: found 3; expected 1 or 2"):
        later_years(1, digits=3)


# -- Word-level tokenizers and texts of made-up languages


@pytest.mark.parametrize("begins", [False, True])
def test_words_have_the_ids_after_the_special_tokens(begins: bool) -> None:
    tokenizer = word_tokenizer(["a", "b", "a"], begins=begins)
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[BOS]": 1, "[EOS]": 2, "a": 3, "b": 4}
    assert tokenizer(" b a")["input_ids"] == [1] * begins + [4, 3]
    assert (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token) == SPECIALS


def test_texts_have_their_last_word_as_label() -> None:
    with pytest.raises(Exception, match="WordLevel error"):
        word_tokenizer(["a"])("a c")
    texts = texts_of("facts", [("a b is", "c", "home"), ("b is", "a", "role")])
    assert texts.frame["text_a"].tolist() == ["a b is", "b is"]
    assert texts.frame["label"].tolist() == ["c", "a"]
    assert texts.frame["subset"].tolist() == ["home", "role"]
    assert not texts.two_segments
