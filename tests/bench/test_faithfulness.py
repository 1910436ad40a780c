"""Circuits of a ranking: areas by hand, beside MIB's own, and against one evaluation per mask."""

from typing import Any

import numpy as np
import pytest
import torch
from ablation.few import encoded, means_of
from helpers import Cases

from mechcore.bench import cmd, cpr, faithfulness_of
from mechcore.bench.faithfulness import ranked
from mechcore.components import Mask, ModelShape
from mechcore.errors import MismatchError
from mechcore.evaluation.evaluate import evaluate

N = 10  # components of the tiny models
ORDER = np.random.default_rng(5).permutation(N)
SCORES = np.argsort(-ORDER.astype(float)).reshape(2, 5) - 4.0  # some below zero, no ties
BY_RANK = np.argsort(-SCORES.ravel())


def test_areas_and_ranks_by_hand() -> None:
    shares, f = [0, 0.5, 1], np.array([0.0, 1.5, 1.0])
    # Trapezoids: (0 + 1.5) / 4 + (1.5 + 1) / 4 = 1; of |1 - f| 1, 0.5, 0: 1.5 / 4 + 0.5 / 4 = 0.5.
    assert cpr(shares, f) == pytest.approx(1)
    assert cmd(shares, f) == pytest.approx(0.5)
    scores, shape = np.array([[0.0, -3.0, 1.0], [1.0, 2.0, 0.0]]), ModelShape(2, 2)
    names = list(map(str, ranked(scores, shape)))
    assert names == ["L1.H1", "L0.MLP", "L1.H0", "L0.H0", "L1.MLP", "L0.H1"]
    with pytest.raises(MismatchError, match=r"found shape \(3, 2\); the model has 2 layers"):
        ranked(scores.T, shape)


OF_MIB = [
    (1.576638736376, 0.701878328711),
    (4.339648500626, 3.393093374380),
    (1.393737416511, 0.507660310219),
    (13.373487869213, 12.442487869213),
    (1.750500956962, 0.839312557748),
]
"""Its CPR and CMD of circuits of nodes by signed scores, for the random score files of five seeds
(hannamw/MIB-circuit-track b759df3)."""
MIB_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@pytest.mark.parametrize("seed", range(len(OF_MIB)))
def test_areas_are_those_of_mib(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = ModelShape(int(rng.integers(2, 13)), int(rng.integers(2, 17)))
    n = len(shape.components)
    weights = dict(zip(shape.components, rng.normal(0.1, 1.0, size=n), strict=True))
    values = np.array(list(weights.values())).reshape(shape.n_layers, shape.columns)
    scores = (values + rng.normal(size=values.shape)).astype(np.float32)  # as MIB's files hold them
    order = ranked(scores, shape)
    # The metric of a circuit is 2 and the weights of what it keeps; sizes are rounded down.
    kept = [int(share * n) for share in MIB_SHARES]
    metric = [2 + sum(weights[c] for c in order[:k]) for k in (*kept, n, 0)]
    full, ablated = metric[-2:]
    f = (np.array(metric[:-2]) - ablated) / (full - ablated)
    assert (cpr(MIB_SHARES, f), cmd(MIB_SHARES, f)) == pytest.approx(OF_MIB[seed], abs=1e-9)


@pytest.mark.parametrize("fill", ["mean", "zero"])
def test_circuits_are_those_of_evaluate(cases: Cases, fill: Any) -> None:
    model, data = cases.get("bert").model, encoded()
    means = means_of(model, data)
    curve = faithfulness_of(model, SCORES, data, means, fill=fill, split="ood")
    assert curve["kept"].tolist() == [*range(N + 1)]
    np.testing.assert_allclose(curve["share"], np.arange(N + 1) / N)
    value = []
    for k in range(N + 1):  # kept without the package's own ranking
        values = torch.zeros(N)
        values[torch.tensor(BY_RANK[:k], dtype=torch.long)] = 1
        mask = Mask(values.reshape(2, 5))
        answers = evaluate(model, data, mask=mask, means=means, fill=fill, in_domain=False)
        value.append(answers.margin.mean())
    np.testing.assert_allclose(curve["value"], value, rtol=0, atol=1e-5)
    f = (np.array(value) - value[0]) / (value[-1] - value[0])
    np.testing.assert_allclose(curve["faithfulness"], f, rtol=0, atol=1e-3)
