"""Attention to numbers against Hugging Face's own patterns and a plain loop over tokens."""

import re
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
from scipy.stats import rankdata
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from mechcore.attention import categories
from mechcore.errors import InputError
from mechcore.models import load_model
from mechcore.papers.cognitive import attention
from mechcore.papers.cognitive.attention import attention_tables
from mechcore.papers.cognitive.text import tiny_tokenizer
from mechcore.papers.cognitive.trials import Trials, generate

LAYERS, HEADS = 2, 2
NAMES = [f"L{layer}.H{head}" for layer in range(LAYERS) for head in range(HEADS)]
NUMBER = re.compile(r"-?\d+(\.\d+)?")


def byte_level() -> hf.PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2's, learnt from few signed prompts, so that numbers are pieces."""
    texts = [*generate(20, 9, rendering="signed").frame["text"], *[" left right"] * 20]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZERS = {"two_sided": tiny_tokenizer, "signed": byte_level}


class Case:
    """A rendering, its tokenizer, and a checkpoint that knows it."""

    def __init__(self, rendering: Any, folder: Path) -> None:
        self.path = folder / rendering
        self.tokenizer = TOKENIZERS[rendering]()
        self.trials = generate(24, 2, rendering=rendering, split="test", random_order=True)
        size = {"vocab_size": len(self.tokenizer), "n_layer": LAYERS, "n_head": HEADS}
        model = helpers.gpt2_language_model(3, **size, pad_token_id=0, n_positions=64)
        model.save_pretrained(self.path)
        self.reference = model


@pytest.fixture(scope="module", params=TOKENIZERS)
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("attention"))


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case("two_sided", tmp_path_factory.mktemp("words"))


def ablation_of(changes: dict[str, list[float]]) -> pd.DataFrame:
    rows = [
        {"fill": fill, "component": name, "change": change}
        for fill, listed in changes.items()
        for name, change in zip(NAMES, listed, strict=True)
    ]
    return pd.DataFrame(rows)


ABLATION = ablation_of({"mean": [-0.3, 0.1, 0.0, -0.1], "zero": [0.0, 0.2, 0.1, 0.3]})


def flags(tokenizer: Any, text: str) -> tuple[list[int], list[bool]]:
    """Token ids, and which tokens have a character of a number, from decoding alone."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    ends = [len(tokenizer.decode(ids[: i + 1])) for i in range(len(ids))]
    assert ends[-1] == len(text)
    inside = {i for match in NUMBER.finditer(text) for i in range(*match.span())}
    return ids, [bool(inside & {*range(a, b)}) for a, b in zip([0, *ends], ends, strict=False)]


def sums(case: Case, trials: Trials) -> dict[str, np.ndarray]:
    """Sums over queries by trial: attention on numbers [trial, head], uniform, queries [trial]."""
    found: dict[str, list[Any]] = {name: [] for name in ("mass", "uniform", "n")}
    for text in trials.frame["text"]:
        ids, numbers = flags(case.tokenizer, text)
        with torch.no_grad():
            output = case.reference(torch.tensor([ids]), output_attentions=True)
        pattern = torch.cat(output.attentions).flatten(0, 1).double().numpy()
        queries = [q for q in range(len(ids)) if any(numbers[: q + 1])]
        on_numbers = pattern[:, :, np.flatnonzero(numbers)].sum(-1)
        found["mass"].append(on_numbers[:, queries].sum(-1))
        found["uniform"].append(sum(sum(numbers[: q + 1]) / (q + 1) for q in queries))
        found["n"].append(len(queries))
    return {name: np.array(values) for name, values in found.items()}


def test_the_tokenizer_of_signed_prompts_cuts_numbers_into_pieces() -> None:
    tokenizer = byte_level()
    counts = set()
    for text in generate(24, 2, rendering="signed", split="test").frame["text"]:
        counts.add(sum(flags(tokenizer, text)[1]))
        assert len(tokenizer(" left")["input_ids"]) == len(tokenizer(" right")["input_ids"]) == 1
    assert min(counts) > 2 * 2  # more than two tokens for each of the two numbers
    assert len(counts) > 1  # a sign is a token more


@pytest.mark.parametrize("backend", ["bridge", pytest.param("hooked", marks=pytest.mark.hooked)])
def test_masses_against_patterns_of_single_prompts(each: Case, backend: Any) -> None:
    model = load_model(each.path, backend=backend)
    tables = attention_tables(model, each.tokenizer, each.trials, ABLATION, resamples=60)
    table = tables["cognitive_attention"]
    assert table.columns.tolist() == [
        *("component", "layer", "head", "mass", "low", "high", "uniform", "ratio", "low_ratio"),
        "high_ratio",
    ]
    assert table["component"].tolist() == NAMES
    assert table["layer"].tolist() == [0, 0, 1, 1]
    assert table["head"].tolist() == [0, 1, 0, 1]
    found = sums(each, each.trials)
    mass = found["mass"].sum(0) / found["n"].sum()
    uniform = found["uniform"].sum() / found["n"].sum()
    np.testing.assert_allclose(table["mass"], mass, rtol=1e-4)
    np.testing.assert_allclose(table["uniform"], uniform, rtol=1e-9)
    np.testing.assert_allclose(table["ratio"], mass / uniform, rtol=1e-4)
    assert np.ptp(mass) > 0.005
    assert (table["low"] < table["mass"]).all()
    assert (table["mass"] < table["high"]).all()


def test_ratio_intervals_against_a_bootstrap_of_whole_trials(words: Case) -> None:
    model = load_model(words.path)
    tables = attention_tables(model, words.tokenizer, words.trials, ABLATION, resamples=1500)
    table, found = tables["cognitive_attention"], sums(words, words.trials)
    rows = np.random.default_rng(0).integers(24, size=(4000, 24))
    ratios = found["mass"][rows].sum(1) / found["uniform"][rows].sum(1)[:, None]
    low, high = np.quantile(ratios, [0.025, 0.975], axis=0)
    width = high - low
    assert (np.abs(table["low_ratio"] - low) < 0.2 * width).all()
    assert (np.abs(table["high_ratio"] - high) < 0.2 * width).all()
    alone = attention_tables(
        model, words.tokenizer, words.trials.rows([0]), ABLATION, resamples=20
    )["cognitive_attention"]
    assert alone[["low", "high", "low_ratio", "high_ratio"]].isna().all(axis=None)
    assert alone["ratio"].notna().all()


def test_the_categories_are_gone_afterwards(words: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    before = categories(causal=True)
    model = load_model(words.path)
    attention_tables(model, words.tokenizer, words.trials, ABLATION, resamples=1)
    assert categories(causal=True) == before

    def broken(*_: Any, **__: Any) -> None:
        assert len(categories(causal=True)) == len(before) + 1
        raise RuntimeError("out of memory")

    monkeypatch.setattr(attention, "score_heads", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        attention_tables(model, words.tokenizer, words.trials, ABLATION)
    assert categories(causal=True) == before


def test_relations_to_changes_by_hand(words: Case) -> None:
    model = load_model(words.path)
    mixed = ABLATION.iloc[[3, 1, 0, 2, 7, 5, 4, 6]]  # rows may come in any order
    tables = attention_tables(model, words.tokenizer, words.trials, mixed, resamples=1)
    ratio = tables["cognitive_attention"]["ratio"].to_numpy()
    mean, zero = tables["cognitive_attention_change"].itertuples()
    assert (mean.fill, zero.fill) == ("mean", "zero")
    assert mean.n_heads == zero.n_heads == 4
    for row, changes in ((mean, [-0.3, 0.1, 0.0, -0.1]), (zero, [0.0, 0.2, 0.1, 0.3])):
        assert row.rho == pytest.approx(np.corrcoef(rankdata(ratio), rankdata(changes))[0, 1])
        assert 0 <= row.p <= 1
        assert row.first_layer_ratio == pytest.approx((ratio[0] + ratio[1]) / 2)
        assert row.other_ratio == pytest.approx((ratio[2] + ratio[3]) / 2)
    assert mean.top_ratio == pytest.approx(0.75 * ratio[0] + 0.25 * ratio[3])  # .3 and .1 of .4
    assert np.isnan(zero.top_ratio)


@pytest.mark.filterwarnings("error")
def test_what_has_no_correlation_has_none(words: Case) -> None:
    table = pd.DataFrame({"layer": [0, 0, 0], "ratio": [1.0, 2.0, 4.0]})
    same = attention._relation(table, np.full(3, -0.5))
    assert np.isnan([same["rho"], same["p"], same["other_ratio"]]).all()
    assert same["first_layer_ratio"] == same["top_ratio"] == pytest.approx(7 / 3)
    few = attention._relation(table[:2], np.array([-0.5, -0.1]))
    assert np.isnan([few["rho"], few["p"]]).all()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (ABLATION[:3], "3 rows for fill 'mean'.*the 4 heads of the model"),
        (pd.concat([ABLATION, ABLATION]), "8 rows for fill 'mean'"),
    ],
)
def test_another_ablation_table_is_refused(words: Case, table: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attention_tables(load_model(words.path), words.tokenizer, words.trials, table)
