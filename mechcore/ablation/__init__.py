"""Ablating sets of components, and their interactions."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.ablation import sets as sets
    from mechcore.ablation.confirmed import confirm_roles as confirm_roles
    from mechcore.ablation.confirmed import confirmation as confirmation
    from mechcore.ablation.cooperative import dividends as dividends
    from mechcore.ablation.cooperative import shapley as shapley
    from mechcore.ablation.effects import Ablations as Ablations
    from mechcore.ablation.effects import Answers as Answers
    from mechcore.ablation.effects import ComponentSet as ComponentSet
    from mechcore.ablation.effects import ablation_table as ablation_table
    from mechcore.ablation.effects import as_sets as as_sets
    from mechcore.ablation.flips import flip_table as flip_table
    from mechcore.ablation.information import information_table as information_table
    from mechcore.ablation.racing import Race as Race
    from mechcore.ablation.racing import race as race
    from mechcore.ablation.roles import component_roles as component_roles
    from mechcore.ablation.roles import explain_role as explain_role
    from mechcore.ablation.roles import verdict as verdict
    from mechcore.ablation.search import Search as Search
    from mechcore.ablation.search import find_superadditive as find_superadditive
    from mechcore.ablation.settings import RoleSettings as RoleSettings
    from mechcore.ablation.superadditivity import (
        interaction_from_accuracies as interaction_from_accuracies,
    )
    from mechcore.ablation.superadditivity import interactions as interactions
    from mechcore.ablation.sweeping import ablate as ablate
    from mechcore.ablation.sweeping import sweep as sweep

attach(__name__)
