"""What activations say about variables: linear decoding, selectivity of units, projections.

The selectivity of units is in `mechcore.probing.selectivity`, whose function has its name.
"""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.probing.activations import Activations, activations_at, hook_resid_post
    from mechcore.probing.controls import balanced, correlation_floor
    from mechcore.probing.decoding import Decoding, decode, decode_table
    from mechcore.probing.projection import Projection, project, silhouettes

attach(__name__)

__all__ = [
    "Activations",
    "Decoding",
    "Projection",
    "activations_at",
    "balanced",
    "correlation_floor",
    "decode",
    "decode_table",
    "hook_resid_post",
    "project",
    "silhouettes",
]
