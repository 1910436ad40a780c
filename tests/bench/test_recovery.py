"""How well methods recover what is true, by scores computed otherwise, and the benchmark."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from mechcore.ablation import ablate, sets
from mechcore.ablation.joint.predictors import INTERACTION_METHODS, PairRequest, Predictions
from mechcore.bench.case import Case
from mechcore.bench.cases import case_names, load_case
from mechcore.bench.planted import CATALOGUE
from mechcore.bench.recovery import (
    WITH_PAIRS,
    _beyond_rounding,
    over_cases,
    recovered_nodes,
    recovered_pairs,
)
from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.evaluation.cost import Cost
from mechcore.masking.means import MeanActivations

WITHOUT_NOISE = ("mixed-encoder", "heuristic-decoder", "negative-encoder")
"""Of several gates, of a core that is a heuristic, and of no interaction."""


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return load_case("backup-encoder", tmp_path_factory.mktemp("backup"))


def test_single_ablations_and_derivatives_miss_backups_that_pairs_find(
    backup: Case,
) -> None:
    """Neither a backup nor what wakes it costs anything alone, just as what has no part at all."""
    table = recovered_nodes(backup, ["attribution", "singles", WITH_PAIRS]).set_index("method")
    assert table.loc["singles", "auroc"] == (2 + 2 * 0.5) / 4  # two above, two ties
    with_pairs = table.loc[WITH_PAIRS]
    assert (with_pairs["auroc"], with_pairs["distance"]) == (1, 0)
    assert (with_pairs["n_true"], with_pairs["n"]) == (4, 15)
    assert with_pairs["forwards"] == 1 + 15 + 15 * 14 / 2
    passes = table.loc["attribution", ["forwards", "backwards"]].astype(float)
    assert passes.tolist() == pytest.approx([1, 1])
    (row,) = recovered_pairs(backup, ["hessian"]).itertuples()
    assert row.auroc <= 0.5
    assert row.signs == 0


def test_rows_are_those_of_the_scores(tmp_path: Path) -> None:
    case = load_case("mixed-decoder-noisy", tmp_path)
    (row,) = recovered_nodes(case, ["singles"], seed=3).itertuples()
    model, train = case.model, case.data["train"]
    means = MeanActivations.compute(model, train, n_samples=0)
    swept = ablate(model, sets.singles(model), train, means, split="id")
    kl = {s.components[0]: swept.without[s].kl.mean() for s in swept.sets}
    true = [component in case.truth.components for component in kl]
    assert row.auroc == pytest.approx(roc_auc_score(true, list(kl.values())), abs=0.03)
    assert (row.case, row.seed) == ("mixed-decoder-noisy", 3)


@pytest.mark.parametrize("name", WITHOUT_NOISE)
def test_exact_pairs_find_all_that_is_planted_without_noise(name: str, tmp_path: Path) -> None:
    case = load_case(name, tmp_path)
    nodes = recovered_nodes(case, [WITH_PAIRS])
    assert nodes[["auroc", "distance"]].to_numpy().tolist() == [[1, 0]]
    pairs = recovered_pairs(case, ["exact"])
    if case.truth.interactions:
        assert pairs[["auroc", "signs", "n"]].to_numpy().tolist() == [[1, 1, 105]]
    else:
        assert pairs.empty


@pytest.mark.parametrize(("in_nats", "least"), [(True, 1e-6), (False, 1e-4)])
def test_predictions_that_are_rounding_count_as_0(in_nats: bool, least: float) -> None:
    """Under a millionth of a nat or, in another unit, of the largest prediction."""
    pairs = sets.pairs(["L0.H0", "L0.H1", "L0.H2"])
    values = [-100.0, -1.01 * least, 0.99 * least]
    given = Predictions(dict(zip(pairs, values, strict=True)), Cost(), in_nats=in_nats)
    assert [*_beyond_rounding(given).values()] == [*values[:2], 0]


def test_means_over_cases_by_hand() -> None:
    forms = ["y-encoder", "y-decoder-noisy"]  # of one circuit
    rows = [("a", "x", 1.0, 4.0), ("b", "x", 0.9, 2.0)]
    rows += [("a", form, auroc, 6.0) for form, auroc in zip(forms, (0.5, 0.7), strict=True)]
    table = pd.DataFrame(rows, columns=["method", "case", "auroc", "forwards"])
    by_method = over_cases(table.assign(backwards=0.0), ["auroc"]).set_index("method")
    assert by_method.index.tolist() == ["b", "a"]
    a = by_method.loc["a"]  # circuits count the same, whatever their forms: (1 + 0.6) / 2
    assert (a["auroc"], a["n_circuits"], a["forwards"]) == pytest.approx((0.8, 2, 5))
    assert 0 <= a["auroc_low"] < 0.8 < a["auroc_high"] <= 1
    assert np.isnan(by_method.loc["b", "auroc_low"])


def test_names_of_cases(tmp_path: Path) -> None:
    every = case_names()
    assert len([name for name in every if name.startswith("trained-")]) >= 6
    assert len([name for name in every if not name.startswith("trained-")]) >= 10
    assert case_names(["planted", "or-encoder"]) == list(CATALOGUE)
    with pytest.raises(InputError, match="cases: none given; expected planted, trained, or"):
        case_names([])
    with pytest.raises(InputError, match="cases: 'nor' is unknown; expected planted, trained, or"):
        case_names(["nor"])
    assert load_case("trained-copy", tmp_path).name == "trained-copy"


def test_interactions_are_those_of_texts_in_domain(tmp_path: Path) -> None:
    """Of all training texts nine pairs more interact, as some contradict the heuristic."""
    case = load_case("trained-heuristic", tmp_path)
    table = recovered_pairs(case, ["exact"])
    assert table[["n_true", "n", "auroc", "signs"]].to_numpy().tolist() == [[1, 105, 1, 1]]
    every = dataclasses.replace(case, data={**case.data, "id": case.data["train"]})
    means = MeanActivations.compute(case.model, case.data["train"], n_samples=0)
    sizes = {}
    components = ModelShape.of(case.model).components
    for split, given in (("id", case), ("train", every)):
        request = PairRequest(case.model, given.data["id"], means, components, 400)
        pairs = INTERACTION_METHODS["exact"](request).interactions
        sizes[split] = sum(abs(value) > 0.5 for value in pairs.values())
    assert sizes == {"id": 1, "train": 10}
