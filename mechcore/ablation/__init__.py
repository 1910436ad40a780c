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
    from mechcore.ablation.information import information_table
    from mechcore.ablation.roles import RoleSettings, component_roles, explain_role
    from mechcore.ablation.search import Search, find_superadditive
    from mechcore.ablation.superadditivity import interaction_from_accuracies, interactions
    from mechcore.ablation.sweeping import ablate, sweep

attach(__name__)

__all__ = [
    "Ablations",
    "Answers",
    "ComponentSet",
    "RoleSettings",
    "Search",
    "ablate",
    "ablation_table",
    "as_sets",
    "component_roles",
    "dividends",
    "explain_role",
    "find_superadditive",
    "information_table",
    "interaction_from_accuracies",
    "interactions",
    "sampled_shapley",
    "sets",
    "shapley",
    "sweep",
]
