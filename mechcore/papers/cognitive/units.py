"""What single units of one model's last layer follow in the cognitive task, and pictures of them.

Mixed selectivity after Mante et al. (2013, Nature 503) and Rigotti et al. (2013, Nature 497).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances, silhouette_score
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.models.protocol import longest_input
from mechcore.papers.cognitive.decoding import answers_of
from mechcore.papers.cognitive.probing import activations_at, hook_resid_post
from mechcore.papers.cognitive.probing.activations import coded, matrix_of, standardised
from mechcore.papers.cognitive.probing.selectivity import selectivity
from mechcore.papers.cognitive.steps import Analysis
from mechcore.papers.cognitive.text import MODALITIES, VARIABLES
from mechcore.papers.cognitive.trials import Trials, encode_trials
from mechcore.tables import Column, Schema

SELECTIVITY = Schema(
    "cognitive_selectivity",
    "How many units follow so many variables.",
    (
        Column("n_variables", "whole", "variables followed", header="variables"),
        Column("units", "number", "units that follow so many", digits=1),
        Column("share", "share", "of all units"),
        Column("expected_correlated", "share", "if no unit followed any", header="expected"),
        Column("with_interaction", "number", "those that also follow a product", digits=1),
        Column("n_units", "whole", "units in all"),
        Column("alpha", "number", "level of a single test", shown="exact"),
        Column("n", "whole", "trials"),
    ),
)
TERMS = Schema(
    "cognitive_terms",
    "How many units follow each variable or product of variables.",
    (
        Column("term", "text", "the variable or product"),
        Column("units", "whole", "units that follow it"),
        Column("share", "share", "of all units", header="units"),
        Column("expected", "share", "if no unit followed any"),
    ),
)
PROJECTION = Schema(
    "cognitive_projection",
    "The states in two dimensions, a row per trial.",
    (
        Column("trial", "whole", "row in the trials"),
        Column("x", "number", "first coordinate; for PCA in standard deviations of a unit"),
        Column("y", "number", "second coordinate"),
        Column("context", "text", "what the prompt asks for"),
        Column("choice", "text", "the model's answer"),
        Column("label", "text", "the right one"),
        Column("correct", "flag", "whether they are the same"),
        Column("method", "text", "``umap`` or ``pca``"),
        Column("description", "text", "the method in words", header="method"),
    ),
)
SILHOUETTE = Schema(
    "cognitive_silhouette",
    "How far groups of states are apart.",
    (
        Column("space", "text", "``states``, or ``points`` of the projection"),
        Column("variable", "text", "what makes the groups", header="groups by"),
        Column("method", "text", "of the projection"),
        Column("silhouette", "number", "from -1 to 1", digits=3, signed=True),
        Column("null_mean", "number", "mean, shuffled", header="shuffled", digits=3, signed=True),
        Column("null_95", "number", "its 95th percentile", "", "shuffled, 95 %", 3, signed=True),
    ),
)

INTERACTIONS = (("context", "choice"), ("motion", "color"), ("motion", "choice"))
"""With the four variables, these span the 8 conditions: motion times color is congruence.

Context times a side is not among them: with the sides, that is the choice itself."""

MOST_POINTS = 400
"""Trials that are shown in a projection at most."""

Method: TypeAlias = Literal["umap", "pca"]

NEIGHBOURS, MIN_DISTANCE = 15, 0.1
"""Of UMAP: examples in a neighbourhood, and how close points may come."""


@dataclass(frozen=True)
class FollowUnits(Analysis):
    """Which variables single units follow, and how states lie, see `unit_tables`."""

    kind: ClassVar[str] = "units"
    schemas: ClassVar[tuple[Schema, ...]] = (SELECTIVITY, TERMS, PROJECTION, SILHOUETTE)
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn", "umap-learn")
    passes: ClassVar[float] = 5.0
    permutations: int
    alpha: float
    projection: Method | Literal["auto"]

    def tables(
        self, model: Any, tokenizer: PreTrainedTokenizerBase, trials: Trials
    ) -> dict[str, pd.DataFrame]:
        """See `unit_tables`."""
        options: dict[str, Any] = {"permutations": self.permutations, "alpha": self.alpha}
        return unit_tables(model, tokenizer, trials, **options, method=self.projection)


def unit_tables(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    trials: Trials,
    *,
    permutations: int = 1000,
    alpha: float = 0.01,
    method: Method | Literal["auto"] = "auto",
) -> dict[str, pd.DataFrame]:
    """`selectivity_tables` and `projection_tables` of the last layer's units at the last token."""
    data = encode_trials(trials, tokenizer, max_length=longest_input(model))
    hook = hook_resid_post(ModelShape.of(model).n_layers - 1)
    states = activations_at(model, data, [hook])[hook][:, 0]
    answers = answers_of(model, data)
    of_units = selectivity_tables(states, trials, permutations=permutations, alpha=alpha)
    return of_units | projection_tables(states, trials, answers, method=method)


def selectivity_tables(
    states: Float[Tensor | np.ndarray, "trial unit"],
    trials: Trials,
    *,
    permutations: int = 1000,
    alpha: float = 0.01,
) -> dict[str, pd.DataFrame]:
    """For how many of `VARIABLES` units are selective; strengths are terms that do not count."""
    result = selectivity(
        states,
        regressors(trials),
        interactions=INTERACTIONS,
        permutations=permutations,
        alpha=alpha,
    )
    facts = {"n_units": result.n_units, "alpha": alpha, "n": result.n_examples}
    terms = [*VARIABLES, *result.interactions]
    units = result.table.groupby("term")["selective"].sum().reindex(terms).astype(int)
    varying = 1 - len(result.constant) / result.n_units
    columns = {"units": units, "share": units / result.n_units, "expected": result.level * varying}
    return {
        "cognitive_selectivity": result.counts(VARIABLES).assign(**facts)[SELECTIVITY.names],
        "cognitive_terms": pd.DataFrame(columns).rename_axis("term").reset_index(),
    }


def regressors(trials: Trials) -> pd.DataFrame:
    """By trial: `VARIABLES` as +1 and -1, and strengths, the evidence less the mean of its side."""
    codes = trials.codes
    columns = codes[list(VARIABLES)].astype(float)
    for modality in MODALITIES:
        evidence = codes[f"{modality}_evidence"]
        strength = evidence - evidence.groupby(codes[modality]).transform("mean")
        if np.ptp(strength) > 1e-9 * evidence.abs().max():
            columns[f"{modality} strength"] = strength
    return columns


def projection_tables(
    states: Float[Tensor | np.ndarray, "trial unit"],
    trials: Trials,
    answers: Sequence[str],
    *,
    method: Method | Literal["auto"] = "auto",
) -> dict[str, pd.DataFrame]:
    """The first `MOST_POINTS` states in two dimensions; how far contexts and answers are apart."""
    shown = slice(min(len(trials), MOST_POINTS))
    frame = trials.frame[shown].assign(choice=list(answers)[shown])
    values = states[shown]
    picture = project(values, method=method)
    description = picture.description
    if len(frame) < len(trials):
        description += f"; the first {len(frame)} of {len(trials)} trials"
    points = pd.DataFrame(
        {
            "trial": np.arange(len(frame)),
            "x": picture.points[:, 0],
            "y": picture.points[:, 1],
            **frame[["context", "choice", "label"]],
            "correct": frame["choice"] == frame["label"],
            "method": picture.method,
            "description": description,
        }
    )
    rows = [
        {"space": space, "variable": variable, "method": picture.method}
        | (silhouette(where, frame[variable].tolist()) if frame[variable].nunique() > 1 else {})
        for space, where in (("states", standardised(values)[0]), ("points", picture.points))
        for variable in ("context", "choice")
    ]
    return {
        "cognitive_projection": points,
        "cognitive_silhouette": pd.DataFrame(rows, columns=SILHOUETTE.names),
    }


class Projection(NamedTuple):
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
    try:
        umap = None if method == "pca" else import_module("umap").UMAP
    except ImportError:
        umap = None
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
