"""Loading models, and the protocol that every model meets."""

from mechcore.models.classification import register
from mechcore.models.loading import load_model, load_tokenizer

register()

__all__ = ["load_model", "load_tokenizer"]
