"""What activations say about variables: linear decoding, selectivity of units, projections.

The selectivity of units is in `mechcore.probing.selectivity`, whose function has its name.
"""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.probing.activations import Activations as Activations
    from mechcore.probing.activations import activations_at as activations_at
    from mechcore.probing.activations import hook_resid_post as hook_resid_post
    from mechcore.probing.controls import balanced as balanced
    from mechcore.probing.controls import correlation_floor as correlation_floor
    from mechcore.probing.decoding import Decoding as Decoding
    from mechcore.probing.decoding import decode as decode
    from mechcore.probing.decoding import decode_table as decode_table
    from mechcore.probing.projection import Projection as Projection
    from mechcore.probing.projection import project as project
    from mechcore.probing.projection import silhouettes as silhouettes

attach(__name__)
