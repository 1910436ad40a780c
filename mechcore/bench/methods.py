"""The methods compared: those that users choose from, and those that only the benchmark has."""

from __future__ import annotations

from collections.abc import Mapping

from mechcore.ablation.joint.predictors import INTERACTION_METHODS, InteractionMethod
from mechcore.bench.alone import optimal_scores, singles_scores
from mechcore.bench.gradients import eap_ig_scores, gradient_drop_scores, integrated_scores
from mechcore.pruning.methods import METHODS, PruningMethod, by_ranking
from mechcore.pruning.rankings import Ranking
from mechcore.registry import Registry

RANKINGS: Mapping[str, Ranking] = {
    "integrated": Ranking(integrated_scores),
    "gradient-drop": Ranking(gradient_drop_scores),
    "eap-ig": Ranking(eap_ig_scores, "data"),
    "singles": Ranking(singles_scores),
    "optimal": Ranking(optimal_scores, "data"),
}
"""Rankings of the benchmark alone, by name."""

RANKERS: Registry[PruningMethod] = Registry(
    "pruning method", "mechcore.bench_pruning_methods", base=METHODS
)
"""Methods that rank components, by name."""
for _name, _ranking in RANKINGS.items():
    RANKERS.register(_name)(by_ranking(_name, _ranking))

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
