"""Pictures of states in few dimensions, and how well labels separate in them.

A projection is an illustration: UMAP keeps neighbourhoods, not distances, and draws clusters from
noise (McInnes et al. 2018, arXiv 1802.03426). `silhouettes`, with its null, says by number whether
classes are apart; take it of the states as well as of the points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances_chunked
from torch import Tensor

from mechcore.errors import InputError
from mechcore.papers.cognitive.probing.inputs import matrix_of
from mechcore.showing import Shown

Method: TypeAlias = Literal["umap", "pca"]

_MEMORY = 64
"""MiB of distances that are held at once."""


@dataclass(frozen=True, eq=False, repr=False)
class Projection(Shown):
    """States in few dimensions.

    Attributes:
        points: coordinates, of no unit for UMAP; for PCA standard deviations of a unit.
        method: the one that was used.
        description: the same in words with its settings, for a caption.
        explained_variance: share of the variance of the standardised states in every component,
            for PCA.
    """

    points: Float[np.ndarray, "example component"]
    method: Method
    description: str
    explained_variance: tuple[float, ...] | None


def standardised(
    states: Float[Tensor | np.ndarray, "example unit"], name: str = "states"
) -> tuple[Float[np.ndarray, "example unit"], Bool[np.ndarray, " unit"]]:
    """States of mean 0 and population standard deviation 1 in every unit, float64.

    Messages call them by ``name``.

    Returns:
        The states, and which units are constant: they vary by no more than one rounding step of
        the precision they came in. These are 0.

    Raises:
        InputError: the states are not a table of finite numbers, or empty.
    """
    values, precision = matrix_of(states, name)
    spread = values.max(axis=0) - values.min(axis=0)
    constant = spread <= precision * np.abs(values).max(axis=0)
    # Scaled by the range first, or squares of very small or large numbers would not be numbers.
    values = (values - values.mean(axis=0)) / np.where(constant, 1.0, spread)
    values[:, constant] = 0.0
    values -= values.mean(axis=0)
    return values / np.where(constant, 1.0, values.std(axis=0)), constant


def project(
    states: Float[Tensor | np.ndarray, "example unit"],
    *,
    method: Method | Literal["auto"] = "auto",
    n_components: int = 2,
    seed: int = 0,
    n_neighbors: int = 15,
    min_dist: float = 0.1,
) -> Projection:
    """Show states in few dimensions.

    Every unit is standardised first: in a residual stream a few units are many times as large as
    the others, and would be the picture. PCA's components point to where their largest weight is
    positive. UMAP runs in one process, and the same seed gives the same points on the same machine.

    Args:
        states: activations, in any unit.
        method: ``"umap"``, ``"pca"``, or ``"auto"``: UMAP where umap-learn is installed, PCA
            otherwise. The result says which.
        n_components: dimensions.
        seed: of UMAP; PCA draws nothing.
        n_neighbors: examples in a neighbourhood, for UMAP.
        min_dist: how close points may come, for UMAP, in [0, 1].

    Raises:
        InputError: the states or a setting cannot be used, there are too few examples or no unit
            varies, or UMAP is asked for and not installed.
    """
    if method not in ("auto", "umap", "pca"):
        raise InputError(f"method: found {method!r}; expected 'auto', 'umap' or 'pca'")
    umap = None if method == "pca" else _umap()
    if umap is None and method == "umap":
        raise InputError(
            "method 'umap': umap-learn cannot be imported; run `pip install mechcore[umap]`, or "
            "use method 'pca'"
        )
    values, constant = standardised(states)
    if constant.all():
        raise InputError("states: all units are constant; expected one at least that varies")
    _check_sizes(values, n_components, n_neighbors, min_dist, uses_umap=umap is not None)
    shown = f"{n_components} components of {values.shape[1]} standardised units"
    if umap is not None:
        description = f"UMAP, {shown}, {n_neighbors} neighbours, min_dist {min_dist}, seed {seed}"
        settings = {"n_components": n_components, "n_neighbors": n_neighbors, "min_dist": min_dist}
        # A seed needs one process; any other number warns.
        reducer = umap(**settings, random_state=seed, n_jobs=1)
        return Projection(
            np.asarray(reducer.fit_transform(values), float), "umap", description, None
        )
    points, shares = _pca(values, n_components)
    description = f"PCA, {shown}, {sum(shares):.1%} of their variance"
    if method == "auto":
        description += " (umap-learn cannot be imported)"
    return Projection(points, "pca", description, shares)


def _umap() -> Callable[..., Any] | None:
    """The class, if it can be imported."""
    try:
        from umap import UMAP
    except ImportError:
        return None
    return UMAP


def _check_sizes(
    values: np.ndarray, n_components: int, n_neighbors: int, min_dist: float, *, uses_umap: bool
) -> None:
    n, n_units = values.shape
    if not 1 <= n_components <= n_units:
        raise InputError(
            f"n_components: found {n_components}; expected 1 to {n_units}, the number of units"
        )
    if uses_umap and n_neighbors < 2:
        raise InputError(f"n_neighbors: found {n_neighbors}; expected 2 or more")
    if uses_umap and not 0 <= min_dist <= 1:
        raise InputError(f"min_dist: found {min_dist}; expected a number in [0, 1]")
    least = max(n_neighbors + 1, n_components + 2) if uses_umap else n_components + 1
    if n < least:
        settings = f"{n_components} components"
        settings += f" and {n_neighbors} neighbours (UMAP)" if uses_umap else " (PCA)"
        raise InputError(
            f"states: {n} examples; expected at least {least} for {settings}: give more examples "
            "or lower the settings"
        )


def _pca(values: np.ndarray, n_components: int) -> tuple[np.ndarray, tuple[float, ...]]:
    model = PCA(n_components, svd_solver="full").fit(values)
    weights = model.components_
    sizes = np.abs(weights)
    # The first of those that are largest but for rounding, or two equal weights could take turns.
    largest = (sizes > (1 - 1e-6) * sizes.max(axis=1, keepdims=True)).argmax(axis=1)
    signs = np.sign(weights[np.arange(len(weights)), largest])
    points = values @ (weights * signs[:, None]).T
    return points, tuple(model.explained_variance_ratio_.tolist())


# -- silhouettes ----------------------------------------------------------------------------------


def silhouettes(
    points_or_states: Float[Tensor | np.ndarray, "example dimension"],
    labels: Mapping[str, Sequence[Any]] | pd.DataFrame,
    *,
    shuffles: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """How far apart the classes of every variable are: the mean silhouette (Rousseeuw 1987).

    Of an example: (b - a) / max(a, b), with a its mean Euclidean distance to the rest of its class
    and b that to the nearest other class; 0 where its class has no other. 1: classes are points
    apart; 0: they lie on one another; negative: examples are nearer to another class. For
    distances in which every unit counts alike, give `standardised` states.

    Args:
        points_or_states: points of a projection, or states.
        labels: class of every example, by name of the variable.
        shuffles: of the labels, for the null.
        seed: of the shuffles, which are the same for every variable.

    Returns:
        variable, n_classes, silhouette (in [-1, 1]), null_mean and null_95 (mean and 95th
        percentile of the silhouettes of shuffled labels, which keep the sizes of the classes).

    Raises:
        InputError: a label is missing, or the classes are one or as many as the examples.
    """
    values, _ = matrix_of(points_or_states)
    if not len(list(labels)):
        raise InputError("labels: found none; expected at least one variable")
    if shuffles < 1:
        raise InputError(f"shuffles: found {shuffles}; expected 1 or more")
    rows = []
    for name, column in labels.items():
        codes, n_classes = _codes(str(name), column, len(values))
        generator = np.random.default_rng(seed)
        shuffled = [generator.permutation(codes) for _ in range(shuffles)]
        found, *null = _silhouette_means(values, np.stack([codes, *shuffled]), n_classes)
        rows.append((str(name), n_classes, found, np.mean(null), np.quantile(null, 0.95)))
    columns = ["variable", "n_classes", "silhouette", "null_mean", "null_95"]
    return pd.DataFrame(rows, columns=columns)


def _codes(name: str, column: Any, n: int) -> tuple[Int[np.ndarray, " example"], int]:
    """The class of every example as a number from 0, and the number of classes."""
    values = pd.Series(list(column), dtype=object)
    if len(values) != n:
        raise InputError(f"labels {name!r}: {len(values)} labels; expected {n}, one per example")
    if values.isna().any():
        row = int(values.isna().to_numpy().argmax())
        raise InputError(f"labels {name!r}: none at example {row}; expected one per example")
    codes, classes = pd.factorize(values)
    if not 2 <= len(classes) < n:
        raise InputError(
            f"labels {name!r}: {len(classes)} classes for {n} examples; expected at least 2 and "
            "fewer than examples"
        )
    return codes, len(classes)


def _silhouette_means(
    values: Float[np.ndarray, "example dimension"],
    codes: Int[np.ndarray, "labelling example"],
    n_classes: int,
) -> Float[np.ndarray, " labelling"]:
    """The mean silhouette of each of several labellings with classes of the same sizes."""
    sizes = np.bincount(codes[0], minlength=n_classes)
    members = np.eye(n_classes)[codes.T].reshape(codes.shape[1], -1)

    def reduce(distances: np.ndarray, start: int) -> np.ndarray:
        own = codes.T[start : start + len(distances), :, None]
        sums = (distances @ members).reshape(len(distances), len(codes), n_classes)
        to_own = np.take_along_axis(sums, own, axis=2)[..., 0]
        others = sums / sizes
        np.put_along_axis(others, own, np.inf, axis=2)
        b = others.min(axis=2)
        size = sizes[own[..., 0]]
        a = to_own / np.maximum(size - 1, 1)
        larger = np.maximum(a, b)
        silhouette = np.divide(b - a, larger, out=np.zeros_like(a), where=larger > 0)
        return np.where(size > 1, silhouette, 0.0)

    centred = values - values.mean(axis=0)  # distances are taken from squares: keep these small
    parts = pairwise_distances_chunked(centred, reduce_func=reduce, working_memory=_MEMORY)
    return np.concatenate(list(parts)).mean(axis=0)
