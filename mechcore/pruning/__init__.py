"""Finding subnetworks: L0 pruning, attribution rankings and random controls."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.pruning.attribution import attribute, attribution_scores, integrated_scores
    from mechcore.pruning.controls import layer_matched, random_subnetworks
    from mechcore.pruning.discretise import discretise, discretise_by_threshold
    from mechcore.pruning.methods import METHODS, Request
    from mechcore.pruning.pruner import PruningError, prune
    from mechcore.pruning.settings import PRESETS, PruneSettings, prune_settings
    from mechcore.pruning.subnetwork import Method, Subnetwork, subnetwork_name

attach(__name__)

__all__ = [
    "METHODS",
    "PRESETS",
    "Method",
    "PruneSettings",
    "PruningError",
    "Request",
    "Subnetwork",
    "attribute",
    "attribution_scores",
    "discretise",
    "discretise_by_threshold",
    "integrated_scores",
    "layer_matched",
    "prune",
    "prune_settings",
    "random_subnetworks",
    "subnetwork_name",
]
