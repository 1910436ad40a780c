"""Words and occurrences of the tokens of texts, and the forms that these may have."""

from typing import Any

import helpers
import pandas as pd
import pytest
from attention.builders import byte_level, wordpiece
from attention.planted import attention_scores

from mechcore.attention import TokenInfo
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError

PAIRS = [
    ("the cats saw a playing dog .", "a cat played"),
    ("cats", "the cats jumped, and the cats played !"),
    ("a dog and a dog", "Dogs saw a dog"),
]
OPTIONS: dict[str, Any] = {"resamples": 30, "seed": 1}


@pytest.fixture(scope="module")
def encoder(cases: helpers.Cases) -> Any:
    return cases.get("bert").model


def encoded(texts: Any, tokenizer: Any) -> EncodedExamples:
    return helpers.encoded_of(texts, tokenizer=tokenizer, words=True)


def tokens_of(text: Any, tokenizer: Any, causal: bool) -> TokenInfo:
    return TokenInfo.of(encoded([text], tokenizer).rows([0]), causal=causal)


def test_pieces_of_word_pieces_by_hand() -> None:
    tokenizer = wordpiece()
    tokens = tokens_of(("the cats played, cats", "Playing cat played ."), tokenizer, False)
    pieces = "[CLS] the cat ##s play ##ed , cat ##s [SEP] play ##ing cat play ##ed . [SEP]"
    assert tokenizer.convert_ids_to_tokens(tokens.ids[0]) == pieces.split()
    the, cats, played, playing, cat = range(5)
    assert tokens.words[0].tolist() == [
        *(-1, the, cats, cats, played, played, -1, cats, cats, -1),
        *(playing, playing, cat, played, played, -1, -1),
    ]
    assert tokens.segments[0].tolist() == [-1, *[0] * 8, -1, *[1] * 6, -1]
    assert tokens.separators[0].tolist() == [*[False] * 9, True, *[False] * 6, True]


@pytest.mark.parametrize(
    ("text", "pieces", "occurrences"),
    [
        # A word's first piece may come again in it.
        ("1221 2002 ok", "1 2 2 1 _ 2 0 0 2 _ o k", [1, 1, 1, 1, *[2] * 5, *[3] * 3]),
        # A word at the start of a text has other pieces than after a space.
        ("the the cat", "the _the _cat", [1, 2, 3]),
        ("The the cat", "The _the _cat", [1, 2, 3]),
    ],
)
def test_pieces_of_one_occurrence_are_those_of_the_tokenizers_word(
    text: str, pieces: str, occurrences: list[int]
) -> None:
    tokenizer = byte_level(*["The the cat"] * 5)
    tokens = tokens_of(text, tokenizer, True)
    told = tokenizer.convert_ids_to_tokens(tokens.ids[0])[1:-1]
    assert " ".join(told).replace("\u0120", "_") == pieces
    assert tokens.occurrences[0, 1:-1].tolist() == [1 + number for number in occurrences]


@pytest.mark.parametrize("batch_size", [1, 64])
def test_texts_of_any_form_give_the_same_table(encoder: Any, batch_size: int) -> None:
    tokenizer, singles = wordpiece(), [first for first, _ in PAIRS]
    options = {"tokenizer": tokenizer, "batch_size": batch_size, **OPTIONS}
    for texts in (singles, PAIRS):
        expected = attention_scores(encoder, encoded(texts, tokenizer), **OPTIONS)
        for data in (texts, tuple(texts), helpers.examples_of(texts), encoded(texts, tokenizer)):
            table = attention_scores(encoder, data, **options)
            pd.testing.assert_frame_equal(table, expected, rtol=1e-4, atol=1e-6)


def test_roberta_reads_two_tokens_less_than_it_has_positions(cases: helpers.Cases) -> None:
    """Its positions begin after that of padding: two of 48 are never used."""
    tokenizer, model = wordpiece(double=True), cases.get("roberta").model
    with pytest.raises(InputError, match="are longer than 46 tokens"):
        attention_scores(model, ["the " * 100, "a"], tokenizer=tokenizer)
    table = attention_scores(model, ["the " * 44, "a"], tokenizer=tokenizer)
    assert table["n_queries"].iloc[0] == 46 + 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (helpers.encoded_of(PAIRS, tokenizer=wordpiece()), "no segments.*words=True"),
        *((data, "id data: found .*; expected a file") for data in ({}, [])),
        ([helpers.padded(helpers.texts())], "id data: found list; expected a file"),
    ],
)
def test_data_of_another_kind_is_an_error(encoder: Any, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attention_scores(encoder, data)
