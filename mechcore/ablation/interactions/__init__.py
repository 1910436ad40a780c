"""Interactions: what sets of components do beyond their members."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.ablation.interactions.exact import interactions as interactions

attach(__name__)
