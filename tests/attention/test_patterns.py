"""Scores of planted attention patterns, and of small models against a slow plain oracle."""

import math
from collections.abc import Callable
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
from attention.builders import encoded_ids
from attention.planted import (
    CAUSAL,
    ENCODER,
    attention_scores,
    figures,
    one_hot,
    random_patterns,
    score_patterns,
    token_infos,
    tokens_of,
    wider,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from mechcore.attention import (
    Thresholds,
    TokenInfo,
    categories,
    categorise,
    categorize_heads,
    explain,
    partition,
    score_heads,
)
from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.errors import InputError
from mechcore.models import load_model, load_tokenizer
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_decoder_dir, tiny_encoder_dir

# -- by hand --------------------------------------------------------------------------------------

PAIR = tokens_of("^ab|a|", "-00-1-")
"""``[CLS] a b [SEP] a [SEP]``."""


def test_hand_computed_scores() -> None:
    pattern = torch.tensor(
        [
            #  CLS   a     b    SEP   a    SEP
            [0.50, 0.10, 0.10, 0.10, 0.10, 0.10],  # CLS
            [0.20, 0.10, 0.10, 0.10, 0.40, 0.10],  # a
            [0.00, 0.30, 0.50, 0.00, 0.20, 0.00],  # b
            [0.00, 0.00, 0.00, 1.00, 0.00, 0.00],  # SEP
            [0.00, 0.60, 0.10, 0.10, 0.10, 0.10],  # a
            [0.10, 0.10, 0.10, 0.10, 0.10, 0.50],  # SEP
        ],
        dtype=torch.float64,
    )
    row = score_patterns(pattern[None, None, None], PAIR).iloc[0]
    assert row["component"] == "L0.H0"
    assert (row["layer"], row["head"], row["n_examples"], row["n_queries"]) == (0, 0, 1, 6)
    # All keys of a category count, whatever else they are. First, separator, self: 6 queries;
    # previous: all but the first; next: all but the last; repeated: both a. Other, what is left:
    # CLS to b and a; b to a; SEP to a; a to b; SEP to a and b.
    expected_mass = [
        (0.5 + 0.2 + 0.0 + 0.0 + 0.0 + 0.1) / 6,
        (0.2 + 0.2 + 0.0 + 1.0 + 0.2 + 0.6) / 6,
        (0.5 + 0.1 + 0.5 + 1.0 + 0.1 + 0.5) / 6,
        (0.2 + 0.3 + 0.0 + 0.1 + 0.1) / 5,
        (0.1 + 0.1 + 0.0 + 0.0 + 0.1) / 5,
        (0.4 + 0.6) / 2,
        (0.2 + 0.2 + 0.0 + 0.1 + 0.2) / 5,
    ]
    expected_uniform = [1 / 6, 2 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, (2 + 1 + 1 + 1 + 2) / 5 / 6]
    assert figures(row, "mass", ENCODER) == pytest.approx(expected_mass)
    assert figures(row, "uniform", ENCODER) == pytest.approx(expected_uniform)
    assert figures(row, "ratio", ENCODER) == pytest.approx(
        [m / u for m, u in zip(expected_mass, expected_uniform, strict=True)]
    )
    # Every key counts once: first; separators; of self a, b, a; of previous b, SEP and SEP; of next
    # CLS, a and SEP; repeated; the rest.
    expected_share = [
        0.8 / 6,
        2.2 / 6,
        (0.1 + 0.5 + 0.1) / 6,
        (0.3 + 0.0 + 0.1) / 6,
        (0.1 + 0.1 + 0.0) / 6,
        1.0 / 6,
        0.7 / 6,
    ]
    assert sum(expected_share) == pytest.approx(1)
    assert figures(row, "share", ENCODER) == pytest.approx(expected_share)
    # Attention times distance, from CLS, a, b, SEP, a and SEP.
    distance = [
        0.1 * (1 + 2 + 3 + 4 + 5),
        0.2 * 1 + 0.1 * (1 + 2 + 4) + 0.4 * 3,
        0.3 * 1 + 0.2 * 2,
        0,
        0.6 * 3 + 0.1 * (2 + 1 + 1),
        0.1 * (5 + 4 + 3 + 2 + 1),
    ]
    assert row["distance"] == pytest.approx(sum(distance) / 6)
    entropies = [-sum(p * math.log(p) for p in line if p) for line in pattern.tolist()]
    assert row["entropy"] == pytest.approx(sum(entropies) / 6)
    assert figures(row, "examples", ENCODER) == [1] * 7
    assert np.isnan(figures(row, "sd", ENCODER)).all()
    assert "mass_induction" not in row.index


def test_undefined_categories_are_nan_and_share_nothing() -> None:
    tokens = tokens_of("abc", "000", causal=True)
    row = score_patterns(one_hot([0, 0, 1]), tokens, resamples=5).iloc[0]
    for name in ("next", "separator", "repeated", "induction"):
        measures = ("mass", "low", "high", "uniform", "ratio", "sd")
        assert [math.isnan(row[f"{m}_{name}"]) for m in measures] == [True] * 6
        assert row[f"share_{name}"] == row[f"examples_{name}"] == 0


# -- planted heads --------------------------------------------------------------------------------

ENCODER_ROW = tokens_of("^abc|abc|", "-000-111-")
CAUSAL_ROW = tokens_of("^abcdefg|abcdefg", "-0000000-0000000", causal=True)

PLANTED_IN_ENCODERS = {
    "first": [0] * 9,
    "separator": [4, 8] * 4 + [4],
    "self": [*range(9)],
    "previous": [0, *range(8)],
    "next": [*range(1, 9), 8],
    "repeated": [0, 5, 6, 7, 0, 1, 2, 3, 0],
}
PLANTED_IN_CAUSAL_MODELS = {
    "first": [0] * 16,
    "separator": [0] * 8 + [8] * 8,
    "self": [*range(16)],
    "previous": [0, *range(15)],
    "repeated": [0] * 9 + [*range(1, 8)],
    "induction": [0] * 9 + [*range(2, 9)],
}


PLANTED = [
    *((ENCODER_ROW, name, keys) for name, keys in PLANTED_IN_ENCODERS.items()),
    *((CAUSAL_ROW, name, keys) for name, keys in PLANTED_IN_CAUSAL_MODELS.items()),
]


@pytest.mark.parametrize(("row", "category", "keys"), PLANTED)
def test_planted_heads(row: TokenInfo, category: str, keys: list[int]) -> None:
    table = categorise(score_patterns(one_hot(keys), row))
    assert table[f"mass_{category}"].item() == 1
    assert table["category"].item() == category
    assert table["entropy"].item() == 0
    assert math.isnan(table["mass_next"].item()) == row.causal


def test_planted_heads_cover_the_built_in_categories() -> None:
    assert [c.name for c in categories(causal=False)] == list(PLANTED_IN_ENCODERS)
    causal = [c.name for c in categories(causal=True)]
    assert [name for name in causal if name != "next"] == list(PLANTED_IN_CAUSAL_MODELS)


@given(token_infos())
@settings(max_examples=20)
def test_uniform_attention_is_mixed_and_has_ratio_one(tokens: TokenInfo) -> None:
    table = score_patterns(random_patterns(tokens, 0, 0.0), tokens)
    ratios = table.filter(regex="^ratio_").to_numpy()
    np.testing.assert_allclose(ratios[~np.isnan(ratios)], 1)
    masses, uniform = (table.filter(regex=f"^{m}_").to_numpy() for m in ("mass", "uniform"))
    np.testing.assert_allclose(masses, uniform)
    assert (categorise(table)["category"] == "mixed").all()
    assert (categorise(table)["also"] == "").all()


# -- properties -----------------------------------------------------------------------------------


@given(token_infos(), st.integers(0, 1000), st.sampled_from([0.1, 1.0, 10.0]))
def test_categories_share_all_attention(tokens: TokenInfo, seed: int, spread: float) -> None:
    parts = partition(tokens)
    assert torch.equal(sum(p.long() for p in parts.values()), tokens.allowed.long())
    scores = score_patterns(random_patterns(tokens, seed, spread), tokens)
    np.testing.assert_allclose(scores.filter(regex="^share_").sum(axis=1), 1)
    masses = scores.filter(regex="^mass_").to_numpy()
    assert ((masses >= 0) & (masses <= 1 + 1e-12) | np.isnan(masses)).all()
    assert (scores["entropy"] <= math.log(tokens.ids.shape[1]) + 1e-12).all()
    assert (scores["distance"] <= tokens.ids.shape[1] - 1 + 1e-12).all()


@given(token_infos(), st.integers(0, 4), st.floats(0, 1))
@settings(max_examples=20)
def test_padding_changes_nothing(tokens: TokenInfo, more: int, junk: float) -> None:
    patterns = random_patterns(tokens)
    expected = score_patterns(patterns, tokens, resamples=5)
    padded = wider(tokens, more)
    noisy = torch.nn.functional.pad(patterns, (0, more, 0, more))
    noisy = noisy.masked_fill(~padded.allowed[None, :, None], junk)
    pd.testing.assert_frame_equal(score_patterns(noisy, padded, resamples=5), expected)


# -- whole models against plain loops -------------------------------------------------------------


def examples() -> Examples:
    """Pairs of very different lengths, so that batches are padded."""
    long = tiny_world.generate("id", 12, seed=1).frame
    short = [("the baker slept",) * 2, ("the cook sang and the cook sang", "the pilot sang")]
    frames = [long, helpers.examples_of(short, "entailment").frame]
    return Examples("mixed lengths", pd.concat(frames, ignore_index=True))


def categories_of(query: int, key: int, tokens: list[str], causal: bool, two: bool) -> list[str]:
    """The documented rule, one pair at a time; every token of the tiny world is a whole word."""
    special = tokens[key].startswith("[")
    segment = [tokens[:i].count("[SEP]") for i in range(len(tokens))]
    same_word = tokens[query] == tokens[key] and not special
    elsewhere = segment[query] != segment[key] if two else query != key
    rules = {
        "first": key == 0,
        "separator": key > 0 and tokens[key] == "[SEP]",
        "self": key == query,
        "previous": key == query - 1,
        "next": key == query + 1,
        "repeated": same_word and elsewhere,
        "induction": causal and key > 0 and tokens[key - 1] == tokens[query],
    }
    return [name for name, holds in rules.items() if holds] or ["other"]


@pytest.fixture(scope="module", params=[False, True], ids=["encoder", "decoder"])
def subject(request: pytest.FixtureRequest) -> tuple[Any, EncodedExamples, pd.DataFrame]:
    """An embedded model, examples, and scores from Hugging Face's own attentions of each alone."""
    causal: bool = request.param
    path = tiny_decoder_dir() if causal else tiny_encoder_dir()
    tokenizer = load_tokenizer(path)
    ask = {"prompt": tiny_world.DECODER_PROMPT, "answers": tiny_world.DECODER_ANSWERS}
    options: dict[str, Any] = ask if causal else {}
    data = encode(examples(), tokenizer, max_length=48, words=True, **options)
    loader: Any = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
    plain = loader.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    attentions, claimants, two = [], [], data.examples.two_segments
    for i in range(len(data)):
        inputs = {"input_ids": torch.tensor([data.input_ids[i]])}
        if data.token_type_ids is not None:
            inputs["token_type_ids"] = torch.tensor([data.token_type_ids[i]])
        with torch.no_grad():
            layers = plain(**inputs, output_attentions=True).attentions
        attentions.append([layer[0].double().tolist() for layer in layers])
        tokens = tokenizer.convert_ids_to_tokens(data.input_ids[i])
        of_queries = []
        for query in range(len(tokens)):
            keys = range(query + 1 if causal else len(tokens))
            of_queries.append([categories_of(query, key, tokens, causal, two) for key in keys])
        claimants.append(of_queries)
    model = load_model(path)
    rows = [
        {"component": str(head), "layer": head.layer, "head": head.head}
        | head_oracle([text[head.layer][head.head] for text in attentions], claimants, causal)
        for head in ModelShape.of(model).heads
    ]
    return model, data, pd.DataFrame(rows)


def head_oracle(
    patterns: list[list[list[float]]], claimants: list[list[list[list[str]]]], causal: bool
) -> dict[str, Any]:
    """One head's figures from its patterns and whose the keys are, [example][query][key]."""
    names = CAUSAL if causal else ENCODER
    # For every example a list over the queries for which the category is defined.
    masses: dict[str, list[list[float]]] = {name: [[] for _ in patterns] for name in names}
    uniforms: dict[str, list[float]] = {name: [] for name in names}
    shares = dict.fromkeys(names, 0.0)
    entropies, distances = [], []
    for i, (pattern, of_example) in enumerate(zip(patterns, claimants, strict=True)):
        for query, line in enumerate(pattern):
            keys = range(len(of_example[query]))
            mass: dict[str, list[float]] = {}
            for key in keys:
                shares[of_example[query][key][0]] += line[key]
                for name in of_example[query][key]:
                    mass.setdefault(name, []).append(line[key])
            for name, values in mass.items():
                masses[name][i].append(sum(values))
                uniforms[name].append(len(values) / len(keys))
            entropies.append(-sum(line[k] * math.log(line[k]) for k in keys if line[k] > 0))
            distances.append(sum(line[k] * abs(query - k) for k in keys))
    figures: dict[str, Any] = {
        "n_examples": len(patterns),
        "n_queries": len(entropies),
        "entropy": np.mean(entropies),
        "distance": np.mean(distances),
    }
    for name in names:
        means = [np.mean(of_queries) for of_queries in masses[name] if of_queries]
        mean = (
            np.mean([x for of_queries in masses[name] for x in of_queries]) if means else math.nan
        )
        uniform = np.mean(uniforms[name]) if means else math.nan
        figures |= {
            f"mass_{name}": mean,
            f"uniform_{name}": uniform,
            f"ratio_{name}": mean / uniform,
            f"sd_{name}": np.std(means, ddof=1) if len(means) > 1 else math.nan,
            f"share_{name}": shares[name] / len(entropies),
            f"examples_{name}": len(means),
        }
    return figures


def test_models_agree_with_plain_loops(subject: Any) -> None:
    """In batches of any size, which change intervals no more than other figures."""
    model, data, expected = subject
    tables, done = [], list[int]()
    for batch_size in (1, 4, 64):
        options: dict[str, Any] = {"resamples": 20, "progress": lambda: done.append(1)}
        tables.append(attention_scores(model, data, batch_size=batch_size, **options))
    assert len(done) == sum(math.ceil(len(data) / batch_size) for batch_size in (1, 4, 64))
    for table in tables:
        pd.testing.assert_frame_equal(table, tables[0], rtol=1e-3, atol=1e-5)
        known = table[list(expected.columns)]
        pd.testing.assert_frame_equal(known, expected, rtol=1e-3, atol=1e-5, check_dtype=False)
    assert table["share_repeated"].max() > 0
    assert table["entropy"].max() - table["entropy"].min() > 0.01, "heads must differ"


def test_both_ways_to_score_agree(subject: Any) -> None:
    model, data, _ = subject
    thresholds = Thresholds(mass=0.2, ratio=1.5)
    options: dict[str, Any] = {"resamples": 30, "seed": 2}
    scores = score_heads(model, data, **options)
    labelled = categorize_heads(model, data, thresholds=thresholds, **options)
    pd.testing.assert_frame_equal(labelled, scores.categorised(thresholds))
    expected = categorise(scores.table(), thresholds)
    pd.testing.assert_frame_equal(labelled.drop(columns="stability"), expected)
    for _, row in labelled.iterrows():
        label = explain(labelled, row["component"], thresholds)
        assert label.category == row["category"]
        assert label.table["mass"].max() == pytest.approx(row.filter(regex="^mass_(?!other)").max())


# -- TransformerLens's own detection of heads -----------------------------------------------------


def detected(model: Any, ids: torch.Tensor, pattern: str, **options: bool) -> np.ndarray:
    """Scores of `transformer_lens.head_detector.detect_head`, a head after the other.

    Only ``to_tokens`` of the model is replaced: it gives the ids at hand.
    """
    detector = pytest.importorskip("transformer_lens.head_detector")
    tokens_of_text = model.to_tokens
    model.to_tokens = lambda text: ids[None]
    try:
        scores = detector.detect_head(model, "", pattern, error_measure="mul", **options)
    finally:
        model.to_tokens = tokens_of_text
    return scores.flatten().numpy()


@pytest.fixture(
    params=["bridge", pytest.param("hooked", marks=pytest.mark.hooked)],
)
def language_model(request: pytest.FixtureRequest, cases: helpers.Cases) -> Any:
    return load_model(cases.path("gpt2-lm"), backend=request.param)


def repeated_twice(n: int, seed: int) -> torch.Tensor:
    """A first token, and ``n`` different ones twice."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(helpers.VOCABULARY - 5, generator=generator)[:n] + 5
    return torch.cat([torch.tensor([2]), order, order])


DETECTED: dict[str, tuple[str, Callable[[int], int]]] = {
    "previous_token_head": ("previous", lambda n: 2 * n),
    "duplicate_token_head": ("repeated", lambda n: n),
    "induction_head": ("induction", lambda n: n),
}
"""The category, and of how many queries it is defined."""


def test_head_detector_agrees(language_model: Any) -> None:
    n = 12
    ids = repeated_twice(n, seed=1)
    table = attention_scores(language_model, encoded_ids([ids]), resamples=0)
    first, itself = table["share_first"], table["mass_self"]
    both = first + table["share_self"]
    for pattern, (name, defined) in DETECTED.items():
        score = detected(language_model, ids, pattern)
        assert score.std() > 1e-3, "heads must differ"
        # It divides by all queries, masses by those that have such a key.
        mass = table[f"mass_{name}"] * defined(n) / (2 * n + 1)
        np.testing.assert_allclose(mass, score, atol=1e-4)
        # Nothing else claims these keys first, but position 0 when it is the previous token.
        if name != "previous":
            np.testing.assert_allclose(table[f"share_{name}"], score, atol=1e-4)
        # Without attention to the first token, to the query itself, or both, of what is left:
        for options, expected in (
            ({"exclude_bos": True}, table[f"share_{name}"] / (1 - first)),
            (
                {"exclude_bos": True, "exclude_current_token": True},
                table[f"share_{name}"] / (1 - both),
            ),
            ({"exclude_current_token": True}, mass / (1 - itself)),
        ):
            score = detected(language_model, ids, pattern, **options)
            np.testing.assert_allclose(expected, score, atol=1e-4)


# -- errors ---------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    model, data = load_model(tiny_encoder_dir()), [("the baker slept", "the cook sang")]
    with pytest.raises(InputError, match="batch size 0: expected at least 1"):
        attention_scores(model, data, batch_size=0)
    with pytest.raises(InputError, match="resamples is -3; expected a whole number, 0 or more"):
        attention_scores(model, data, resamples=-3)
    model.original_model.config._attn_implementation = "sdpa"
    with pytest.raises(InputError, match=r"without computing .* of layer 0; expected eager"):
        attention_scores(model, data)
