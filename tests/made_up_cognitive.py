"""Made-up runs on the cognitive task: plausible numbers, and no model behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from made_up_tables import cells, named_components, verdicts, write_run

POSITIONS = ("context", "motion_left", "motion_right", "color_left", "color_right", "answer")
SUBSETS = [
    *(("context", "all"), ("choice", "all")),
    *((side, subset) for side in ("motion", "color") for subset in ("all", "balanced")),
]
KNOWN_FROM = {"context": 0, "motion": 2, "color": 4, "choice": 4}
"""Place from which a variable is known."""
TITLES = (
    "Training from scratch needs more samples than fine-tuning",
    "Fine-tuned, later layers matter; from scratch, the first",
    "From scratch, first-layer heads attend to the numbers",
    "Last-layer states decode context, motion, colour and choice",
    "After fine-tuning single units encode several variables",
    "Outputs of single heads decode the type of response",
    "Last-layer states fall into groups by choice or context",
)


@dataclass(frozen=True)
class CognitiveWorld:
    """What to write a run about; the pretrained arm has seed 0 alone."""

    n_layers: int = 4
    n_heads: int = 4
    arms: Sequence[str] = ("base", "fine_tuned", "scratch")
    seeds: Sequence[int] = (0, 1, 2)
    sizes: Sequence[int] = (100, 400, 1600, 6400)
    fills: Sequence[str] = ("mean", "zero")
    positions: Sequence[str] = POSITIONS
    n_points: int = 400

    @property
    def models(self) -> pd.DataFrame:
        """Arm and seed of every model."""
        every = cells(arm=self.arms, seed=self.seeds)
        return every[(every["arm"] != "base") | (every["seed"] == self.seeds[0])]


def write_cognitive_run(path: Path, world: CognitiveWorld = CognitiveWorld()) -> Path:
    """Write every file of a run."""
    config: dict[str, Any] = {
        "kind": "cognitive",
        "command": "mechcore reproduce cognitive --base checkpoints/tiny-gpt --seeds 0,1,2",
        "model": {"n_layers": world.n_layers, "n_heads": world.n_heads},
        "seeds": list(world.seeds),
        "settings": {"threshold": 0.9, "sizes": list(world.sizes)},
    }
    return write_run(path, config, _tables(world, np.random.default_rng(0)))


def _tables(world: CognitiveWorld, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    models = world.models

    def of_models(**columns: Any) -> pd.DataFrame:
        return models.merge(cells(**columns), how="cross")

    trained = models[models["arm"] != "base"]
    sizes = trained.merge(cells(n=world.sizes), how="cross")
    curve = pd.concat([models[models["arm"] == "base"].assign(n=0), sizes]).reset_index(drop=True)
    curve = curve.assign(chosen=True, learning_rate=(1e-4 * curve["n"]).where(curve["n"] > 0))
    gap = trained["seed"].map(lambda seed: 0.031 if seed == 2 else 0.008)
    compared = models.assign(n=1600, gap=gap if trained["arm"].nunique() == 2 else np.nan)
    heads = named_components(
        of_models(layer=range(world.n_layers), head=range(world.n_heads))
    ).drop(columns="kind")
    ablation = heads.merge(cells(fill=world.fills), how="cross")
    first = (ablation["arm"] == "scratch") & (ablation["layer"] == 0)
    ablation["change"] = rng.normal(0, 0.01, len(ablation)) - 0.3 * rng.random(len(first)) * first
    attention = heads.assign(ratio=rng.gamma(4, 0.22, len(heads)))
    mass = of_models(fill=world.fills, subset=("all", "incongruent"))
    shares = of_models(n_variables=range(5))
    shares["share"] = rng.dirichlet([6, 3, 2, 1, 1], len(models)).ravel()
    trials = of_models(trial=range(world.n_points))
    trials["context"] = np.where(trials["trial"] % 2, "color", "motion")
    trials["choice"] = np.where(rng.random(len(trials)) < 0.5, "left", "right")
    trials["correct"] = rng.random(len(trials)) < 0.95
    apart = {"space": ("states", "points"), "variable": ("context", "choice")}
    return {
        "verdicts": verdicts(TITLES, {5: "not supported", 7: "inconclusive"}),
        "training": curve[curve["n"] > 0],
        "curve": curve.assign(n_test=2000),
        "samples": trained.assign(threshold=0.9, samples=1600, largest=max(world.sizes)),
        "models": compared.assign(matched=compared["gap"] <= 0.02),
        "ablation": ablation.assign(sure=ablation["change"] < -0.02, n=2000),
        "mass": mass.assign(undefined=0.0, strongest="L0.H1", n=2000),
        "attention": attention,
        "attention_change": of_models(fill=world.fills),
        "decoding": _decoding(world, rng),
        "check": models.assign(n_rows=11, n_above=2),
        "svm": _svm(heads, rng),
        "selectivity": shares.assign(alpha=0.01, n=2000, n_units=64),
        "terms": of_models(term=("context", "motion", "context x motion")),
        "projection": trials.assign(method="pca", description="PCA, 41 % of their variance"),
        "silhouette": of_models(**apart).assign(method="pca"),
    }


def _decoding(world: CognitiveWorld, rng: np.random.Generator) -> pd.DataFrame:
    places = cells(layer=range(world.n_layers), place=range(len(world.positions)))
    subsets = pd.DataFrame(SUBSETS, columns=["variable", "subset"])
    rows = world.models.merge(places, how="cross").merge(subsets, how="cross")
    since = rows["variable"].map(KNOWN_FROM).clip(upper=len(world.positions) - 1)
    rows["read"] = np.where(rows["place"] >= since, "yes", "no")
    partly = (rows["place"] == since - 1) & rows["variable"].isin(["motion", "color"])
    rows.loc[partly, "read"] = "partly"
    gain = 0.4 * (rows["read"] == "yes") * rng.random(len(rows))
    rows["accuracy"] = 0.5 + gain + rng.normal(0, 0.012, len(rows))
    rows["position"] = [world.positions[place] for place in rows["place"]]
    return rows.assign(n=1000, chance=0.5, floor=0.5, shuffled_high=0.53)


def _svm(heads: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    rows = heads.merge(cells(target=("choice", "correct", "congruent", "condition")), how="cross")
    rows["chance"] = np.where(rows["target"] == "condition", 0.125, 0.5)
    rows["accuracy"] = rows["chance"] + 0.4 * rng.random(len(rows))
    rows = rows.assign(floor=rows["chance"], shuffled_high=rows["chance"] + 0.05)
    few = (rows["target"] == "correct") & (rows["arm"] == "scratch")
    measured = ["accuracy", "chance", "floor", "shuffled_high"]
    rows[measured] = rows[measured].mask(few)
    return rows
