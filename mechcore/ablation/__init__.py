"""Ablating sets of components, and their interactions."""

from mechcore.ablation.effects import (
    Ablations,
    Answers,
    ComponentSet,
    ablation_table,
    as_sets,
)
from mechcore.ablation.interactions import interaction_table
from mechcore.ablation.sweep import ablate, sweep

__all__ = [
    "Ablations",
    "Answers",
    "ComponentSet",
    "ablate",
    "ablation_table",
    "as_sets",
    "interaction_table",
    "sweep",
]
