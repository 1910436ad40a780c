"""The methods compared: those available to users, and those only in the benchmark."""

from __future__ import annotations

from mechcore.ablation.joint.predictors import INTERACTION_METHODS, InteractionMethod
from mechcore.bench.rankings import (
    eap_ig_scores,
    gradient_drop_scores,
    integrated_scores,
    optimal_scores,
    singles_scores,
)
from mechcore.pruning.methods import METHODS, PruningMethod, Ranking
from mechcore.registry import Registry

RANKINGS = (
    Ranking("integrated", integrated_scores),
    Ranking("gradient-drop", gradient_drop_scores),
    Ranking("eap-ig", eap_ig_scores, "data"),
    Ranking("singles", singles_scores),
    Ranking("optimal", optimal_scores, "data"),
)
"""Rankings only in the benchmark."""

RANKERS: Registry[PruningMethod] = Registry(
    "pruning method", "mechcore.bench_pruning_methods", base=METHODS
)
"""Methods that rank components, by name."""
for _ranking in RANKINGS:
    RANKERS.register(_ranking.name)(_ranking)

PREDICTORS: Registry[InteractionMethod] = Registry(
    "way to predict interactions",
    "mechcore.bench_interaction_methods",
    {
        "hessian": "mechcore.bench.predictors:hessian",
        "integrated-hessian": "mechcore.bench.predictors:integrated_hessian",
        "proxy": "mechcore.bench.predictors:proxy",
        "co-ablation": "mechcore.bench.predictors:co_ablation",
    },
    base=INTERACTION_METHODS,
)
"""Ways to predict interactions by name."""
