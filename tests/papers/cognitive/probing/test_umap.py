"""UMAP itself, whose import takes long."""

import warnings

import numpy as np
import pytest

from mechcore.papers.cognitive.units import project, silhouette


@pytest.mark.filterwarnings("ignore:Tensorflow not installed:ImportWarning")
def test_umap_itself() -> None:
    pytest.importorskip("umap", reason="needs the umap extra")
    sides = np.repeat([-4, 4], 8)  # as few as are allowed
    states = np.random.default_rng(0).normal(size=(16, 3)) + sides[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        first, again = (project(states, method="umap") for _ in range(2))
    assert first.method == "umap"
    assert first.points.shape == (16, 2)
    np.testing.assert_array_equal(first.points, again.points)
    assert silhouette(first.points, sides)["silhouette"] > 0.5
