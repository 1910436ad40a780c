"""What single units of one model's last layer follow in the cognitive task, and pictures of them.

Mixed selectivity after Mante et al. (2013, Nature 503) and Rigotti et al. (2013, Nature 497).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mechcore.components import ModelShape
from mechcore.models.protocol import longest_input
from mechcore.papers.cognitive.decoding import VARIABLES, answers_of
from mechcore.papers.cognitive.probing import activations_at, hook_resid_post, project, silhouette
from mechcore.papers.cognitive.probing.activations import standardised
from mechcore.papers.cognitive.probing.selectivity import selectivity
from mechcore.papers.cognitive.steps import Analysis
from mechcore.papers.cognitive.text import MODALITIES
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


@dataclass(frozen=True)
class FollowUnits(Analysis):
    """Which variables single units follow, and how states lie, see `unit_tables`."""

    kind: ClassVar[str] = "units"
    schemas: ClassVar[tuple[Schema, ...]] = (SELECTIVITY, TERMS, PROJECTION, SILHOUETTE)
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn", "umap-learn")
    passes: ClassVar[float] = 5.0
    permutations: int
    alpha: float
    projection: Literal["auto", "umap", "pca"]

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
    method: Literal["umap", "pca", "auto"] = "auto",
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
    """For how many of context, motion, color and choice (the right answer) units are selective.

    The evidence of a modality enters in two parts, its side and its strength. Only sides are
    counted, so that a variable has one test; without strengths, a unit that follows graded
    evidence would be called selective for the choice, which goes along with sides.
    """
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
    """What units are regressed on, one row per trial: `VARIABLES` as +1 and -1, and strengths.

    A strength (``"motion strength"``) is the evidence less the mean of its side, where it varies.
    """
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
    method: Literal["umap", "pca", "auto"] = "auto",
) -> dict[str, pd.DataFrame]:
    """States in two dimensions, and how far apart contexts and the model's answers are.

    Of more than `MOST_POINTS` trials both tables have the first that many; silhouettes are missing
    where all trials have one value.
    """
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
