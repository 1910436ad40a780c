"""Scores of planted attention patterns, and of small models against a slow plain oracle."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
)

from mechcore.attention import (
    TokenInfo,
    attention_scores,
    categorise,
    partition,
    register_category,
    score_patterns,
    unregister_category,
)
from mechcore.errors import InputError
from mechcore.models import load_model
from mechcore.tasks import tiny_world
from mechcore.tasks.encoding import EncodedExamples, encode
from mechcore.tasks.examples import Examples

ENCODER = ("first", "separator", "self", "previous", "next", "repeated", "other")
CAUSAL = (*ENCODER[:-1], "induction", "other")


def pair(n_padding: int = 0) -> TokenInfo:
    """``[CLS] a b [SEP] a [SEP]``."""
    padding = [0] * n_padding
    none = [-1] * n_padding
    return TokenInfo(
        ids=torch.tensor([[2, 7, 8, 3, 7, 3, *padding]]),
        real=torch.tensor([[True] * 6 + [False] * n_padding]),
        segments=torch.tensor([[-1, 0, 0, -1, 1, -1, *none]]),
        words=torch.tensor([[-1, 0, 1, -1, 0, -1, *none]]),
        separators=torch.tensor([[0, 0, 0, 1, 0, 1, *padding]]) != 0,
        causal=False,
    )


def one_hot(keys: list[int]) -> torch.Tensor:
    """A head that attends from query i to ``keys[i]`` alone, [layer, batch, head, query, key]."""
    return torch.nn.functional.one_hot(torch.tensor(keys), len(keys)).double()[None, None, None]


def score(row: pd.Series, measure: str, names: tuple[str, ...]) -> list[float]:
    return [float(row[f"{measure}_{name}"]) for name in names]


def test_hand_computed_scores() -> None:
    pattern = torch.tensor(
        [
            #  CLS   a     b    SEP   a    SEP
            [0.50, 0.10, 0.10, 0.10, 0.10, 0.10],  # CLS: first, next, other, sep, other, sep
            [0.20, 0.10, 0.10, 0.10, 0.40, 0.10],  # a: first, self, next, sep, repeated, sep
            [0.00, 0.30, 0.50, 0.00, 0.20, 0.00],  # b: first, previous, self, sep, other, sep
            [0.00, 0.00, 0.00, 1.00, 0.00, 0.00],  # SEP: first, other, previous, sep, next, sep
            [0.00, 0.60, 0.10, 0.10, 0.10, 0.10],  # a: first, repeated, other, sep, self, sep
            [0.10, 0.10, 0.10, 0.10, 0.10, 0.50],  # SEP: first, other, other, sep, previous, sep
        ],
        dtype=torch.float64,
    )
    row = score_patterns(pattern[None, None, None], pair()).iloc[0]
    assert row["component"] == "L0.H0"
    assert (row["layer"], row["head"], row["n_examples"], row["n_queries"]) == (0, 0, 1, 6)
    # first, separator: all 6 queries; self: a, b, a; previous: b, SEP, SEP; next: CLS, a, SEP;
    # repeated: both a; other: all but the first a
    expected_mass = [
        (0.5 + 0.2 + 0.1) / 6,
        (0.2 + 0.2 + 0.0 + 1.0 + 0.2 + 0.6) / 6,
        (0.1 + 0.5 + 0.1) / 3,
        (0.3 + 0.0 + 0.1) / 3,
        (0.1 + 0.1 + 0.0) / 3,
        (0.4 + 0.6) / 2,
        (0.2 + 0.2 + 0.0 + 0.1 + 0.2) / 5,
    ]
    expected_uniform = [1 / 6, 2 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, (2 + 1 + 1 + 1 + 2) / 5 / 6]
    queries = [6, 6, 3, 3, 3, 2, 5]
    assert score(row, "mass", ENCODER) == pytest.approx(expected_mass)
    assert score(row, "uniform", ENCODER) == pytest.approx(expected_uniform)
    assert score(row, "ratio", ENCODER) == pytest.approx(
        [m / u for m, u in zip(expected_mass, expected_uniform, strict=True)]
    )
    assert score(row, "share", ENCODER) == pytest.approx(
        [m * n / 6 for m, n in zip(expected_mass, queries, strict=True)]
    )
    entropies = [-sum(p * math.log(p) for p in line if p) for line in pattern.tolist()]
    assert row["entropy"] == pytest.approx(sum(entropies) / 6)
    assert "mass_induction" not in row.index


@pytest.mark.parametrize(
    ("keys", "category"),
    [
        ([0, 0, 0, 0, 0, 0], "first"),
        ([3, 5, 3, 5, 3, 3], "separator"),
        ([0, 1, 2, 3, 4, 5], "self"),
        ([0, 0, 1, 2, 3, 4], "previous"),
        ([1, 2, 3, 4, 5, 5], "next"),
        ([0, 4, 0, 0, 1, 0], "repeated"),
    ],
)
def test_planted_encoder_heads(keys: list[int], category: str) -> None:
    scores = score_patterns(one_hot(keys), pair())
    assert scores[f"mass_{category}"].item() == 1
    assert scores["entropy"].item() == 0


def text(words: list[int]) -> TokenInfo:
    """One segment of a causal model without special tokens."""
    row = torch.tensor([words])
    true = torch.ones_like(row, dtype=torch.bool)
    return TokenInfo(row, true, torch.zeros_like(row), row, ~true, causal=True)


def test_planted_previous_token_head_of_a_causal_model() -> None:
    tokens = text([5, 6, 7, 8, 5, 6, 7, 8])
    scores = categorise(score_patterns(one_hot([0, 0, 1, 2, 3, 4, 5, 6]), tokens))
    assert scores["mass_previous"].item() == 1
    assert scores["share_previous"].item() == 6 / 8  # the first two queries see first
    assert scores["category"].item() == "previous"


def test_planted_induction_head() -> None:
    tokens = text([5, 6, 7, 8, 5, 6, 7, 8])
    scores = categorise(score_patterns(one_hot([0, 0, 0, 0, 1, 2, 3, 4]), tokens))
    assert scores["mass_induction"].item() == 1
    assert scores["uniform_induction"].item() == pytest.approx((1 / 5 + 1 / 6 + 1 / 7 + 1 / 8) / 4)
    assert scores["category"].item() == "induction"


def test_undefined_categories_are_nan_and_share_nothing() -> None:
    row = score_patterns(one_hot([0, 0, 1]), text([5, 6, 7])).iloc[0]
    for name in ("next", "separator", "repeated", "induction"):
        assert [math.isnan(row[f"{m}_{name}"]) for m in ("mass", "uniform", "ratio")] == [True] * 3
        assert row[f"share_{name}"] == 0


def test_half_precision_is_summed_in_single_precision() -> None:
    tokens = text(list(range(300)))
    pattern = torch.full((1, 1, 1, 300, 300), 1 / 256, dtype=torch.bfloat16)
    row = score_patterns(pattern, tokens).iloc[0]
    expected = score_patterns(pattern.double(), tokens).iloc[0]
    assert row["share_other"] == expected["share_other"]
    assert row["entropy"] == pytest.approx(expected["entropy"], rel=1e-6)


def test_shapes_are_checked() -> None:
    with pytest.raises(InputError, match=r"expected \[layer, batch, head, query, key\]"):
        score_patterns(torch.zeros(1, 1, 6, 6), pair())
    with pytest.raises(InputError, match=r"layer 0: shape \(1, 1, 5, 5\); expected \(1, 1, 6, 6\)"):
        score_patterns(torch.zeros(1, 1, 1, 5, 5), pair())


# -- properties -----------------------------------------------------------------------------------


@st.composite
def token_infos(draw: st.DrawFn) -> TokenInfo:
    """Batches of up to three rows with any layout of segments, separators and padding."""
    pos = draw(st.integers(1, 9))
    batch = draw(st.integers(1, 3))

    def grid(low: int, high: int) -> torch.Tensor:
        row = st.lists(st.integers(low, high), min_size=pos, max_size=pos)
        return torch.tensor(draw(st.lists(row, min_size=batch, max_size=batch)))

    lengths = draw(st.lists(st.integers(1, pos), min_size=batch, max_size=batch))
    real = torch.arange(pos)[None] < torch.tensor(lengths)[:, None]
    segments = grid(-1, draw(st.integers(0, 1)))
    words = grid(-1, 3).where(segments >= 0, torch.tensor(-1))
    separators = (grid(0, 3) == 0) & (segments < 0)
    return TokenInfo(
        ids=(2 * words + grid(0, 1)).where(real, 99),
        real=real,
        segments=segments.where(real, -1),
        words=words.where(real, -1),
        separators=separators & real,
        causal=draw(st.booleans()),
    )


def random_patterns(tokens: TokenInfo, seed: int, spread: float) -> torch.Tensor:
    """Attention of 2 layers with 2 heads; rows of padding are NaN."""
    generator = torch.Generator().manual_seed(seed)
    allowed = tokens.allowed[None, :, None]
    size = (2, len(tokens.real), 2, *tokens.allowed.shape[1:])
    logits = spread * torch.randn(size, generator=generator, dtype=torch.float64)
    return logits.masked_fill(~allowed, -torch.inf).softmax(-1)


@given(token_infos(), st.integers(0, 1000), st.sampled_from([0.1, 1.0, 10.0]))
@settings(max_examples=60, deadline=None)
def test_categories_share_all_attention(tokens: TokenInfo, seed: int, spread: float) -> None:
    parts = partition(tokens)
    assert torch.equal(sum(p.long() for p in parts.values()), tokens.allowed.long())
    scores = score_patterns(random_patterns(tokens, seed, spread), tokens)
    np.testing.assert_allclose(scores.filter(regex="^share_").sum(axis=1), 1)
    masses = scores.filter(regex="^mass_").to_numpy()
    assert ((masses >= 0) & (masses <= 1 + 1e-12) | np.isnan(masses)).all()
    assert (scores["entropy"] <= math.log(tokens.ids.shape[1]) + 1e-12).all()


@given(token_infos())
@settings(max_examples=60, deadline=None)
def test_uniform_attention_has_ratio_one(tokens: TokenInfo) -> None:
    scores = score_patterns(random_patterns(tokens, 0, 0.0), tokens)
    ratios = scores.filter(regex="^ratio_").to_numpy()
    np.testing.assert_allclose(ratios[~np.isnan(ratios)], 1)


@given(token_infos(), st.integers(0, 4), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_padding_changes_nothing(tokens: TokenInfo, more: int, junk: float) -> None:
    patterns = random_patterns(tokens, 0, 1.0)
    expected = score_patterns(patterns, tokens)

    def wider(tensor: torch.Tensor, filler: int) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (0, more), value=filler)

    padded = TokenInfo(
        ids=wider(tokens.ids, 5).where(wider(tokens.real, False), 5),
        real=wider(tokens.real, False),
        segments=wider(tokens.segments, -1),
        words=wider(tokens.words, -1),
        separators=wider(tokens.separators, False),
        causal=tokens.causal,
    )
    noisy = torch.nn.functional.pad(patterns, (0, more, 0, more))
    noisy = noisy.masked_fill(~padded.allowed[None, :, None], junk)
    pd.testing.assert_frame_equal(score_patterns(noisy, padded), expected)


# -- whole models against plain loops -------------------------------------------------------------


def examples() -> Examples:
    """Pairs of very different lengths, so that batches are padded."""
    long = tiny_world.generate("id", 7, seed=1).frame
    short = pd.DataFrame(
        [
            ("the baker slept", "the baker slept", "entailment", "short"),
            ("the cook sang and the cook sang", "the pilot sang", "entailment", "short"),
        ],
        columns=list(long.columns),
    )
    return Examples("mixed lengths", pd.concat([long, short], ignore_index=True))


def encoder(path: Path) -> tuple[Path, PreTrainedTokenizerBase]:
    tokenizer = tiny_world.encoder_tokenizer()
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=48,
            initializer_range=0.5,
            id2label=dict(enumerate(tiny_world.LABELS)),
        )
    )
    return saved(path, model, tokenizer)


def decoder(path: Path) -> tuple[Path, PreTrainedTokenizerBase]:
    tokenizer = tiny_world.decoder_tokenizer()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=48,
            n_embd=16,
            n_layer=2,
            n_head=2,
            initializer_range=0.5,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    return saved(path, model, tokenizer)


def saved(
    path: Path, model: Any, tokenizer: PreTrainedTokenizerBase
) -> tuple[Path, PreTrainedTokenizerBase]:
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path, tokenizer


def category_of(query: int, key: int, tokens: list[str], causal: bool, two: bool) -> str:
    """The documented rule, one pair at a time; every token of the tiny world is a whole word."""
    special = [token.startswith("[") for token in tokens]
    segment = [tokens[:i].count("[SEP]") for i in range(len(tokens))]
    same_word = tokens[query] == tokens[key] and not special[key]
    if key == 0:
        return "first"
    if tokens[key] == "[SEP]":
        return "separator"
    if key == query:
        return "self"
    if key == query - 1:
        return "previous"
    if key == query + 1:
        return "next"
    if same_word and (segment[query] != segment[key] if two else True):
        return "repeated"
    if causal and tokens[key - 1] == tokens[query]:
        return "induction"
    return "other"


def oracle(
    path: Path, tokenizer: PreTrainedTokenizerBase, data: EncodedExamples, causal: bool
) -> pd.DataFrame:
    """Scores from Hugging Face's own attentions of unpadded examples, with plain loops."""
    loader: Any = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
    model = loader.from_pretrained(path, attn_implementation="eager").eval()
    names = CAUSAL if causal else ENCODER
    rows = []
    for layer in range(2):
        for head in range(2):
            masses: dict[str, list[float]] = {name: [] for name in names}
            uniforms: dict[str, list[float]] = {name: [] for name in names}
            entropies: list[float] = []
            for i in range(len(data)):
                ids = torch.tensor([data.input_ids[i]])
                inputs = {"input_ids": ids}
                if data.token_type_ids is not None:
                    inputs["token_type_ids"] = torch.tensor([data.token_type_ids[i]])
                with torch.no_grad():
                    attention = model(**inputs, output_attentions=True).attentions
                pattern = attention[layer][0, head].double().tolist()
                tokens = tokenizer.convert_ids_to_tokens(data.input_ids[i])
                two = data.examples.two_segments
                for query in range(len(tokens)):
                    keys = range(query + 1 if causal else len(tokens))
                    mass = dict.fromkeys(names, 0.0)
                    count = dict.fromkeys(names, 0)
                    for key in keys:
                        name = category_of(query, key, tokens, causal, two)
                        mass[name] += pattern[query][key]
                        count[name] += 1
                    for name in names:
                        if count[name]:
                            masses[name].append(mass[name])
                            uniforms[name].append(count[name] / len(keys))
                    line = [pattern[query][key] for key in keys]
                    entropies.append(-sum(p * math.log(p) for p in line if p > 0))
            row: dict[str, Any] = {
                "component": f"L{layer}.H{head}",
                "layer": layer,
                "head": head,
                "n_examples": len(data),
                "n_queries": len(entropies),
                "entropy": float(np.mean(entropies)),
            }
            for name in names:
                defined = bool(masses[name])
                mean_mass = float(np.mean(masses[name])) if defined else math.nan
                mean_uniform = float(np.mean(uniforms[name])) if defined else math.nan
                row[f"mass_{name}"] = mean_mass
                row[f"uniform_{name}"] = mean_uniform
                row[f"ratio_{name}"] = mean_mass / mean_uniform
                row[f"share_{name}"] = sum(masses[name]) / len(entropies)
            rows.append(row)
    return pd.DataFrame(rows)


def assert_close(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert set(found.columns) == set(expected.columns)
    pd.testing.assert_frame_equal(
        found[list(expected.columns)], expected, rtol=1e-4, atol=1e-6, check_dtype=False
    )


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_encoder_agrees_with_plain_loops(tmp_path: Path, batch_size: int) -> None:
    path, tokenizer = encoder(tmp_path)
    data = encode(examples(), tokenizer, max_length=48, words=True)
    done: list[int] = []
    found = attention_scores(
        load_model(path), data, batch_size=batch_size, progress=lambda: done.append(1)
    )
    assert_close(found, oracle(path, tokenizer, data, causal=False))
    assert len(done) == math.ceil(len(data) / batch_size)
    assert found["share_repeated"].min() > 0
    assert found["entropy"].max() - found["entropy"].min() > 0.01, "heads must differ"


@pytest.mark.parametrize("backend", ["bridge", pytest.param("hooked", marks=pytest.mark.hooked)])
@pytest.mark.parametrize("batch_size", [1, 64])
def test_decoder_agrees_with_plain_loops(tmp_path: Path, batch_size: int, backend: Any) -> None:
    if backend == "hooked":
        lens = pytest.importorskip("transformer_lens")
        if not hasattr(lens, "HookedTransformer"):
            pytest.skip("TransformerLens 4 has no HookedTransformer")
    path, tokenizer = decoder(tmp_path)
    data = encode(
        examples(),
        tokenizer,
        max_length=48,
        words=True,
        prompt=tiny_world.DECODER_PROMPT,
        answers=tiny_world.DECODER_ANSWERS,
    )
    found = attention_scores(load_model(path, backend=backend), data, batch_size=batch_size)
    assert_close(found, oracle(path, tokenizer, data, causal=True))
    assert found["share_induction"].min() > 0


def test_one_segment_agrees_with_plain_loops(tmp_path: Path) -> None:
    path, tokenizer = encoder(tmp_path)
    frame = examples().frame.assign(text_b="")
    data = encode(Examples("single", frame), tokenizer, max_length=48, words=True)
    assert_close(attention_scores(load_model(path), data), oracle(path, tokenizer, data, False))


def test_what_stands_at_padding_changes_nothing(tmp_path: Path) -> None:
    path, tokenizer = encoder(tmp_path)
    data = encode(examples(), tokenizer, max_length=48, words=True)
    model = load_model(path)
    expected = attention_scores(model, data)
    pd.testing.assert_frame_equal(attention_scores(model, replace(data, pad_id=9)), expected)


def test_registered_categories_are_scored(tmp_path: Path) -> None:
    path, tokenizer = encoder(tmp_path)
    data = encode(examples(), tokenizer, max_length=48, words=True)
    register_category("two_back", lambda tokens: tokens.at_distance(2), before="separator")
    try:
        scores = attention_scores(load_model(path), data)
    finally:
        unregister_category("two_back")
    assert scores["share_two_back"].min() > 0
    np.testing.assert_allclose(scores.filter(regex="^share_").sum(axis=1), 1, atol=1e-6)


def test_patterns_are_only_read(tmp_path: Path) -> None:
    path, tokenizer = encoder(tmp_path)
    model = load_model(path)
    data = encode(examples(), tokenizer, max_length=48, words=True)
    first = attention_scores(model, data)
    pd.testing.assert_frame_equal(attention_scores(model, data), first)


def test_examples_without_words_are_an_error(tmp_path: Path) -> None:
    path, tokenizer = encoder(tmp_path)
    model = load_model(path)
    with pytest.raises(InputError, match=r"found examples without words.*words=True"):
        attention_scores(model, encode(examples(), tokenizer, max_length=48))
    with pytest.raises(InputError, match=r"found examples dict.*words=True"):
        attention_scores(model, {})  # type: ignore[arg-type]


def test_model_without_patterns_is_an_error(tmp_path: Path) -> None:
    path, tokenizer = encoder(tmp_path)
    model = load_model(path)
    model.original_model.config._attn_implementation = "sdpa"
    data = encode(examples(), tokenizer, max_length=48, words=True)
    with pytest.raises(InputError, match=r"without computing blocks\.0.*eager attention"):
        attention_scores(model, data)
