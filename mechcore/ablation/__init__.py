"""Ablating sets of components, and their interactions."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.ablation import sets as sets
    from mechcore.ablation.effects.changes import Ablations as Ablations
    from mechcore.ablation.effects.changes import Answers as Answers
    from mechcore.ablation.effects.changes import ablation_table as ablation_table
    from mechcore.ablation.effects.confirmation import confirm_roles as confirm_roles
    from mechcore.ablation.effects.confirmation import confirmation as confirmation
    from mechcore.ablation.effects.flips import flip_table as flip_table
    from mechcore.ablation.effects.information import information_table as information_table
    from mechcore.ablation.effects.roles import component_roles as component_roles
    from mechcore.ablation.effects.roles import explain_role as explain_role
    from mechcore.ablation.effects.roles import verdict as verdict
    from mechcore.ablation.joint.exact import dividends as dividends
    from mechcore.ablation.joint.exact import interactions as interactions
    from mechcore.ablation.joint.exact import shapley as shapley
    from mechcore.ablation.joint.races import Race as Race
    from mechcore.ablation.joint.races import race as race
    from mechcore.ablation.joint.search import Search as Search
    from mechcore.ablation.joint.search import find_superadditive as find_superadditive
    from mechcore.ablation.sets import ComponentSet as ComponentSet
    from mechcore.ablation.sets import as_sets as as_sets
    from mechcore.ablation.settings import RoleSettings as RoleSettings
    from mechcore.ablation.sweeps import ablate as ablate
    from mechcore.ablation.sweeps import sweep as sweep

attach(__name__)
