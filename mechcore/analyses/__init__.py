"""The questions that mechcore asks of a model, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechcore.registry import Registry

if TYPE_CHECKING:
    from mechcore.analyses.base import Analysis

ANALYSES: Registry[type[Analysis]] = Registry(
    "analysis",
    "mechcore.analyses",
    {
        "data": "mechcore.analyses.data:Describe",
        "training": "mechcore.analyses.training:Train",
        "accuracy": "mechcore.analyses.accuracy:Accuracy",
        "smallest": "mechcore.analyses.smallest:Smallest",
        "core": "mechcore.analyses.core:Core",
        "halves": "mechcore.analyses.halves:Halves",
        "methods": "mechcore.analyses.methods:Methods",
        "heads": "mechcore.analyses.heads:Heads",
        "sweep": "mechcore.analyses.sweep:Sweep",
        "roles": "mechcore.analyses.roles:Roles",
        "flips": "mechcore.analyses.flips:Flips",
        "knockouts": "mechcore.analyses.knockouts:Knockouts",
        "ablation": "mechcore.analyses.ablation:Ablation",
        "interactions": "mechcore.analyses.interactions:Interactions",
        "failure": "mechcore.analyses.failure:Failure",
        "paths": "mechcore.analyses.paths:Paths",
        "dose": "mechcore.analyses.dose:Dose",
        "responses": "mechcore.analyses.responses:Responses",
        "repair": "mechcore.analyses.repair:Repair",
        "search": "mechcore.analyses.search:Search",
        "stability": "mechcore.analyses.stability:Stability",
        "effective_size": "mechcore.analyses.effective_size:EffectiveSize",
    },
)
"""Analyses by name, each listed after the analyses it needs."""


def question_names() -> list[str]:
    """Names of the analyses that can be run on their own."""
    return [name for name in ANALYSES if ANALYSES[name].question]
