"""Pictures of states in two dimensions, and how well labels separate in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances, silhouette_score
from torch import Tensor

from mechcore.errors import InputError
from mechcore.papers.cognitive.probing.activations import coded, matrix_of, standardised
from mechcore.showing import Shown

Method: TypeAlias = Literal["umap", "pca"]

NEIGHBOURS, MIN_DISTANCE = 15, 0.1
"""Of UMAP: examples in a neighbourhood, and how close points may come."""


@dataclass(frozen=True, eq=False, repr=False)
class Projection(Shown):
    """States in two dimensions; ``description`` is the method in words with its settings."""

    points: Float[np.ndarray, "example 2"]
    method: Method
    description: str


def project(
    states: Float[Tensor | np.ndarray, "example unit"],
    *,
    method: Method | Literal["auto"] = "auto",
    seed: int = 0,
) -> Projection:
    """Show states in two dimensions, every unit standardised.

    The picture is an illustration: UMAP keeps neighbourhoods, not distances, and draws clusters
    from noise (McInnes et al. 2018, arXiv 1802.03426). ``"auto"`` takes UMAP where umap-learn is
    installed, PCA otherwise.

    Raises:
        InputError: there are too few examples or units or no unit varies, or UMAP is asked for and
            not installed.
    """
    umap = None if method == "pca" else _umap()
    if umap is None and method == "umap":
        raise InputError(
            "method 'umap': umap-learn cannot be imported; run `pip install mechcore[umap]`, or "
            "use method 'pca'"
        )
    values, constant = standardised(states)
    n, n_units = values.shape
    least = 3 if umap is None else NEIGHBOURS + 1
    if constant.all() or n_units < 2 or n < least:
        raise InputError(
            f"states: {n} examples of {n_units} units, of which {n_units - constant.sum()} vary; "
            f"expected at least {least} examples of 2 units, and one that varies"
        )
    shown = f"2 components of {n_units} standardised units"
    if umap is not None:
        settings = {"n_components": 2, "n_neighbors": NEIGHBOURS, "min_dist": MIN_DISTANCE}
        # A seed needs one process; any other number warns.
        points = umap(**settings, random_state=seed, n_jobs=1).fit_transform(values)
        description = f"UMAP, {shown}, {NEIGHBOURS} neighbours, min_dist {MIN_DISTANCE}"
        return Projection(np.asarray(points, float), "umap", f"{description}, seed {seed}")
    model = PCA(2, svd_solver="full")
    points = model.fit_transform(values)
    description = f"PCA, {shown}, {model.explained_variance_ratio_.sum():.1%} of their variance"
    if method == "auto":
        description += " (umap-learn cannot be imported)"
    return Projection(points, "pca", description)


def _umap() -> Callable[..., Any] | None:
    try:
        from umap import UMAP
    except ImportError:
        return None
    return UMAP


def silhouette(
    points: Float[Tensor | np.ndarray, "example dimension"],
    labels: Sequence[Hashable],
    *,
    shuffles: int = 200,
    seed: int = 0,
) -> dict[str, float]:
    """How far apart classes are: the mean silhouette (Rousseeuw 1987), beside shuffled labels.

    Returns silhouette (in [-1, 1]), null_mean and null_95 (mean and 95th percentile of the
    silhouettes of shuffled labels).

    Raises:
        InputError: a label is missing, or the classes are one or as many as the examples.
    """
    values, _ = matrix_of(points)
    classes, codes = coded("labels", labels, len(values))
    if not 2 <= len(classes) < len(values):
        raise InputError(
            f"labels: {len(classes)} classes for {len(values)} examples; expected at least 2 and "
            "fewer than examples"
        )
    generator = np.random.default_rng(seed)
    # Distances are taken from squares: centred, these are small.
    distances = pairwise_distances(values - values.mean(axis=0))
    own, *null = (
        float(silhouette_score(distances, order, metric="precomputed"))
        for order in (codes, *(generator.permutation(codes) for _ in range(shuffles)))
    )
    means = {"null_mean": float(np.mean(null)), "null_95": float(np.quantile(null, 0.95))}
    return {"silhouette": own, **means}
