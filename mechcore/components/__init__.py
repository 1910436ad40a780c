"""Components, one attention head (``L4.H0``) or MLP layer (``L3.MLP``) each, and their masks."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.components.mask import ANY_MODEL as ANY_MODEL
    from mechcore.components.mask import Mask as Mask
    from mechcore.components.mask import same_model as same_model
    from mechcore.components.names import KINDS as KINDS
    from mechcore.components.names import Component as Component
    from mechcore.components.names import ComponentLike as ComponentLike
    from mechcore.components.names import ModelShape as ModelShape
    from mechcore.components.names import Path as Path
    from mechcore.components.names import PathSet as PathSet
    from mechcore.components.names import Receiver as Receiver
    from mechcore.components.names import parse_components as parse_components

attach(__name__)
