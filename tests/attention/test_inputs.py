"""Encoded examples, texts, pairs of texts and plain batches give the same table."""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
from attention.builders import byte_level, wordpiece
from attention.planted import attention_scores

from mechcore.attention.inputs import batches_of
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, MechcoreWarning
from mechcore.models import load_model, load_tokenizer


@pytest.fixture(scope="module")
def encoder(cases: helpers.Cases) -> Any:
    return cases.get("bert").model


@pytest.fixture(scope="module")
def decoder_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder")
    helpers.gpt2_language_model(vocab_size=400).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def decoder(decoder_path: Path) -> Any:
    return load_model(decoder_path)


TEXTS = [
    "the cat saw the cats and the dogs",
    "cats played, and the dog played not .",
    "a bird",
    "The dog jumped! The cat jumping saw the jumped dog.",
    "the playing the playing",
]
PAIRS = [
    ("the cats saw a playing dog .", "a cat played"),
    ("cats", "the cats jumped, and the cats played !"),
    ("a dog and a dog", "Dogs saw a dog"),
    ("jumping cats", "a cat jumping and jumped"),
    ("who played ?", "who"),
]
OPTIONS: dict[str, Any] = {"resamples": 30, "seed": 1}


def encoded(texts: Any, tokenizer: Any) -> EncodedExamples:
    return helpers.encoded_of(texts, tokenizer=tokenizer, words=True)


def plain(
    texts: Sequence[Any], tokenizer: Any, side: str = "right", size: int = 64
) -> list[dict[str, Any]]:
    """Tokenizer outputs, padded on this side, in their order."""
    columns = list(zip(*texts, strict=True)) if isinstance(texts[0], tuple) else [texts]
    lists = [list(column) for column in columns]
    return [
        tokenizer(
            *[column[start : start + size] for column in lists],
            padding=True,
            padding_side=side,
            return_tensors="pt",
        )
        for start in range(0, len(texts), size)
    ]


def assert_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, expected, rtol=1e-4, atol=1e-6)


def numbered(words: Sequence[int]) -> list[int]:
    """The same words numbered as they come, -1 for no word."""
    seen: dict[int, int] = {}
    return [-1 if word == -1 else seen.setdefault(word, len(seen)) for word in words]


def known(model: Any, data: Any, tokenizer: Any) -> dict[int, dict[str, list[Any]]]:
    """What is known of the tokens of every row."""
    found: dict[int, dict[str, list[Any]]] = {}
    for batch, tokens in batches_of(model, data, tokenizer, 2):
        for i, number in enumerate(batch["index"].tolist()):
            n = int(tokens.real[i].sum())
            assert tokens.real[i, :n].all()
            found[number] = {
                "ids": tokens.ids[i, :n].tolist(),
                "segments": tokens.segments[i, :n].tolist(),
                "words": numbered(tokens.words[i, :n].tolist()),
                "separators": tokens.separators[i, :n].tolist(),
                "occurrences": tokens.occurrences[i, :n].tolist(),
            }
            beyond = (tokens.segments, tokens.words)
            assert all((each[i, n:] == -1).all() for each in beyond)
            assert not tokens.separators[i, n:].any()
    return dict(sorted(found.items()))


def test_pieces_of_word_pieces_by_hand(encoder: Any) -> None:
    tokenizer = wordpiece()
    batch = plain([("the cats played, cats", "Playing cat played .")], tokenizer)
    found = known(encoder, batch, tokenizer)[0]
    pieces = "[CLS] the cat ##s play ##ed , cat ##s [SEP] play ##ing cat play ##ed . [SEP]"
    assert tokenizer.convert_ids_to_tokens(found["ids"]) == pieces.split()
    the, cats, played, playing, cat = range(5)
    assert found["words"] == [
        *(-1, the, cats, cats, played, played, -1, cats, cats, -1),
        *(playing, playing, cat, played, played, -1, -1),
    ]
    assert found["segments"] == [-1, *[0] * 8, -1, *[1] * 6, -1]
    assert found["separators"] == [*[False] * 9, True, *[False] * 6, True]


@pytest.mark.parametrize("double", [False, True])
def test_segments_of_pairs_are_those_of_the_texts(encoder: Any, double: bool) -> None:
    tokenizer = wordpiece(double)
    pairs = [*PAIRS[:4], ("cat", "cat"), ("a", "a cat , a dog")]
    expected = known(encoder, encoded(pairs, tokenizer), None)
    assert known(encoder, plain(pairs, tokenizer, "left", size=4), tokenizer) == expected


@pytest.mark.parametrize(
    "text",
    [
        *TEXTS,
        "Cats playing PLAYING cat CATS",
        "cat's cat don't don",
        "the cat . the cat , the",
        " the  cat the",
    ],
)
def test_words_of_a_byte_level_tokenizer_are_those_of_the_text(decoder: Any, text: str) -> None:
    tokenizer = byte_level()
    expected = known(decoder, encoded([text], tokenizer), None)
    assert known(decoder, plain([text], tokenizer), tokenizer) == expected


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
    decoder: Any, text: str, pieces: str, occurrences: list[int]
) -> None:
    tokenizer = byte_level(*["The the cat"] * 5)
    found = known(decoder, encoded([text], tokenizer), None)[0]
    told = tokenizer.convert_ids_to_tokens(found["ids"])[1:-1]
    assert " ".join(told).replace("\u0120", "_") == pieces
    assert found["occurrences"][1:-1] == [1 + each for each in occurrences]
    assert known(decoder, plain([text], tokenizer), tokenizer) == {0: found}


def test_without_a_tokenizer_every_token_is_a_word(decoder: Any) -> None:
    # 1 is padding in the configuration.
    ids = torch.tensor([[9, 8, 9, 1, 7, 8], [8, 9, 9, 9, 7, 7]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", MechcoreWarning)  # a decoder needs no separators
        found = known(decoder, [{"input_ids": ids, "attention_mask": mask}], None)
    assert found[0]["words"] == [0, 1, 0, -1, 2, 1]
    assert found[1] == {
        "ids": [9, 9, 7, 7],
        "segments": [0] * 4,
        "words": [0, 0, 1, 1],
        "separators": [False] * 4,
        "occurrences": [1, 2, 3, 4],
    }


@pytest.mark.parametrize("named", ["eos", "sep"])
def test_separators_are_those_of_the_configuration(tmp_path: Path, named: str) -> None:
    helpers.gpt2_language_model(**{f"{named}_token_id": 5}).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    ids = torch.tensor([[5, 8, 9, 5, 8, 9]])
    (found,) = known(model, [{"input_ids": ids}], None).values()
    assert found["separators"] == [True, False, False, True, False, False]
    assert found["words"] == [-1, 0, 1, -1, 0, 1]


@pytest.mark.parametrize("backend", ["bridge", pytest.param("hooked", marks=pytest.mark.hooked)])
def test_plain_batches_of_a_decoder(decoder_path: Path, backend: Any) -> None:
    model, tokenizer = load_model(decoder_path, backend=backend), byte_level()
    texts = ["the cat saw the cats", "cats . playing cats", "a", "the dogs and the playing dogs"]
    expected = attention_scores(model, encoded(texts, tokenizer), **OPTIONS)
    for side, size in itertools.product(("right", "left"), (2, 64)):
        batches = plain(texts, tokenizer, side, size)
        assert_same(attention_scores(model, batches, tokenizer=tokenizer, **OPTIONS), expected)
    assert expected["examples_induction"].iloc[0] == 3
    assert expected["examples_separator"].iloc[0] == 4


def test_padding_with_the_end_token(decoder: Any) -> None:
    """Ends of texts are separators, padding is not, though the token is the same."""
    tokenizer = byte_level(pad_token="</s>")
    texts = ["the cat saw the cats", "a cat", "cats"]
    expected = attention_scores(decoder, encoded(texts, byte_level()), **OPTIONS)
    batches = (plain(texts, tokenizer, side) for side in ("right", "left"))
    for data in (encoded(texts, tokenizer), *batches):
        assert_same(attention_scores(decoder, data, tokenizer=tokenizer, **OPTIONS), expected)
    assert expected["examples_separator"].iloc[0] == 3


@pytest.mark.hooked
def test_plain_batches_of_a_hooked_encoder() -> None:
    model, rows = helpers.hooked_encoder(), helpers.texts()
    expected = attention_scores(model, [helpers.padded(rows)], **OPTIONS)
    for side in ("left", "right"):
        padded = helpers.padded(rows, side, extra=2, noise=3)
        assert_same(attention_scores(model, [padded], **OPTIONS), expected)
    np.testing.assert_allclose(expected.filter(regex="^share_").sum(axis=1), 1, atol=1e-6)
    assert expected["mass_next"].min() > 0


def test_batches_in_any_container(encoder: Any) -> None:
    rows = helpers.texts()
    batches = [helpers.padded(rows[:2]), helpers.padded(rows[2:])]
    expected = attention_scores(encoder, batches, **OPTIONS)
    lists = [{name: tensor.tolist() for name, tensor in batch.items()} for batch in batches]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    labelled = [{**batch, "labels": torch.zeros(len(batch["input_ids"]))} for batch in batches]
    for data in (tuple(batches), iter(batches), lists, loader, labelled):
        assert_same(attention_scores(encoder, data, **OPTIONS), expected)


@pytest.mark.parametrize("batch_size", [1, 64])
def test_texts_and_pairs_of_an_encoder(encoder: Any, batch_size: int) -> None:
    tokenizer = wordpiece()
    options = {"tokenizer": tokenizer, "batch_size": batch_size, **OPTIONS}
    for texts in (TEXTS, PAIRS):
        expected = attention_scores(encoder, encoded(texts, tokenizer), **OPTIONS)
        given: Iterator[Any] = iter(
            [texts, tuple(texts), helpers.examples_of(texts), encoded(texts, tokenizer)]
        )
        for data in given:
            assert_same(attention_scores(encoder, data, **options), expected)
    lists = [list(pair) for pair in PAIRS]
    assert_same(attention_scores(encoder, lists, **options), expected)  # type: ignore[arg-type]


def test_roberta_reads_two_tokens_less_than_it_has_positions(cases: helpers.Cases) -> None:
    """Its positions begin after that of padding: two of 48 are never used."""
    tokenizer, model = wordpiece(double=True), cases.get("roberta").model
    with pytest.raises(InputError, match="are longer than 46 tokens"):
        attention_scores(model, ["the " * 100, "a"], tokenizer=tokenizer)
    table = attention_scores(model, ["the " * 44, "a"], tokenizer=tokenizer)
    assert table["n_queries"].iloc[0] == 46 + 3


def test_plain_batches_are_read_with_the_tokenizer_of_the_checkpoint(cases: helpers.Cases) -> None:
    """Without it, [SEP] would be a word that both texts have, and no token a separator."""
    case = cases.get("bert")
    pairs = [("the cat saw a dog", "a bird ran"), ("who ran", "yes and no"), ("a", "the dog")]
    expected = attention_scores(case.model, pairs, **OPTIONS)
    assert expected.loc[0, ["examples_separator", "examples_repeated"]].tolist() == [3, 1]
    batches = plain(pairs, load_tokenizer(case.path), size=2)
    loader = torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    assert_same(attention_scores(case.model, batches, **OPTIONS), expected)
    assert_same(attention_scores(case.model, loader, **OPTIONS), expected)


def test_an_encoder_whose_separators_are_not_known(tmp_path: Path) -> None:
    helpers.hf_classifier("bert").save_pretrained(tmp_path)  # no tokenizer beside it
    model = load_model(tmp_path)
    with pytest.warns(MechcoreWarning, match=r"count as words that are repeated; pass the token"):
        table = attention_scores(model, [helpers.padded(helpers.texts())], **OPTIONS)
    assert table["mass_separator"].isna().all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (helpers.encoded_of(TEXTS, tokenizer=wordpiece()), "examples without words.*words=True"),
        ({}, "found dict; expected a list of batches"),
        (helpers.padded(helpers.texts()), "found dict; expected a list of batches"),
        (hf.BatchEncoding(helpers.padded(helpers.texts())), "found BatchEncoding; expected a list"),
        *((empty, "no batch; expected at least one") for empty in ([], iter([]))),
    ],
)
def test_data_of_another_kind_is_an_error(encoder: Any, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"attention scores: .*{message}"):
        attention_scores(encoder, data)
