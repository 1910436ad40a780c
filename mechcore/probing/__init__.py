"""What activations say about variables: linear decoding from any hook point."""

from mechcore.probing.activations import Activations, activations_at, hook_resid_post
from mechcore.probing.decoding import (
    Decoding,
    balanced,
    correlation_floor,
    decode,
    decode_table,
)

__all__ = [
    "Activations",
    "Decoding",
    "activations_at",
    "balanced",
    "correlation_floor",
    "decode",
    "decode_table",
    "hook_resid_post",
]
