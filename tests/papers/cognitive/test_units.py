"""Selectivity of units in the cognitive task: planted codes, noise, and pictures of states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mechcore.papers.cognitive.decoding import answers_of
from mechcore.papers.cognitive.probing import activations_at, hook_resid_post
from mechcore.papers.cognitive.trials import Trials, encode_trials, generate
from mechcore.papers.cognitive.units import (
    MOST_POINTS,
    projection_tables,
    regressors,
    selectivity_tables,
    unit_tables,
)

TERMS = [
    *("context", "motion", "color", "choice"),
    *("context x choice", "motion x color", "motion x choice"),
]
PLOTTED = ["trial", "x", "y", "context", "choice", "label", "correct", "method", "description"]
SILHOUETTE = ["space", "variable", "method", "silhouette", "null_mean", "null_95"]


def noise(n: int, n_units: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, n_units))


def selective(tables: dict[str, pd.DataFrame]) -> dict[str, int]:
    """Units by term."""
    return tables["cognitive_terms"].set_index("term")["units"].to_dict()


def test_evidence_is_side_and_strength() -> None:
    trials = generate(400, 0)
    table, frame = regressors(trials), trials.frame
    assert list(table) == [*TERMS[:4], "motion strength", "color strength"]
    for modality in ("motion", "color"):
        side, strength = table[modality], table[f"{modality} strength"]
        assert (side == np.sign(frame[modality])).all()
        for sign in (-1, 1):
            rows = side == sign
            mean = frame.loc[rows, modality].mean()
            np.testing.assert_allclose(strength[rows], frame.loc[rows, modality] - mean)
    assert (table["context"] == np.where(frame["context"] == "motion", 1, -1)).all()
    assert (table["choice"] == np.where(frame["label"] == "right", 1, -1)).all()


def test_evidence_of_one_strength_is_its_side_alone() -> None:
    assert list(regressors(generate(16, 0, differences=[7]))) == TERMS[:4]
    signed = generate(16, 0, rendering="signed", differences=[7])
    assert list(regressors(signed)) == TERMS[:4]
    both = regressors(generate(64, 0, rendering="signed", differences=[7, 50]))
    assert list(both)[4:] == ["motion strength", "color strength"]
    selectivity_tables(noise(16, 2), signed, permutations=99, alpha=0.05)  # not collinear


def test_planted_codes_are_counted() -> None:
    trials = generate(400, 1, split="test")
    codes = trials.codes
    context, motion, color, choice = (codes[name].to_numpy() for name in TERMS[:4])
    evidence = codes["motion_evidence"] / codes["motion_evidence"].std()
    planted = np.stack(
        [
            *(context, motion + color, context - motion + choice),
            *(context + motion + color + choice, motion * color, choice + context * choice),
            *(evidence, 0 * context),
        ],
        axis=1,
    )
    # Noise that is exactly uncorrelated with all the terms, so that nothing is selective by chance.
    design = regressors(trials)
    products = [context * choice, motion * color, motion * choice]
    design = np.column_stack([np.ones(400), design, *products])
    rest = noise(400, 8)
    rest -= design @ np.linalg.lstsq(design, rest, rcond=None)[0]
    tables = selectivity_tables(planted + rest / 2, trials, permutations=199, alpha=0.01)
    assert selective(tables) == {
        "context": 3,  # units 0, 2 and 3
        "motion": 4,  # 1, 2, 3 and 6
        "color": 2,  # 1 and 3
        "choice": 3,  # 2, 3 and 5
        "context x choice": 1,  # 5
        "motion x color": 1,  # 4
        "motion x choice": 0,
    }
    assert tables["cognitive_terms"]["term"].tolist() == TERMS
    counts = tables["cognitive_selectivity"]
    assert counts["n_variables"].tolist() == [0, 1, 2, 3, 4]
    assert counts["units"].tolist() == [2, 3, 1, 1, 1]
    assert (counts["share"] == counts["units"] / 8).all()
    assert counts["with_interaction"].tolist() == [1, 1, 0, 0, 0]
    assert counts[["n_units", "alpha", "n"]].drop_duplicates().values.tolist() == [[8, 0.01, 400]]


@pytest.mark.parametrize("rendering", ["two_sided", "signed"])
def test_units_that_follow_evidence_in_any_way_do_not_pass_for_choice(rendering: Any) -> None:
    trials = generate(800, 2, split="test", rendering=rendering)
    evidence = trials.codes["motion_evidence"].to_numpy()
    evidence = evidence / np.abs(evidence).max()
    followed = [evidence, np.sign(evidence), np.tanh(5 * evidence), np.maximum(evidence, 0.2)]
    planted = np.repeat(np.stack(followed, axis=1), 100, axis=1)
    tables = selectivity_tables(planted + noise(800, 400) / 2, trials, permutations=199, alpha=0.05)
    counts = selective(tables)
    assert counts.pop("motion") >= 390
    # Of 400 units 20 are expected for each other term, give or take 4.4; units share the trials.
    assert max(counts.values()) <= 40
    assert min(counts.values()) >= 5


def test_units_that_are_constant_are_never_selective() -> None:
    trials = generate(64, 0)
    states = np.column_stack([noise(64, 2), np.ones((64, 2))])
    # Of 38 permutations no p but 1 / 39 is at most 0.05.
    for permutations, level in ((99, 0.05), (38, 1 / 39)):
        tables = selectivity_tables(states, trials, permutations=permutations, alpha=0.05)
        np.testing.assert_allclose(tables["cognitive_terms"]["expected"], [level / 2] * 7)
        assert tables["cognitive_selectivity"]["units"].iloc[0] >= 2


def answers_with(trials: Trials, wrong: list[int]) -> list[str]:
    other = {"left": "right", "right": "left"}
    return [other[e] if i in wrong else e for i, e in enumerate(trials.frame["label"])]


def test_the_first_trials_are_shown() -> None:
    trials = generate(MOST_POINTS + 40, 0, split="test")
    answers = answers_with(trials, [1, 3])
    contexts = trials.codes["context"].to_numpy()[:, None]
    states = noise(len(trials), 5) + 9 * contexts * np.array([1, 0, 0, 0, 0])
    tables = projection_tables(states, trials, answers, method="pca")
    points, silhouette = tables["cognitive_projection"], tables["cognitive_silhouette"]
    assert list(points) == PLOTTED
    assert points["trial"].tolist() == list(range(400))
    for name, column in (("context", trials.frame["context"]), ("label", trials.frame["label"])):
        assert points[name].tolist() == column[:400].tolist()
    assert points["choice"].tolist() == answers[:400]
    assert points.index[~points["correct"]].tolist() == [1, 3]
    assert set(points["method"]) == {"pca"}
    assert points["description"][0].startswith("PCA, 2 components of 5 standardised units")
    assert points["description"][0].endswith("; the first 400 of 440 trials")
    assert list(silhouette) == SILHOUETTE
    assert silhouette[["space", "variable"]].values.tolist() == [
        *(["states", "context"], ["states", "choice"]),
        *(["points", "context"], ["points", "choice"]),
    ]
    above = silhouette["silhouette"] > silhouette["null_95"] + 0.1
    assert above.tolist() == [True, False, True, False]


def test_a_model_that_always_answers_the_same_has_no_silhouette_of_choice() -> None:
    trials = generate(24, 0)
    tables = projection_tables(noise(24, 3), trials, ["left"] * 24, method="pca")
    missing = tables["cognitive_silhouette"][["silhouette", "null_mean", "null_95"]].isna()
    assert missing.values.tolist() == [[False] * 3, [True] * 3] * 2


def test_tables_of_a_model(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    trials = generate(80, 0, split="test")
    tables = unit_tables(model, tokenizer, trials, permutations=199, method="pca")
    assert list(tables) == [
        *("cognitive_selectivity", "cognitive_terms"),
        *("cognitive_projection", "cognitive_silhouette"),
    ]
    assert tables["cognitive_selectivity"]["n_units"].tolist() == [16] * 5
    assert tables["cognitive_selectivity"]["n"].tolist() == [80] * 5
    assert selective(tables)["context"] >= 8  # a random model tells contexts apart
    # The same by hand, from the last layer's states at the last token, which is the 17th.
    data = encode_trials(trials, tokenizer, max_length=20)
    hook = hook_resid_post(1)
    states = activations_at(model, data, [hook], torch.full((80, 1), 16))[hook][:, 0]
    again = selectivity_tables(states, trials, permutations=199)
    for name, table in again.items():
        pd.testing.assert_frame_equal(tables[name], table)
    points = tables["cognitive_projection"]
    assert points["choice"].tolist() == answers_of(model, data)
    assert points["trial"].tolist() == list(range(80))
    assert "trials" not in points["description"][0]
    assert (points["correct"] == (points["choice"] == points["label"])).all()
