"""Word-level tokenizers and texts of made-up languages."""

import pytest

from mechcore.worlds.words import SPECIALS, texts_of, word_tokenizer


@pytest.mark.parametrize("begins", [False, True])
def test_words_have_the_ids_after_the_special_tokens(begins: bool) -> None:
    tokenizer = word_tokenizer(["a", "b", "a"], begins=begins)
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[BOS]": 1, "[EOS]": 2, "a": 3, "b": 4}
    assert tokenizer(" b a")["input_ids"] == [1] * begins + [4, 3]
    assert (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token) == SPECIALS


def test_texts_have_their_last_word_as_label() -> None:
    with pytest.raises(Exception, match="WordLevel error"):
        word_tokenizer(["a"])("a c")
    found = texts_of("facts", [("a b is", "c", "home"), ("b is", "a", "role")])
    assert found.frame["text_a"].tolist() == ["a b is", "b is"]
    assert found.frame["label"].tolist() == ["c", "a"]
    assert found.frame["subset"].tolist() == ["home", "role"]
    assert not found.two_segments
