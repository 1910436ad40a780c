"""Finding subnetworks: L0 pruning, attribution rankings and random controls."""

from mechcore.pruning.discretise import discretise, discretise_by_threshold
from mechcore.pruning.pruner import PruningError, prune
from mechcore.pruning.settings import PRESETS, PruneSettings, prune_settings
from mechcore.pruning.subnetwork import METHODS, Method, Subnetwork, subnetwork_name

__all__ = [
    "METHODS",
    "PRESETS",
    "Method",
    "PruneSettings",
    "PruningError",
    "Subnetwork",
    "discretise",
    "discretise_by_threshold",
    "prune",
    "prune_settings",
    "subnetwork_name",
]
