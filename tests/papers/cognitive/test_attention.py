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
from papers.byte_level import byte_level
from scipy.stats import rankdata

from mechcore.attention import categories
from mechcore.models import load_model
from mechcore.papers.cognitive import attention
from mechcore.papers.cognitive.attention import attention_tables
from mechcore.papers.cognitive.text import tiny_tokenizer
from mechcore.papers.cognitive.trials import Trials, generate

LAYERS, HEADS = 2, 2
NAMES = [f"L{layer}.H{head}" for layer in range(LAYERS) for head in range(HEADS)]
NUMBER = re.compile(r"-?\d+(\.\d+)?")


def signed_tokenizer() -> hf.PreTrainedTokenizerFast:
    """Learnt from few signed prompts, so that numbers are pieces."""
    texts = [*generate(20, 9, rendering="signed").frame["text"], *[" left right"] * 20]
    return byte_level(texts, 330)


TOKENIZERS = {"two_sided": tiny_tokenizer, "signed": signed_tokenizer}


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
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("attention"))


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Case]:
    """A model of two-sided prompts, and what it was loaded from."""
    case = Case("two_sided", tmp_path_factory.mktemp("words"))
    return load_model(case.path), case


def tables_of(words: tuple[Any, Case], ablation: pd.DataFrame, **options: Any) -> Any:
    model, case = words
    return attention_tables(model, case.tokenizer, case.trials, ablation, **options)


CHANGES = {"mean": [-0.3, 0.1, 0.0, -0.1], "zero": [0.0, 0.2, 0.1, 0.3]}
ABLATION = pd.DataFrame(
    [
        {"fill": fill, "component": name, "change": change}
        for fill, changes in CHANGES.items()
        for name, change in zip(NAMES, changes, strict=True)
    ]
)


def flags(tokenizer: Any, text: str) -> tuple[list[int], list[bool]]:
    """Token ids, and which tokens have a character of a number, from decoding alone."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    ends = [len(tokenizer.decode(ids[: i + 1])) for i in range(len(ids))]
    assert ends[-1] == len(text)
    inside = {i for match in NUMBER.finditer(text) for i in range(*match.span())}
    return ids, [bool(inside & {*range(a, b)}) for a, b in zip([0, *ends], ends, strict=False)]


def sums(case: Case, trials: Trials) -> dict[str, np.ndarray]:
    """Sums over queries by trial: attention on numbers [trial, head], uniform, queries [trial]."""
    totals: dict[str, list[Any]] = {name: [] for name in ("mass", "uniform", "n")}
    for text in trials.frame["text"]:
        ids, numbers = flags(case.tokenizer, text)
        with torch.no_grad():
            output = case.reference(torch.tensor([ids]), output_attentions=True)
        pattern = torch.cat(output.attentions).flatten(0, 1).double().numpy()
        queries = [q for q in range(len(ids)) if any(numbers[: q + 1])]
        on_numbers = pattern[:, :, np.flatnonzero(numbers)].sum(-1)
        totals["mass"].append(on_numbers[:, queries].sum(-1))
        totals["uniform"].append(sum(sum(numbers[: q + 1]) / (q + 1) for q in queries))
        totals["n"].append(len(queries))
    return {name: np.array(values) for name, values in totals.items()}


@pytest.mark.parametrize("backend", ["bridge", pytest.param("hooked", marks=pytest.mark.hooked)])
def test_masses_against_patterns_of_single_prompts(rendered: Case, backend: Any) -> None:
    model = load_model(rendered.path, backend=backend)
    tables = attention_tables(model, rendered.tokenizer, rendered.trials, ABLATION, resamples=60)
    table = tables["cognitive_attention"]
    assert table.columns.tolist() == [
        *("component", "layer", "head", "mass", "low", "high", "uniform", "ratio", "low_ratio"),
        "high_ratio",
    ]
    assert table[["component", "layer", "head"]].values.tolist() == [
        [name, *divmod(i, HEADS)] for i, name in enumerate(NAMES)
    ]
    totals = sums(rendered, rendered.trials)
    mass, uniform = (totals[name].sum(0) / totals["n"].sum() for name in ("mass", "uniform"))
    np.testing.assert_allclose(table["mass"], mass, rtol=1e-4)
    np.testing.assert_allclose(table["uniform"], uniform, rtol=1e-9)
    np.testing.assert_allclose(table["ratio"], mass / uniform, rtol=1e-4)
    assert np.ptp(mass) > 0.005
    assert (table["low"] < table["mass"]).all()
    assert (table["mass"] < table["high"]).all()


def test_ratio_intervals_against_a_bootstrap_of_whole_trials(words: tuple[Any, Case]) -> None:
    model, case = words
    table = tables_of(words, ABLATION, resamples=1500)["cognitive_attention"]
    totals = sums(case, case.trials)
    rows = np.random.default_rng(0).integers(24, size=(4000, 24))
    ratios = totals["mass"][rows].sum(1) / totals["uniform"][rows].sum(1)[:, None]
    low, high = np.quantile(ratios, [0.025, 0.975], axis=0)
    assert (np.abs(table["low_ratio"] - low) < 0.2 * (high - low)).all()
    assert (np.abs(table["high_ratio"] - high) < 0.2 * (high - low)).all()
    first = case.trials.rows([0])
    alone = attention_tables(model, case.tokenizer, first, ABLATION, resamples=20)
    ends = alone["cognitive_attention"][["low", "high", "low_ratio", "high_ratio"]]
    assert ends.isna().all(axis=None)
    assert alone["cognitive_attention"]["ratio"].notna().all()


def test_the_categories_are_gone_afterwards(
    words: tuple[Any, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = categories(causal=True)
    tables_of(words, ABLATION, resamples=1)
    assert categories(causal=True) == before

    def broken(*_: Any, **__: Any) -> None:
        assert len(categories(causal=True)) == len(before) + 1
        raise RuntimeError("out of memory")

    monkeypatch.setattr(attention, "score_heads", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        tables_of(words, ABLATION)
    assert categories(causal=True) == before


def test_relations_to_changes_by_hand(words: tuple[Any, Case]) -> None:
    mixed = ABLATION.iloc[[3, 1, 0, 2, 7, 5, 4, 6]]  # rows may come in any order
    tables = tables_of(words, mixed, resamples=1)
    ratio = tables["cognitive_attention"]["ratio"].to_numpy()
    mean, zero = tables["cognitive_attention_change"].itertuples()
    for row, fill in ((mean, "mean"), (zero, "zero")):
        assert (row.fill, row.n_heads) == (fill, 4)
        rho = np.corrcoef(rankdata(ratio), rankdata(CHANGES[fill]))[0, 1]
        assert row.rho == pytest.approx(rho)
        assert 0 <= row.p <= 1
        assert row.first_layer_ratio == pytest.approx((ratio[0] + ratio[1]) / 2)
        assert row.other_ratio == pytest.approx((ratio[2] + ratio[3]) / 2)
    assert mean.top_ratio == pytest.approx(0.75 * ratio[0] + 0.25 * ratio[3])  # .3 and .1 of .4
    assert np.isnan(zero.top_ratio)


@pytest.mark.filterwarnings("error")
def test_what_has_no_correlation_has_none() -> None:
    table = pd.DataFrame({"layer": [0, 0, 0], "ratio": [1.0, 2.0, 4.0]})
    same = attention._relation(table, np.full(3, -0.5))
    assert np.isnan([same["rho"], same["p"], same["other_ratio"]]).all()
    assert same["first_layer_ratio"] == same["top_ratio"] == pytest.approx(7 / 3)
    few = attention._relation(table[:2], np.array([-0.5, -0.1]))
    assert np.isnan([few["rho"], few["p"]]).all()
