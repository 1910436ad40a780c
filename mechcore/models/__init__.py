"""Loading models, and the protocol that all models follow."""

from typing import TYPE_CHECKING, Literal, TypeAlias

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.models.loading import load_model
    from mechcore.models.tokenizers import load_tokenizer

attach(__name__)

Backend: TypeAlias = Literal["bridge", "hooked"]
"""TransformerBridge or HookedTransformer."""

__all__ = ["Backend", "load_model", "load_tokenizer"]
