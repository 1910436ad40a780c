"""Find which attention heads and MLPs carry a transformer's heuristics, by masking them."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach
from mechcore._waiting import wait_briefly

if TYPE_CHECKING:
    from mechcore.ablation import ablate, interactions
    from mechcore.attention import categorize_heads
    from mechcore.components import Mask
    from mechcore.evaluation.evaluate import evaluate
    from mechcore.lab import open as open
    from mechcore.masking.interventions import masked
    from mechcore.masking.means import MeanActivations
    from mechcore.models import load_model, load_tokenizer
    from mechcore.models.export import export_checkpoint
    from mechcore.pruning import prune
    from mechcore.subnetworks.core import heuristic_core
    from mechcore.subnetworks.effective_size import effective_size

wait_briefly()
attach(__name__)

__version__ = "0.2.0"

__all__ = [
    "Mask",
    "MeanActivations",
    "__version__",
    "ablate",
    "categorize_heads",
    "effective_size",
    "evaluate",
    "export_checkpoint",
    "heuristic_core",
    "interactions",
    "load_model",
    "load_tokenizer",
    "masked",
    "prune",
]
