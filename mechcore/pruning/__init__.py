"""Finding subnetworks by L0 pruning."""

from mechcore.pruning.pruner import (
    PruneSettings,
    Subnetwork,
    discretise,
    prune,
    subnetwork_name,
)

__all__ = ["PruneSettings", "Subnetwork", "discretise", "prune", "subnetwork_name"]
