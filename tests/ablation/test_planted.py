"""Interactions of every kind on a model in which they were planted, with all engines.

By Interaction(S) = D(S) - sum of D({i}), two redundant heads (an OR) of size c interact by +c:
losing both costs c, losing one nothing. Two heads that are both needed (an AND) interact by -c:
losing either costs all of c already. The same AND as a game of the components that are present,
v(T) = what T is worth with the others gone, has the dividend +c: there, both together make c and
each alone nothing. The sign depends on whether one looks from the full model down or from none up.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ablation.planted import DIRECT, DIRECT_SIZE, MLP, PAIR, SIZE, TRIPLE, Rule, examples, planted

from mechcore.ablation import (
    Ablations,
    ablate,
    dividends,
    find_superadditive,
    interactions,
    sets,
    shapley,
)
from mechcore.components import Mask, ModelShape
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations

RULES: tuple[Rule, ...] = ("or", "and", "or of three")
SIGNS = {"or": -1, "and": 1}
TOLERANCE = 1e-4
DATA = examples()
ENGINES = pytest.mark.parametrize("engine", ["tree", "restart", "reference"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {rule: planted(tmp_path_factory.mktemp(rule), rule) for rule in RULES}


def swept(model: Any, names: tuple[str, ...], engine: Any) -> Ablations:
    """Without all subsets."""
    found = sets.subsets(names)
    return ablate(model, found, DATA, fill="zero", engine=engine, split="ood", batch_size=5)


def by_set(table: pd.DataFrame, column: str, metric: str = "margin") -> dict[str, float]:
    """Values over all examples, by set."""
    rows = table[(table["metric"] == metric) & (table["subset"] == "all")]
    return dict(zip(rows["set"], rows[column], strict=True))


@ENGINES
@pytest.mark.parametrize("rule", ["or", "and"])
def test_a_pair_interacts_by_the_planted_size(models: Any, rule: str, engine: Any) -> None:
    found = swept(models[rule], (*PAIR, DIRECT), engine)
    full = np.full(len(DATA), SIZE + DIRECT_SIZE)
    np.testing.assert_allclose(found.full.margin, full, rtol=0, atol=TOLERANCE)
    table = interactions(found, n_resamples=20)
    planted_size = SIGNS[rule] * SIZE
    pair, first, second = "+".join(PAIR), f"{PAIR[0]}+{DIRECT}", f"{DIRECT}+{PAIR[1]}"
    both = f"{PAIR[0]}+{DIRECT}+{PAIR[1]}"
    expected = {first: 0, second: 0, pair: planted_size, both: planted_size}
    margin = table[table["metric"] == "margin"]
    assert len(margin) == 4 * 3  # subsets u, v and all
    for row in margin.itertuples():
        for value in (row.interaction, row.low, row.high):
            assert value == pytest.approx(expected[row.set], abs=TOLERANCE)
        assert row.superadditive == (expected[row.set] < 0 and row.p_adjusted <= 0.05)
        assert row.p <= 0.5 ** (row.n - 1) or expected[row.set] == 0
    assert not margin[["floor", "ceiling"]].any(axis=None)
    # The margin without the rule is that of the direct head, which is negative.
    accuracy = table[table["metric"] == "accuracy"].set_index(["subset", "set"])
    assert accuracy.loc[("all", pair), "interaction"] == SIGNS[rule]
    assert accuracy.loc[("all", pair), "floor"]
    assert accuracy.loc[("all", first), "interaction"] == 0


@ENGINES
@pytest.mark.parametrize("rule", ["or", "and"])
def test_dividends_and_shapley_values_of_a_pair(models: Any, rule: str, engine: Any) -> None:
    found = swept(models[rule], (*PAIR, DIRECT), engine)
    single = -SIZE if rule == "and" else 0.0
    got = by_set(dividends(found, n_resamples=2), "dividend")
    assert len(got) == 7
    expected = dict.fromkeys(got, 0.0) | dict.fromkeys(PAIR, single)
    expected |= {DIRECT: -DIRECT_SIZE, "+".join(PAIR): SIGNS[rule] * SIZE}
    assert got == pytest.approx(expected, abs=TOLERANCE)
    values = by_set(shapley(found, n_resamples=2), "shapley")
    halves = dict.fromkeys(PAIR, -SIZE / 2) | {DIRECT: -DIRECT_SIZE}
    assert values == pytest.approx(halves, abs=TOLERANCE)
    joint = found.changes(sets.subsets((*PAIR, DIRECT))[-1], "margin").mean()
    assert sum(values.values()) == pytest.approx(joint, abs=1e-9)


def test_the_and_as_a_game_of_present_components_has_the_same_sign(models: Any) -> None:
    model = models["and"]
    full = Mask.full(model)

    def worth(*present: str) -> float:
        mask = full.without(name for name in PAIR if name not in present)
        found = evaluate(model, DATA, mask=mask, fill="zero", in_domain=False)
        return float(found.margin.mean())

    dividend = worth(*PAIR) - worth(PAIR[0]) - worth(PAIR[1]) + worth()
    assert dividend == pytest.approx(SIZE, abs=TOLERANCE)
    # With v(all without T) - v(all), the same four numbers give the interaction.
    interaction = by_set(interactions(swept(model, PAIR, "tree"), n_resamples=2), "interaction")
    assert interaction == pytest.approx({"+".join(PAIR): dividend}, abs=TOLERANCE)


@ENGINES
def test_three_redundant_heads_interact_as_three_alone(models: Any, engine: Any) -> None:
    found = swept(models["or of three"], TRIPLE, engine)
    whole = "+".join(TRIPLE)
    expected = {"+".join(pair): 0.0 for pair in itertools.combinations(TRIPLE, 2)} | {whole: -SIZE}
    got = by_set(interactions(found, n_resamples=2), "interaction")
    assert got == pytest.approx(expected, abs=TOLERANCE)
    expected |= dict.fromkeys(TRIPLE, 0.0)
    got = by_set(dividends(found, n_resamples=2), "dividend")
    assert got == pytest.approx(expected, abs=TOLERANCE)
    thirds = dict.fromkeys(TRIPLE, -SIZE / 3)
    assert by_set(shapley(found, n_resamples=2), "shapley") == pytest.approx(thirds, abs=TOLERANCE)


@pytest.mark.parametrize("n_pairs", [1, 100])
def test_the_search_finds_the_redundant_pair_first(models: Any, n_pairs: int) -> None:
    model = models["or"]
    means = MeanActivations.compute(model, DATA, n_samples=0)
    search = find_superadditive(
        model, DATA, means, fill="zero", n_pairs=n_pairs, max_size=2, n_resamples=2
    )
    n_components = len(ModelShape.of(model).components)
    assert n_components == 10
    assert search.n_pairs == 45
    assert search.n_screened_out == (44 if n_pairs == 1 else 0)
    # One head is worth nothing beside the other, and without it c times the slope of the rule.
    first = search.screening.iloc[0]
    assert first["set"] == "+".join(PAIR)
    assert first["predicted"] == pytest.approx(-SIZE / 0.75, abs=TOLERANCE)
    assert first["interaction"] == pytest.approx(-SIZE, abs=TOLERANCE)
    assert search.found["set"].iloc[0] == "+".join(PAIR)
    found = search.found[search.found["metric"] == "margin"]
    best = found[found["set"] == "+".join(PAIR)]
    assert best["interaction"].tolist() == pytest.approx([-SIZE] * len(best), abs=TOLERANCE)
    assert best["interaction_in_search"].tolist() == pytest.approx([-SIZE] * len(best), abs=1e-4)
    assert (found[found["set"] != "+".join(PAIR)]["interaction"] > -TOLERANCE).all()


def test_the_search_finds_three_redundant_heads(models: Any) -> None:
    model = models["or of three"]
    means = MeanActivations.compute(model, DATA, n_samples=0)
    options: dict[str, Any] = {"fill": "zero", "n_found": 1, "n_resamples": 2}
    search = find_superadditive(
        model, DATA, means, components=[*TRIPLE, DIRECT, MLP], max_size=3, **options
    )
    triples = search.found[(search.found["size"] == 3) & (search.found["metric"] == "margin")]
    assert set(triples["set"]) == {"+".join(TRIPLE)}
    assert triples["interaction"].tolist() == pytest.approx([-SIZE] * 3, abs=TOLERANCE)
