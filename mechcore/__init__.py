"""Find which attention heads and MLPs carry a transformer's heuristics, by masking them."""

from mechcore.components import Component, Mask
from mechcore.evaluate import Evaluation, evaluate, paired_drop
from mechcore.interventions import masked
from mechcore.means import MeanActivations
from mechcore.models import load_model, load_tokenizer

__version__ = "0.1.0"

__all__ = [
    "Component",
    "Evaluation",
    "Mask",
    "MeanActivations",
    "__version__",
    "evaluate",
    "load_model",
    "load_tokenizer",
    "masked",
    "paired_drop",
]
