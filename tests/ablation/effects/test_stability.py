"""Stability of rankings of components and sets, on answers whose agreement is known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ablation.few import of_margins
from scipy import stats

from mechcore.ablation import Ablations, ComponentSet
from mechcore.ablation.effects.stability import STABILITY, change_stability, interaction_stability

N = 40
SINGLES = [f"L0.H{i}" for i in range(6)]


def ablations(losses: dict[str, np.ndarray]) -> Ablations:
    """With these losses of margin; the full model has a margin of 1."""
    without = {ComponentSet.of(s.split("+")): of_margins(1 - loss) for s, loss in losses.items()}
    return Ablations.of(of_margins(np.ones(N)), without, "hans", "ood")


def row(table: Any, metric: str) -> Any:
    (line,) = table[table["metric"] == metric].to_dict("records")
    return line


def test_changes_that_are_alike_on_every_example_are_found_again() -> None:
    made = ablations({name: np.full(N, 0.1 * i) for i, name in enumerate(SINGLES)})
    table = change_stability(made, n_resamples=20)
    STABILITY.check(table)
    assert table["metric"].tolist() == ["accuracy", "margin"]
    figures = row(table, "margin")
    expected = {"size": 1, "data": "hans", "split": "ood", "n": N, "n_ranked": 6, "top": 3}
    assert {name: figures[name] for name in expected} == expected
    for name in ("rho", "rho_low", "rho_high", "jaccard", "jaccard_low", "jaccard_high"):
        assert figures[f"halves_{name}"] == pytest.approx(1)
        assert figures[f"resamples_{name}"] == pytest.approx(1)
    assert figures["predicted_rho"] == pytest.approx(1)
    assert figures["largest"] == "L0.H5 (1.00), L0.H4 (1.00), L0.H3 (1.00)"
    made = ablations({name: np.zeros(N) for name in SINGLES[:2]})
    for table in (change_stability(made), interaction_stability(made)):
        assert len(table) == 0
        STABILITY.check(table)


def test_changes_that_are_all_the_same_are_found_again_by_chance_only() -> None:
    made = ablations({name: np.zeros(N) for name in SINGLES})
    figures = row(change_stability(made, n_resamples=3000), "accuracy")
    assert figures["halves_rho"] == figures["resamples_rho"] == figures["predicted_rho"] == 0
    # Of 20 triples of 6, 1 shares three with a given one, 9 share two, 9 share one.
    chance = (1 + 9 * 2 / 4 + 9 * 1 / 5) / 20
    assert figures["jaccard_by_chance"] == pytest.approx(chance)
    assert figures["halves_jaccard"] == pytest.approx(chance, abs=0.02)


def test_figures_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(4)
    losses = {name: 0.3 * i + rng.normal(size=N) for i, name in enumerate(SINGLES)}
    figures = row(change_stability(ablations(losses), n_resamples=400, seed=1), "margin")
    values = np.array([losses[name] for name in SINGLES])
    top = set(np.argsort(values.mean(1))[-3:])
    rhos, overlaps = ({"halves": [], "resamples": []} for _ in range(2))
    for _ in range(400):
        order = rng.permutation(N)
        halves = [values[:, part].mean(1) for part in (order[: N // 2], order[N // 2 :])]
        drawn = values[:, rng.integers(N, size=N)].mean(1)
        for name, (a, b) in {"halves": halves, "resamples": (drawn, values.mean(1))}.items():
            rhos[name].append(stats.spearmanr(a, b).statistic)
            tops = [set(np.argsort(means)[-3:]) for means in (a, b)]
            overlaps[name].append(len(tops[0] & tops[1]) / len(tops[0] | tops[1]))
    for name in rhos:
        assert figures[f"{name}_rho"] == pytest.approx(np.mean(rhos[name]), abs=0.05)
        assert figures[f"{name}_jaccard"] == pytest.approx(np.mean(overlaps[name]), abs=0.06)
        for end, q in (("low", 0.025), ("high", 0.975)):
            wanted = np.quantile(rhos[name], q)
            assert figures[f"{name}_rho_{end}"] == pytest.approx(wanted, abs=0.15)
    rho = figures["halves_rho"]
    assert figures["predicted_rho"] == pytest.approx(2 * rho / (1 + rho))
    largest = {name.split(" ")[0] for name in figures["largest"].split(", ")}
    assert largest == {SINGLES[i] for i in top}


def test_sets_are_ranked_by_their_interactions_among_those_of_their_size() -> None:
    losses = {name: np.full(N, 0.1 * i) for i, name in enumerate(SINGLES)}
    # Joint losses fall where interactions rise: 0.5 - 0.1, 0.4 - 0.2 ... less the single losses.
    pairs = ["L0.H0+L0.H1", "L0.H0+L0.H2", "L0.H0+L0.H3"]
    losses |= {pair: np.full(N, 0.5 - 0.05 * i) for i, pair in enumerate(pairs)}
    losses |= {"L0.H1+L0.H2+L0.H3": np.full(N, 9.0)}  # alone of its size
    table = interaction_stability(ablations(losses), n_resamples=5)
    STABILITY.check(table)
    assert table["size"].tolist() == [2, 2]
    figures = row(table, "margin")
    assert (figures["n_ranked"], figures["top"]) == (3, 1)
    assert figures["largest"] == "L0.H0+L0.H1 (1.00)"
    assert figures["halves_rho"] == pytest.approx(1)


def test_copies_given_as_clusters_make_no_ranking_stable() -> None:
    rng, ten = np.random.default_rng(0), np.repeat(np.arange(N), 10)
    once = ablations({name: rng.normal(0.02 * i, 1, N) for i, name in enumerate(SINGLES)})
    copied = once.part(ten)
    known = replace(copied, full=replace(copied.full, clusters=ten))
    options = {"n_resamples": 200}
    plain, blind, again = (
        row(change_stability(made, **options), "margin") for made in (once, copied, known)
    )
    for name in ("halves_rho", "resamples_rho", "halves_jaccard", "predicted_rho"):
        assert again[name] == pytest.approx(plain[name])
    assert blind["halves_rho"] > plain["halves_rho"] + 0.2
    few = replace(copied, full=replace(copied.full, clusters=ten // 6))
    assert change_stability(few, **options).empty
