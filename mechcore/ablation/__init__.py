"""Ablating sets of components, and their interactions."""

from mechcore.ablation.effects import Ablations, ComponentSet, ablate, ablation_table
from mechcore.ablation.interactions import interaction_table

__all__ = ["Ablations", "ComponentSet", "ablate", "ablation_table", "interaction_table"]
