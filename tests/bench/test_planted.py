"""Planted transformers answer as their circuits do, with everything ablated that can be."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from mechcore.ablation import ComponentSet
from mechcore.bench.circuit import ANSWER, Circuit, Copy, Gate, Relay
from mechcore.bench.planted import CATALOGUE, Planted
from mechcore.bench.planting import Form, token_values
from mechcore.bench.population import Population
from mechcore.components import Component, Mask
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations

H = Component
EVERYTHING = Circuit(
    4,
    [
        Copy(H(0, 1), 0, {"first": 1}),
        Copy(H(1, 2), 1, {"second": 1}),
        Copy(H(0, 0), 2, {"seen": 1, ANSWER: 2}),
        Copy(H(1, 3), 2, {ANSWER: 2}, unless="there"),
        Relay(H(2, 0), "seen", {ANSWER: -0.5}),
    ],
    [Gate(1, "or", ("first", "second"), {ANSWER: 3}), Gate(0, "size", ("seen",), {"there": 1})],
    [Copy(H(2, 1), 3, {"idle": 1})],
)
CUES = Population(4, {0: (0.9, 0.9), 1: (0.8, 0.8), 2: (0.9, 0.9)})


@pytest.mark.parametrize(("family", "norms"), [("encoder", True), ("decoder", False)])
def test_every_ablated_set_answers_as_the_program(family: str, norms: bool, tmp_path: Path) -> None:
    form = Form(family, norms=norms, seed=1)  # type: ignore[arg-type]
    case = Planted(EVERYTHING, CUES, form).case("everything", tmp_path)
    means = MeanActivations.compute(case.model, case.data["train"], n_samples=0)
    causal = family == "decoder"

    def words(split: str) -> tuple[np.ndarray, list[int]]:
        texts = [text.split() for text in case.data[split].examples.frame["text_a"]]
        return token_values(texts), [len(text) + 1 for text in texts]

    ours = EVERYTHING.means(*words("train"), causal=causal)
    parts = [*sorted(EVERYTHING.components), H(2, 1), H(2, 2)]
    sets = [s for n in range(3) for s in itertools.combinations(parts, n)]
    sets.append(tuple(parts))
    masks = Mask.stack([ComponentSet(s).mask(Mask.full(case.model).shape) for s in sets])
    texts = case.data["id"].part(range(24))
    by_set = evaluate(case.model, texts, mask=masks, means=means)
    tokens, lengths = words("id")
    for answers, without in zip(by_set, sets, strict=True):
        wanted = EVERYTHING.answers(
            tokens[:24],
            lengths[:24],
            causal=causal,
            without=[c for c in without if c in ours],
            means=ours,
        )
        got = (answers.logits[:, 1] - answers.logits[:, 0]).numpy()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=0.02 if norms else 1e-4)


def test_what_is_true_of_planted_circuits() -> None:
    """Each cue is right in 95 %, so both in 0.9025 and neither in 0.0025 of the texts."""
    all_three = ["L0.H1+L1.H3", "L0.H1+L1.MLP", "L1.H3+L1.MLP"]
    expected: dict[str, dict[str, float]] = {
        "or": {"L0.H1+L1.H3": -3 * 0.9},
        "and": dict.fromkeys(all_three, 3 * 0.9),
        "backup": dict.fromkeys(["L0.H2+L1.H1", "L0.H2+L0.MLP"], -2 * 0.9),
        "negative": {},
    }
    for name, sizes in expected.items():
        pairs = CATALOGUE[f"{name}-encoder"].truth().interactions or {}
        assert {str(pair): size for pair, size in pairs.items()} == pytest.approx(sizes)
    # In domain the cue alone is right in 98 %; out of domain it is in 2 %, and the other wins.
    for family in ("encoder", "decoder"):
        planted = CATALOGUE[f"heuristic-{family}"]
        truth, oracle = planted.truth(), planted.oracle
        assert truth.core == frozenset([H(0, 2)])
        assert truth.generalising == frozenset([H(0, 0), H(1, 3), H(1)])
        assert oracle.accuracy("ood") == 1
        assert oracle.accuracy("ood", [H(1)]) == pytest.approx(0.02)
        assert oracle.accuracy("id", [H(1)]) == pytest.approx(0.98)


def test_the_population_is_what_is_drawn() -> None:
    population = Population(3, {0: (0.9, 0.2)}, [(1, 2)])
    for domain, right in (("id", 0.9), ("ood", 0.2)):
        values, labels, chance = population.every(domain)  # type: ignore[arg-type]
        assert chance.sum() == pytest.approx(1)
        assert chance[labels == 1].sum() == pytest.approx(0.5)
        assert chance[values[:, 0] == labels].sum() == pytest.approx(right)
        assert chance[values[:, 1] * values[:, 2] == labels].sum() == pytest.approx(1)
        drawn, said = population.draw(4000, domain, seed=0)  # type: ignore[arg-type]
        assert (drawn[:, 0] == said).mean() == pytest.approx(right, abs=0.03)
        assert (drawn[:, 1] * drawn[:, 2] == said).all()
        assert drawn[:, 1].mean() == pytest.approx(0, abs=0.06)


def test_noise_leaves_what_is_planted(tmp_path: Path) -> None:
    case = CATALOGUE["or-encoder-noisy"].case("noisy", tmp_path)
    full = evaluate(case.model, case.data["id"])
    planted = CATALOGUE["or-encoder-noisy"]
    assert full.accuracy == pytest.approx(planted.oracle.accuracy("id"), abs=0.02)
    assert full.margin.mean() == pytest.approx(planted.oracle.margin("id"), rel=0.2)
