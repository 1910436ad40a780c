"""Words and occurrences of the tokens of texts, and the forms that these may have."""

from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
import transformers as hf
from attention.builders import byte_level, encoded_ids, wordpiece
from attention.planted import attention_scores

from mechcore.attention import TokenInfo, key_is_word, score_heads
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.models import load_model

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
    strings = tokenizer.convert_ids_to_tokens(tokens.ids[0])[1:-1]
    assert " ".join(strings).replace("\u0120", "_") == pieces
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


# -- Layers that attend to a window, against the keys that Hugging Face's own attention reaches


SIZES: dict[str, Any] = {
    "hidden_size": helpers.D_MODEL,
    "num_hidden_layers": 2,
    "num_attention_heads": helpers.N_HEADS,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
    "vocab_size": helpers.VOCABULARY,
    "pad_token_id": helpers.PAD,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = {"num_key_value_heads": 2, "sliding_window": 4}
TYPES = {"layer_types": ["full_attention", "sliding_attention"]}
NEO = {
    "num_layers": 2,
    "num_heads": helpers.N_HEADS,
    "window_size": 4,
    "attention_types": [[["global", "local"], 1]],
}
MODELS: dict[str, tuple[Any, Any]] = {
    "modernbert": (
        hf.ModernBertForSequenceClassification,
        hf.ModernBertConfig(
            **SIZES | TYPES, local_attention=6, cls_token_id=2, sep_token_id=3, num_labels=3
        ),
    ),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**SIZES | GROUPED)),
    "gemma2": (
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config(**SIZES | GROUPED | TYPES, head_dim=4),
    ),
    "gpt_neo": (hf.GPTNeoForCausalLM, hf.GPTNeoConfig(**SIZES | NEO)),
}


@pytest.mark.parametrize("name", MODELS)
def test_keys_out_of_the_window_are_out_of_reach(tmp_path: Path, name: str) -> None:
    kind, config = MODELS[name]
    torch.manual_seed(0)
    kind(config).save_pretrained(tmp_path)
    reference = kind.from_pretrained(tmp_path, attn_implementation="eager").eval()
    rows = [torch.randint(4, helpers.VOCABULARY, (n,)) for n in (14, 9) * 6]
    with torch.no_grad():
        seen = [reference(row[None], output_attentions=True).attentions for row in rows]
    scores = score_heads(load_model(tmp_path), encoded_ids(rows), resamples=20)
    table = scores.table().set_index(["layer", "head"])
    whole = [row.tril() if "Causal" in kind.__name__ else row for row in map(all_pairs, rows)]
    windows = 0
    for layer in range(2):
        patterns = [attentions[layer][0].double() for attentions in seen]
        reach = [(pattern > 0).any(0) for pattern in patterns]
        windows += not all(map(torch.equal, reach, whole))
        for category in ("first", "previous"):
            mass, uniform = [], []
            for pattern, keys in zip(patterns, reach, strict=True):
                for query in range(len(keys)):
                    key = 0 if category == "first" else query - 1
                    if key >= 0 and keys[query, key]:
                        mass.append(pattern[:, query, key])
                        uniform.append(1 / int(keys[query].sum()))
            expected = torch.stack(mass).mean(0).tolist()
            heads = table.loc[layer]
            assert heads[f"mass_{category}"].tolist() == pytest.approx(expected, rel=1e-4)
            even = sum(uniform) / len(uniform)
            assert heads[f"uniform_{category}"].tolist() == pytest.approx([even] * len(heads))
            ratios = [share / even for share in expected]
            assert heads[f"ratio_{category}"].tolist() == pytest.approx(ratios, rel=1e-4)
            assert (heads[f"low_{category}"] <= heads[f"high_{category}"]).all()
    assert windows == (2 if name == "mistral" else 1)


def all_pairs(row: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(row), len(row), dtype=torch.bool)


@pytest.mark.parametrize("tokenizer", [wordpiece(), byte_level()], ids=["word pieces", "bytes"])
def test_keys_that_are_words_of_a_list(tokenizer: Any) -> None:
    tokens = tokens_of(("cats saw a cat", "The cats, the dog"), tokenizer, False)
    pairs = key_is_word(tokenizer, "cats", "the")(tokens)
    assert pairs.equal(pairs[:, :1].expand_as(tokens.allowed))  # whatever the query
    shown = tokenizer.decode(tokens.ids[0][pairs[0, 0]]).lower()
    assert shown.replace("cats", " cats ").split() == ["cats", "the", "cats", "the"]


def test_words_that_a_list_cannot_have() -> None:
    with pytest.raises(InputError, match="no word; name at least one"):
        key_is_word(wordpiece())
    with pytest.raises(InputError, match="reads 'elephant' as unknown"):
        key_is_word(wordpiece(), "cat", "elephant")
