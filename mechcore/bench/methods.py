"""The methods compared: those that users choose from, and those that only the benchmark has."""

from __future__ import annotations

from mechcore.ablation.predicting import INTERACTION_METHODS, InteractionMethod
from mechcore.registry import Registry

PREDICTORS: Registry[InteractionMethod] = Registry(
    "way to predict interactions",
    "mechcore.bench_interaction_methods",
    {
        "hessian": "mechcore.bench.hessian:hessian",
        "integrated-hessian": "mechcore.bench.hessian:integrated_hessian",
        "proxy": "mechcore.bench.proxy:proxy",
        "co-ablation": "mechcore.bench.co_ablation:co_ablation",
    },
    base=INTERACTION_METHODS,
)
"""Ways to predict interactions by name."""
