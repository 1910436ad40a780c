"""Find which attention heads and MLPs carry a transformer's heuristics, by masking them."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach
from mechcore._waiting import wait_briefly

if TYPE_CHECKING:
    from mechcore.ablation import ablate, find_superadditive, interactions, race, sweep
    from mechcore.attention import categorize_heads
    from mechcore.components import Component, Mask
    from mechcore.evaluation.evaluate import Evaluation, evaluate, paired_change
    from mechcore.lab import open as open
    from mechcore.masking.interventions import masked
    from mechcore.masking.means import MeanActivations
    from mechcore.models import load_model, load_tokenizer
    from mechcore.models.encoded import as_encoded
    from mechcore.models.export import export_checkpoint
    from mechcore.pruning import Subnetwork, prune
    from mechcore.subnetworks.core import head_frequency, heuristic_core
    from mechcore.subnetworks.effective_size import effective_size

wait_briefly()
attach(__name__)

__version__ = "0.1.0"

__all__ = [
    "Component",
    "Evaluation",
    "Mask",
    "MeanActivations",
    "Subnetwork",
    "__version__",
    "ablate",
    "as_encoded",
    "categorize_heads",
    "effective_size",
    "evaluate",
    "export_checkpoint",
    "find_superadditive",
    "head_frequency",
    "heuristic_core",
    "interactions",
    "load_model",
    "load_tokenizer",
    "masked",
    "paired_change",
    "prune",
    "race",
    "sweep",
]
