"""From training runs to learning curves, and to models of equal accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from mechcore.papers.cognitive.arms import ARM, Run
from mechcore.papers.cognitive.settings import ARMS
from mechcore.papers.seeds import ordered
from mechcore.tables import SEED, Column, Schema, estimate

GAP = 0.02
"""Difference of test accuracies up to which the two trained arms count as matched."""

_N = Column("n", "whole", "training samples", header="samples")
_RATE = Column("learning_rate", "number", "learning rate", shown="exact")
_STEPS = Column("steps", "whole", "step of the best evaluation, whose weights were kept")
_DEV = Column("dev_accuracy", "share", "on development trials", header="development")
_ACCURACY = Column("accuracy", "share", "on test trials, of the two answers")
_INCONGRUENT = Column("incongruent", "share", "the same on incongruent trials")
_CONGRUENT = Column("congruent", "share", "the same on congruent trials")
_UNRESTRICTED = Column("unrestricted", "share", "the same of all tokens")
_N_TEST = Column("n_test", "whole", "test trials")
_WILSON = "Wilson's score interval over trials"
_INTERVAL = estimate("accuracy", "share", _ACCURACY.meaning, over=_WILSON)
TRAINING = Schema(
    "cognitive_training",
    "Every training run, of all learning rates.",
    (
        ARM,
        _N,
        SEED,
        _RATE,
        Column("chosen", "flag", "whether the learning rate is the best"),
        _STEPS.called("best step"),
        Column("last_step", "whole", "where the training ended"),
        _DEV,
        _ACCURACY.called("test"),
        _INCONGRUENT,
        _CONGRUENT,
        _UNRESTRICTED,
        _N_TEST,
    ),
)
CURVE = Schema(
    "cognitive_curve",
    "Accuracy by number of training samples, of runs at the best learning rate.",
    (
        ARM,
        _N,
        SEED,
        _RATE,
        _STEPS.called("steps", shown="exact"),
        replace(_DEV, optional=True),
        *_INTERVAL,
        *estimate(
            "incongruent",
            "share",
            _INCONGRUENT.meaning,
            low="incongruent_low",
            high="incongruent_high",
            over=_WILSON,
        ),
        _CONGRUENT,
        _UNRESTRICTED,
        _N_TEST,
    ),
)
SAMPLES = Schema(
    "cognitive_samples",
    "How many training samples reach the threshold, by arm and seed.",
    (
        ARM,
        SEED,
        Column("threshold", "share", "of the test accuracy", shown="exact"),
        Column("samples", "whole", "the fewest tried from which on it is reached"),
        Column("largest", "whole", "the most that were tried", header="largest size tried"),
    ),
)
MODELS = Schema(
    "cognitive_models",
    "The models that are compared: one of each arm and seed.",
    (
        ARM,
        SEED,
        _N,
        Column("step", "whole", "whose weights were kept"),
        _RATE,
        _DEV,
        *_INTERVAL,
        _INCONGRUENT,
        _UNRESTRICTED,
        Column("gap", "share", "difference of the two arms", unit="points", shown="bare"),
        Column("matched", "flag", "whether it is small enough"),
    ),
)

_RUN = ["arm", "n", "seed", "learning_rate"]


def best_rate(results: Iterable[Mapping[str, Any]]) -> float:
    """The learning rate with the best accuracy on development trials; of equals the lower one."""
    best = max(results, key=lambda result: (result["dev_accuracy"], -result["learning_rate"]))
    return float(best["learning_rate"])


def training_table(results: Sequence[Mapping[str, Any]], chosen: Iterable[Run]) -> pd.DataFrame:
    """The columns of `TRAINING`, a row per training run; ``chosen`` are those at the best rates."""
    kept = {(run.arm, run.n, run.seed, run.learning_rate) for run in chosen}
    marked = [
        {**result, "chosen": tuple(result[column] for column in _RUN) in kept}
        for result in results
        if result["learning_rate"] is not None
    ]
    return _ordered(pd.DataFrame(marked, columns=TRAINING.names))


def curve_table(chosen: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The columns of `CURVE`, from the results of the base, at 0, and of the chosen runs."""
    table = pd.DataFrame(list(chosen), columns=CURVE.names)
    return _ordered(table.astype({"steps": "Int64"}))


def samples_table(curve: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """The columns of `SAMPLES`: the least number from which on accuracy reaches the threshold."""
    rows = []
    for (arm, seed), part in curve[curve["n"] > 0].groupby(["arm", "seed"], sort=False):
        below = part.loc[part["accuracy"] < threshold, "n"].max()  # NaN: none is
        enough = part.loc[~(part["n"] <= below), "n"].min()
        rows.append((arm, seed, threshold, enough, part["n"].max()))
    return pd.DataFrame(rows, columns=SAMPLES.names).astype({"samples": "Int64"})


def compared(curve: pd.DataFrame) -> pd.DataFrame:
    """The models that analyses compare, for every seed: the columns of `MODELS`.

    The arm that is less accurate after the largest number of training trials is taken there; the
    other arm after the number whose accuracy on test trials comes closest to that (of equals the
    larger number). They are matched if the gap is at most `GAP`; it is missing for an arm alone.
    """
    rows = [curve[curve["n"] == 0].assign(gap=float("nan"), matched=False)]
    for _, part in curve[curve["n"] > 0].groupby("seed", sort=False):
        arms = [of_arm.sort_values("n") for _, of_arm in part.groupby("arm")]
        target = min(float(of_arm["accuracy"].iloc[-1]) for of_arm in arms)
        picked = pd.concat([_closest(of_arm, target) for of_arm in arms])
        gap = picked["accuracy"].max() - picked["accuracy"].min() if len(arms) == 2 else None
        rows.append(picked.assign(gap=gap, matched=gap is not None and bool(gap <= GAP + 1e-9)))
    models = pd.concat([part for part in rows if len(part)], ignore_index=True)
    models = models.rename(columns={"steps": "step"})
    return _ordered(models[MODELS.names].astype({"gap": float}), ["seed"])


def _closest(part: pd.DataFrame, target: float) -> pd.DataFrame:
    if part["accuracy"].iloc[-1] == target:
        return part.tail(1)
    distance = (part["accuracy"] - target).abs().round(9)
    return part[distance == distance.min()].tail(1)


def _ordered(
    table: pd.DataFrame, keys: Sequence[str] = ("n", "seed", "learning_rate")
) -> pd.DataFrame:
    by_number = table.sort_values(list(keys), kind="stable")
    return ordered(by_number, arm=ARMS).reset_index(drop=True)
