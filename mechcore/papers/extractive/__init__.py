"""Extractive structures: where a fine-tuned fact is stored, queried and read out.

After Feng, Russell and Steinhardt (arXiv 2412.04614).
"""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.papers.extractive.encoded import mean_rank as mean_rank
    from mechcore.papers.extractive.encoded import rewards as rewards
    from mechcore.papers.extractive.results import align as align
    from mechcore.papers.extractive.scores import extractive_scores as extractive_scores
    from mechcore.papers.extractive.settings import TuneSettings as TuneSettings
    from mechcore.papers.extractive.weights import applied as applied
    from mechcore.papers.extractive.weights import snapshot as snapshot
    from mechcore.papers.extractive.weights import trainable_names as trainable_names
    from mechcore.papers.extractive.weights import tuned as tuned

attach(__name__)
