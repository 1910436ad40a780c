"""Circuits of a ranking on tiny models, against one evaluation per mask, and their intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ablation.few import encoded, means_of
from helpers import Cases

from mechcore.bench.faithfulness import FAITHFULNESS, Faithfulness, faithfulness_of
from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError, MismatchError
from mechcore.evaluation.evaluate import evaluate, kl_divergence
from mechcore.evaluation.intervals import bootstrap_weights

N = 10  # components of the tiny models
ORDER = np.random.default_rng(5).permutation(N)
SCORES = np.argsort(-ORDER.astype(float)).reshape(2, 5) - 4.0  # some below zero, no ties
BY_RANK = np.argsort(-SCORES.ravel())


def circuit(k: int, order: np.ndarray = BY_RANK) -> Mask:
    """Keeps the first k components, made without the package's own ranking."""
    values = torch.zeros(N)
    values[torch.tensor(order[:k], dtype=torch.long)] = 1
    return Mask(values.reshape(2, 5))


@pytest.fixture(scope="module")
def bert(cases: Cases) -> dict[str, Any]:
    """What `faithfulness_of` needs; not to be changed."""
    model, data = cases.get("bert").model, encoded()
    return {"model": model, "data": data, "means": means_of(model, data, n_samples=16)}


def run(bert: dict[str, Any], scores: Any = SCORES, **options: Any) -> Faithfulness:
    options = {"n_resamples": 50, "split": "ood"} | options
    return faithfulness_of(bert["model"], scores, bert["data"], bert["means"], **options)


def values_of(bert: dict[str, Any], mask: Mask, metric: str, fill: str) -> np.ndarray:
    """A metric of every example, from one evaluation of this mask alone."""
    options: dict[str, Any] = {"means": bert["means"], "in_domain": False}
    found = evaluate(bert["model"], bert["data"], mask=mask, fill=fill, **options)
    if metric == "kl":
        return kl_divergence(evaluate(bert["model"], bert["data"], **options), found)
    return np.asarray(found.values(metric))


@pytest.mark.parametrize("metric", ["margin", "kl"])
@pytest.mark.parametrize("fill", ["mean", "zero"])
def test_circuits_are_those_of_evaluate(bert: dict[str, Any], metric: Any, fill: str) -> None:
    found = run(bert, metric=metric, fill=fill)
    FAITHFULNESS.check(found.curve)
    assert found.curve["kept"].tolist() == [*range(N + 1)]
    np.testing.assert_allclose(found.curve["share"], np.arange(N + 1) / N)
    rows = np.stack([values_of(bert, circuit(k), metric, fill) for k in range(N + 1)])
    value = rows.mean(1)
    np.testing.assert_allclose(found.curve["value"], value, rtol=0, atol=1e-5)
    assert (found.ablated, found.full) == pytest.approx((value[0], value[-1]), abs=1e-5)
    f = (value - value[0]) / (value[-1] - value[0])
    np.testing.assert_allclose(found.curve["faithfulness"], f, rtol=0, atol=1e-3)
    assert found.curve["faithfulness"].iloc[[0, -1]].tolist() == [0, 1]
    # Trapezoids of equal width.
    assert found.cpr.mean == pytest.approx((f.sum() - 0.5) / N, abs=1e-3)
    assert found.cmd.mean == pytest.approx((np.abs(1 - f).sum() - 0.5) / N, abs=1e-3)


def test_accuracy_of_chosen_sizes_by_size_of_the_score(cases: Cases) -> None:
    model, data = cases.get("llama").model, encoded("llama")
    llama = {"model": model, "data": data, "means": means_of(model, data, n_samples=16)}
    # The first two are always kept; of the others, every second has a score below zero.
    names = [str(ModelShape(2, 4).components[i]) for i in BY_RANK[2:]]
    scores = pd.Series([(-1) ** i * (9.0 - i) for i in range(8)], index=names)
    found = run(llama, scores, metric="accuracy", kept=[2, 5, 8], absolute=True)
    rows = [values_of(llama, circuit(k), "accuracy", "mean") for k in (4, 7, 10, 2)]
    *value, ablated = [row.mean() for row in rows]
    assert found.curve["kept"].tolist() == [2, 5, 8]
    assert found.curve["value"].tolist() == pytest.approx(value)
    assert (found.full, found.ablated) == pytest.approx((3 / 7, 2 / 7))
    assert ablated == pytest.approx(2 / 7)
    f = [7 * each - 2 for each in value]
    assert f[1:] == pytest.approx([2, 1])  # beyond the full model
    assert found.curve["faithfulness"].tolist() == pytest.approx(f)
    area = 3 / 8 * ((f[0] + f[1]) / 2 + (f[1] + f[2]) / 2)
    assert found.cpr.mean == pytest.approx(area)
    below = [abs(1 - each) for each in f]
    assert found.cmd.mean == pytest.approx(3 / 8 * (below[0] / 2 + below[1] + below[2] / 2))


def test_the_intervals_are_those_of_resampled_means(bert: dict[str, Any]) -> None:
    found = run(bert, metric="kl", seed=3, n_resamples=40, level=0.9)
    rows = np.stack([values_of(bert, circuit(k), "kl", "mean") for k in range(N + 1)])
    again = []
    for weights in bootstrap_weights(rows.shape[1], 40, 3).T:
        value = rows @ weights
        f = 1 - value / value[0]  # no KL from itself
        again.append([*f, (f.sum() - 0.5) / N, (np.abs(1 - f).sum() - 0.5) / N])
    low, high = np.quantile(again, [0.05, 0.95], axis=0)
    np.testing.assert_allclose(found.curve["faithfulness_low"], low[:-2], rtol=0, atol=1e-3)
    np.testing.assert_allclose(found.curve["faithfulness_high"], high[:-2], rtol=0, atol=1e-3)
    assert (found.cpr.low, found.cmd.low) == pytest.approx(low[-2:].tolist(), abs=1e-3)
    assert (found.cpr.high, found.cmd.high) == pytest.approx(high[-2:].tolist(), abs=1e-3)
    assert found.cpr.low < found.cpr.mean < found.cpr.high


def test_no_interval_where_examples_do_not_tell_the_ends_apart(bert: dict[str, Any]) -> None:
    gap = [values_of(bert, circuit(k), "margin", "mean") for k in (N, 0)]
    change = gap[0] - gap[1]
    # As many gain as lose: the sign of their mean is that of the draw.
    rows = [int(i) for i in (change.argmin(), change.argmax())]
    assert change[rows[0]] < 0 < change[rows[1]]
    two = bert | {"data": bert["data"].part(rows)}
    found = run(two)
    assert math.isfinite(found.cpr.mean)
    assert np.isnan([found.cpr.low, found.cpr.high, found.cmd.low, found.cmd.high]).all()
    assert found.curve[["faithfulness_low", "faithfulness_high"]].isna().all(axis=None)
    one = run(bert | {"data": bert["data"].part(rows[1:])})
    assert math.isnan(one.cpr.low)
    assert one.curve["faithfulness"].notna().all()


def test_sizes_of_mib_may_be_the_same_circuit(bert: dict[str, Any]) -> None:
    found = run(bert, compat="mib", axis="log")
    assert found.curve["kept"].tolist() == [0] * 6 + [1, 2, 5, 10]
    assert found.curve["share"].tolist()[:2] == [0.001, 0.002]
    f = run(bert).curve["faithfulness"].to_numpy()
    np.testing.assert_allclose(found.curve["faithfulness"], f[[0] * 6 + [1, 2, 5, 10]], atol=1e-5)
    # Nothing up to 5 %; from there ln 2, ln 2, ln 2.5 and ln 2.
    area = math.log(2) * (f[1] / 2 + (f[1] + f[2]) / 2 + (f[5] + 1) / 2)
    expected = area + math.log(2.5) * (f[2] + f[5]) / 2
    assert found.cpr.mean == pytest.approx(expected, abs=1e-4)


def test_components_without_a_score_are_always_kept(bert: dict[str, Any]) -> None:
    heads = pd.Series({"L1.H2": 3.0, "L0.H0": 2.0, "L0.H3": -1.0})
    found = run(bert, heads)
    assert found.curve["kept"].tolist() == [0, 1, 2, 3]
    full = Mask.full(ModelShape(2, 4))
    for k, gone in enumerate((list(heads.index), ["L0.H0", "L0.H3"], ["L0.H3"])):
        expected = values_of(bert, full.without(*gone), "margin", "mean").mean()
        assert found.curve["value"][k] == pytest.approx(expected, abs=1e-5)


def test_what_cannot_be_faithful(bert: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="metric is 'loss'; expected margin, accuracy or kl"):
        run(bert, metric="loss")
    with pytest.raises(MismatchError, match=r"found the shape \(5, 2\); the model has 2 layers"):
        run(bert, SCORES.T)
    with pytest.raises(InputError, match="no component has a score"):
        run(bert, pd.Series(dtype=float))
    with pytest.raises(InputError, match=r"is 0\.2857\d* for the full model and 0\.2857\d* with"):
        run(bert, metric="accuracy")
    assert "CPR=" in repr(run(bert))
