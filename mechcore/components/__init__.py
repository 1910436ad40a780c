"""Component names and masks over all components of a model.

A component is one attention head (``L4.H0``) or one MLP layer (``L3.MLP``). A mask holds one value
in [0, 1] per component: 1 keeps it, 0 ablates it (arXiv 2403.03942, section 3).
"""

from mechcore.components.mask import ANY_MODEL, Mask, same_model
from mechcore.components.names import (
    KINDS,
    Component,
    ComponentLike,
    ModelShape,
    parse_components,
)

__all__ = [
    "ANY_MODEL",
    "KINDS",
    "Component",
    "ComponentLike",
    "Mask",
    "ModelShape",
    "parse_components",
    "same_model",
]
