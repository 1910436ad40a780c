"""Projections against numpy, a stand-in for UMAP and UMAP itself; silhouettes by hand."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import silhouette_score

from mechcore.errors import InputError
from mechcore.papers.cognitive.probing import projection as module
from mechcore.papers.cognitive.probing.projection import project, silhouettes, standardised


def noise(n: int, units: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, units))


@pytest.fixture
def no_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)  # so that importing it fails


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


# -- standardising --------------------------------------------------------------------------------


def test_standardised_by_hand() -> None:
    # 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 4 = 7/2.
    values, constant = standardised(np.array([[1.0, 5.0], [2, 5], [3, 5], [6, 5]]))
    np.testing.assert_allclose(values[:, 0], np.array([-2, -1, 0, 3]) / 3.5**0.5, atol=1e-15)
    assert values[:, 1].tolist() == [0, 0, 0, 0]
    assert constant.tolist() == [False, True]


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_standardised_at_any_scale(scale: float) -> None:
    values, _ = standardised(noise(9, 3) * scale)
    np.testing.assert_allclose(values, standardised(noise(9, 3))[0])


def test_constant_means_no_more_than_a_rounding_step() -> None:
    steps = np.array([1, 1 + 2**-23, 1, 1])
    states = np.stack([steps, 1 + 1e-6 * np.arange(4)], axis=1)
    assert standardised(states.astype(np.float32))[1].tolist() == [True, False]
    assert standardised(states)[1].tolist() == [False, False]
    assert standardised(torch.tensor(states).float())[1].tolist() == [True, False]
    assert standardised(torch.tensor(states).bfloat16())[1].tolist() == [True, True]
    assert standardised(np.array([[1, 1], [2, 1]]))[1].tolist() == [False, True]
    assert standardised(torch.tensor([[1, 1], [2, 1]]))[1].tolist() == [False, True]


# -- PCA ------------------------------------------------------------------------------------------


def test_pca_by_hand() -> None:
    # Units a, a and b, orthogonal: correlation 1 between the first two. One component is
    # (a + a) / sqrt 2 with the variance 2, the other b with 1, out of 3.
    a, b = np.array([1.0, 1, -1, -1]), np.array([1.0, -1, 1, -1])
    found = project(np.stack([3 * a, b + 9, a], axis=1), method="pca")
    np.testing.assert_allclose(found.points, np.stack([2**0.5 * a, b], axis=1), atol=1e-12)
    assert found.explained_variance == pytest.approx((2 / 3, 1 / 3))
    assert found.method == "pca"
    assert (
        found.description == "PCA, 2 components of 3 standardised units, 100.0% of their variance"
    )


def test_pca_is_numpys_decomposition() -> None:
    states = noise(30, 7) @ noise(7, 7, seed=1)
    found = project(states, method="pca", n_components=3)
    left, sizes, right = np.linalg.svd(standardised(states)[0], full_matrices=False)
    np.testing.assert_allclose(np.abs(found.points), np.abs(left * sizes)[:, :3])
    shares = sizes**2 / (sizes**2).sum()
    np.testing.assert_allclose(found.explained_variance, shares[:3])  # type: ignore[arg-type]
    for column, weights in zip(found.points.T, right, strict=False):
        largest = np.abs(weights).argmax()
        assert np.corrcoef(column, states[:, largest])[0, 1] > 0  # the sign that is documented


@settings(max_examples=25)
@given(
    scales=st.lists(st.sampled_from([1e-6, 0.3, 5e7]), min_size=5, max_size=5),
    shift=st.floats(-9, 9),
)
def test_pca_does_not_see_the_scale_of_units(scales: list[float], shift: float) -> None:
    states = noise(20, 5)
    wanted = project(states, method="pca").points
    found = project((states + shift) * scales, method="pca").points
    np.testing.assert_allclose(found, wanted, atol=1e-7)


def test_equal_weights_do_not_make_the_sign_random() -> None:
    # Two standardised units always have weights of the same size; the first decides.
    for seed in range(20):
        a = noise(6, 1, seed)
        states = np.hstack([a, -a + 0.1 * noise(6, 1, seed + 100)])
        points = project(states, method="pca", n_components=1).points
        assert np.corrcoef(points[:, 0], states[:, 0])[0, 1] > 0


def test_auto_without_umap_is_pca_and_says_so(no_umap: None) -> None:
    found = project(noise(12, 4))
    assert found.method == "pca"
    assert found.description.endswith("of their variance (umap-learn cannot be imported)")
    np.testing.assert_array_equal(found.points, project(noise(12, 4), method="pca").points)


# -- UMAP -----------------------------------------------------------------------------------------


def test_umap_without_umap_learn_says_how_to_install_it(no_umap: None) -> None:
    with pytest.raises(InputError, match=r"pip install mechcore\[umap\]"):
        project(noise(12, 4), method="umap")


@pytest.mark.parametrize("method", ["auto", "umap"])
def test_what_umap_is_given(method: Any, fake_umap: list[Any]) -> None:
    states = noise(12, 4) * 7
    found = project(states, method=method, n_neighbors=5, min_dist=0.3, seed=8)
    sent, values = fake_umap
    wanted = {"n_components": 2, "n_neighbors": 5, "min_dist": 0.3}
    assert sent == {**wanted, "random_state": 8, "n_jobs": 1}
    np.testing.assert_array_equal(values, standardised(states)[0])
    assert found.points.tolist() == [[i, 1] for i in range(12)]
    assert found.method == "umap"
    assert found.explained_variance is None
    assert found.description == (
        "UMAP, 2 components of 4 standardised units, 5 neighbours, min_dist 0.3, seed 8"
    )


def test_pca_does_not_need_umap(fake_umap: list[Any]) -> None:
    assert project(noise(12, 4), method="pca").method == "pca"
    assert not fake_umap


@pytest.mark.filterwarnings("ignore:Tensorflow not installed:ImportWarning")
def test_umap_itself() -> None:
    pytest.importorskip("umap", reason="needs the umap extra")
    sides = np.repeat([-4, 4], 10)
    states = noise(20, 3) + sides[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        first, again, other = (project(states, n_neighbors=4, seed=seed) for seed in (0, 0, 1))
    assert first.method == "umap"
    assert first.points.shape == (20, 2)
    np.testing.assert_array_equal(first.points, again.points)
    assert not np.array_equal(first.points, other.points)
    table = silhouettes(first.points, {"side": sides})
    assert table["silhouette"][0] > 0.5
    # As few examples as are allowed still work.
    assert project(noise(4, 3), n_neighbors=2, method="umap").points.shape == (4, 2)


@pytest.mark.parametrize(
    ("states", "changes", "message"),
    [
        (noise(9, 4), {"method": "tsne"}, r"method: found 'tsne'; expected 'auto', 'umap' or"),
        (noise(9, 4), {"n_components": 0}, r"n_components: found 0; expected 1 to 4"),
        (noise(9, 4), {"n_components": 5}, r"n_components: found 5; expected 1 to 4"),
        (noise(2, 4), {}, r"states: 2 examples; expected at least 3 for 2 components \(PCA\)"),
        (np.ones((9, 4)), {}, r"states: all units are constant"),
        (noise(9, 4)[0], {}, r"states: shape \(4,\)"),
        (noise(9, 4) * np.nan, {}, r"states: nan at example 0, unit 0"),
    ],
)
def test_what_cannot_be_projected(states: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        project(states, **({"method": "pca"} | changes))


@pytest.mark.parametrize(
    ("n", "changes", "message"),
    [
        (15, {}, r"states: 15 examples; expected at least 16 for .* 15 neighbours \(UMAP\)"),
        (4, {"n_neighbors": 2, "n_components": 3}, r"states: 4 examples; expected at least 5"),
        (9, {"n_neighbors": 1}, r"n_neighbors: found 1; expected 2 or more"),
        (9, {"n_neighbors": 4, "min_dist": -0.1}, r"min_dist: found -0.1"),
        (9, {"n_neighbors": 4, "min_dist": 1.1}, r"min_dist: found 1.1"),
    ],
)
def test_what_umap_cannot_project(
    fake_umap: list[Any], n: int, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        project(noise(n, 4), method="umap", **changes)
    assert not fake_umap


# -- silhouettes ----------------------------------------------------------------------------------


def test_silhouettes_of_four_points_by_hand() -> None:
    points = np.array([[0.0, 0], [0, 2], [4, 0], [4, 2]])
    table = silhouettes(points, {"side": ["l", "l", "r", "r"], "height": [0, 1, 0, 1]}, shuffles=50)
    diagonal = 20**0.5
    side = 1 - 2 / ((4 + diagonal) / 2)  # 2 to the own class; 4 and the diagonal to the other
    height = ((2 + diagonal) / 2) / 4 - 1
    assert table.columns.tolist() == ["variable", "n_classes", "silhouette", "null_mean", "null_95"]
    assert table["variable"].tolist() == ["side", "height"]
    assert table["n_classes"].tolist() == [2, 2]
    np.testing.assert_allclose(table["silhouette"], [side, height])
    # A shuffle makes pairs by side, by height or across: each a third of the times.
    across = ((2 + 4) / 2) / diagonal - 1
    assert table["null_95"].tolist() == pytest.approx([side, side])
    assert table["null_mean"][0] == pytest.approx((side + height + across) / 3, abs=0.2)


def test_silhouettes_and_their_null_are_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    states = noise(40, 6) + 100
    labels = np.array(["a", "b", "c", "d"])[np.resize([0, 1, 1, 2, 2, 2], 40)]
    labels[0] = "d"  # a class of one
    states[labels == "b"] += 1
    found = silhouettes(states, {"class": labels}, shuffles=20, seed=4).iloc[0]
    assert found["n_classes"] == 4
    assert found["silhouette"] == pytest.approx(silhouette_score(states, labels))
    generator = np.random.default_rng(4)
    null = [silhouette_score(states, generator.permutation(labels)) for _ in range(20)]
    assert found["null_mean"] == pytest.approx(np.mean(null))
    assert found["null_95"] == pytest.approx(np.quantile(null, 0.95))
    monkeypatch.setattr(module, "_MEMORY", 40 * 8 * 3 / 2**20)  # distances of 3 examples
    in_parts = silhouettes(states, {"class": labels}, shuffles=20, seed=4).iloc[0]
    pd.testing.assert_series_equal(in_parts, found)


def test_silhouettes_of_noise_are_within_the_null() -> None:
    tables = [
        silhouettes(noise(30, 3, seed), {"x": np.resize([0, 1, 1], 30)}, shuffles=100)
        for seed in range(40)
    ]
    above = sum(bool(each["silhouette"][0] > each["null_95"][0]) for each in tables)
    assert above <= 6  # 2 expected; more than 6 in 1 of 200 times
    assert all(each["null_mean"][0] < each["null_95"][0] for each in tables)


def test_silhouettes_of_examples_that_are_equal() -> None:
    table = silhouettes(np.ones((6, 2)), {"x": [0, 0, 0, 1, 1, 1]}, shuffles=5)
    assert table.iloc[0].tolist() == ["x", 2, 0.0, 0.0, 0.0]


def test_labels_as_a_table() -> None:
    columns = {"x": [0, 1] * 5, "y": [True, False, True, True, False] * 2}
    points = torch.tensor(noise(10, 2))
    pd.testing.assert_frame_equal(
        silhouettes(points, pd.DataFrame(columns)), silhouettes(points.numpy(), columns)
    )


@pytest.mark.parametrize(
    ("labels", "changes", "message"),
    [
        ({}, {}, r"labels: found none"),
        ({"x": [0, 1]}, {}, r"labels 'x': 2 labels; expected 4"),
        ({"x": [0, 0, 0, 0]}, {}, r"labels 'x': 1 classes for 4 examples; expected at least 2"),
        ({"x": [0, 1, 2, 3]}, {}, r"labels 'x': 4 classes for 4 examples; .* fewer"),
        ({"x": [0, 1, None, 1]}, {}, r"labels 'x': none at example 2"),
        ({"x": [0, 1, 0, 1]}, {"shuffles": 0}, r"shuffles: found 0; expected 1 or more"),
    ],
)
def test_labels_that_cannot_be_used(
    labels: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        silhouettes(noise(4, 2), labels, **changes)
