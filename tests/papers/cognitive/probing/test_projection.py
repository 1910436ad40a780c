"""Projections against numpy, a stand-in for UMAP and UMAP itself; silhouettes by hand."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score

from mechcore.errors import InputError
from mechcore.papers.cognitive.probing.activations import standardised
from mechcore.papers.cognitive.units import project, silhouette


def noise(n: int, units: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, units))


@pytest.fixture
def fake_umap(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in that keeps what it is given and puts example i at (i, 1)."""
    calls: list[Any] = []

    class UMAP:
        def __init__(self, **settings: Any) -> None:
            calls.append(settings)

        def fit_transform(self, values: np.ndarray) -> np.ndarray:
            calls.append(values)
            return np.stack([np.arange(len(values)), np.ones(len(values))], 1).astype(np.float32)

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=UMAP))  # type: ignore[arg-type]
    return calls


def test_standardised_by_hand() -> None:
    # 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 4 = 7/2.
    values, constant = standardised(np.array([[1.0, 5.0], [2, 5], [3, 5], [6, 5]]))
    np.testing.assert_allclose(values[:, 0], np.array([-2, -1, 0, 3]) / 3.5**0.5, atol=1e-15)
    assert values[:, 1].tolist() == [0, 0, 0, 0]
    assert constant.tolist() == [False, True]


def test_constant_means_no_more_than_a_rounding_step() -> None:
    steps = np.array([1, 1 + 2**-23, 1, 1])
    states = np.stack([steps, 1 + 1e-6 * np.arange(4)], axis=1)
    assert standardised(states.astype(np.float32))[1].tolist() == [True, False]
    assert standardised(states)[1].tolist() == [False, False]
    assert standardised(torch.tensor(states).float())[1].tolist() == [True, False]
    assert standardised(torch.tensor(states).bfloat16())[1].tolist() == [True, True]
    assert standardised(np.array([[1, 1], [2, 1]]))[1].tolist() == [False, True]
    assert standardised(torch.tensor([[1, 1], [2, 1]]))[1].tolist() == [False, True]


def test_pca_by_hand() -> None:
    # Units a, a and b, orthogonal: correlation 1 between the first two. One component is
    # (a + a) / sqrt 2 with the variance 2, the other b with 1, out of 3.
    a, b = np.array([1.0, 1, -1, -1]), np.array([1.0, -1, 1, -1])
    plane = project(np.stack([3 * a, b + 9, a], axis=1), method="pca")
    np.testing.assert_allclose(plane.points, np.stack([2**0.5 * a, b], axis=1), atol=1e-12)
    assert plane.method == "pca"
    assert (
        plane.description == "PCA, 2 components of 3 standardised units, 100.0% of their variance"
    )


def test_without_umap_auto_is_pca_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)  # so that importing it fails
    plane = project(noise(12, 4))
    assert plane.method == "pca"
    assert plane.description.endswith("of their variance (umap-learn cannot be imported)")
    np.testing.assert_array_equal(plane.points, project(noise(12, 4), method="pca").points)
    with pytest.raises(InputError, match=r"pip install mechcore\[umap\]"):
        project(noise(12, 4), method="umap")


@pytest.mark.parametrize("method", ["auto", "umap"])
def test_what_umap_is_given(method: Any, fake_umap: list[Any]) -> None:
    states = noise(16, 4) * 7
    plane = project(states, method=method, seed=8)
    sent, values = fake_umap
    wanted = {"n_components": 2, "n_neighbors": 15, "min_dist": 0.1}
    assert sent == {**wanted, "random_state": 8, "n_jobs": 1}
    np.testing.assert_array_equal(values, standardised(states)[0])
    assert plane.points.tolist() == [[i, 1] for i in range(16)]
    assert plane.method == "umap"
    assert plane.description == (
        "UMAP, 2 components of 4 standardised units, 15 neighbours, min_dist 0.1, seed 8"
    )
    with pytest.raises(InputError, match=r"states: 15 examples of .*expected at least 16 examples"):
        project(states[:15], method=method)


@pytest.mark.parametrize(
    ("states", "method", "message"),
    [
        (noise(9, 1), "pca", r"states: 9 examples of 1 units"),
        (noise(2, 4), "pca", r"states: 2 examples of 4 units.*expected at least 3 examples"),
        (np.ones((9, 4)), "pca", r"of which 0 vary; expected .* one that varies"),
        (noise(9, 4) * np.nan, "pca", r"states: nan at example 0, unit 0"),
    ],
)
def test_what_cannot_be_projected(states: Any, method: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        project(states, method=method)


def test_silhouettes_and_their_null_are_those_of_points_far_from_the_origin() -> None:
    states = noise(40, 6) + 100
    labels = np.array(["a", "b", "c", "d"])[np.resize([0, 1, 1, 2, 2, 2], 40)]
    labels[0] = "d"  # a class of one
    states[labels == "b"] += 1
    measured = silhouette(torch.tensor(states), labels, shuffles=20, seed=4)
    assert measured["silhouette"] == pytest.approx(silhouette_score(states, labels))
    generator = np.random.default_rng(4)
    null = [silhouette_score(states, generator.permutation(labels)) for _ in range(20)]
    assert measured["null_mean"] == pytest.approx(np.mean(null))
    assert measured["null_95"] == pytest.approx(np.quantile(null, 0.95))
    equal = silhouette(np.ones((6, 2)), [0, 0, 0, 1, 1, 1], shuffles=5)
    assert equal == {"silhouette": 0, "null_mean": 0, "null_95": 0}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], r"labels: 2 values; expected 4"),
        ([0, 0, 0, 0], r"labels: 1 classes for 4 examples; expected at least 2"),
        ([0, 1, 2, 3], r"labels: 4 classes for 4 examples; .* fewer"),
        ([0, 1, None, 1], r"labels: none in row 2"),
    ],
)
def test_labels_that_cannot_be_used(labels: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        silhouette(noise(4, 2), labels)
