"""What activations say about variables: linear decoding, selectivity of units."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.papers.cognitive.probing.activations import activations_at as activations_at
    from mechcore.papers.cognitive.probing.activations import hook_resid_post as hook_resid_post
    from mechcore.papers.cognitive.probing.decoding import Decoding as Decoding
    from mechcore.papers.cognitive.probing.decoding import balanced as balanced
    from mechcore.papers.cognitive.probing.decoding import correlation_floor as correlation_floor
    from mechcore.papers.cognitive.probing.decoding import decode as decode
    from mechcore.papers.cognitive.probing.decoding import decode_table as decode_table

attach(__name__)
