"""Ablating sets of components, and their interactions."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.ablation import sets
    from mechcore.ablation.cooperative import dividends, sampled_shapley, shapley
    from mechcore.ablation.effects import (
        Ablations,
        Answers,
        ComponentSet,
        ablation_table,
        as_sets,
    )
    from mechcore.ablation.search import Search, find_superadditive
    from mechcore.ablation.superadditivity import interaction_from_accuracies, interactions
    from mechcore.ablation.sweeping import ablate, sweep

attach(__name__)

__all__ = [
    "Ablations",
    "Answers",
    "ComponentSet",
    "Search",
    "ablate",
    "ablation_table",
    "as_sets",
    "dividends",
    "find_superadditive",
    "interaction_from_accuracies",
    "interactions",
    "sampled_shapley",
    "sets",
    "shapley",
    "sweep",
]
