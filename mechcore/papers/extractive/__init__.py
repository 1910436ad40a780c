"""Extractive structures: where a fine-tuned fact is stored, queried and read out.

After Feng, Russell and Steinhardt (arXiv 2412.04614).
"""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.papers.extractive.alignment import align
    from mechcore.papers.extractive.deltas import (
        WeightDelta,
        applied,
        delta_from,
        graft,
        restored,
        snapshot,
        trainable_names,
    )
    from mechcore.papers.extractive.ranks import mean_rank, ranks, rewards
    from mechcore.papers.extractive.results import ExtractiveScores
    from mechcore.papers.extractive.scores import extractive_scores, weight_effects
    from mechcore.papers.extractive.settings import TuneSettings
    from mechcore.papers.extractive.tuning import tune, tuned

attach(__name__)

__all__ = [
    "ExtractiveScores",
    "TuneSettings",
    "WeightDelta",
    "align",
    "applied",
    "delta_from",
    "extractive_scores",
    "graft",
    "mean_rank",
    "ranks",
    "restored",
    "rewards",
    "snapshot",
    "trainable_names",
    "tune",
    "tuned",
    "weight_effects",
]
