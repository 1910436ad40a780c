"""Finding subnetworks: L0 pruning, rankings of components and random controls."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.pruning.attribution import attribution_scores as attribution_scores
    from mechcore.pruning.attribution import ugs_scores as ugs_scores
    from mechcore.pruning.discretise import discretise as discretise
    from mechcore.pruning.discretise import discretise_by_threshold as discretise_by_threshold
    from mechcore.pruning.discretise import layer_matched as layer_matched
    from mechcore.pruning.discretise import random_subnetworks as random_subnetworks
    from mechcore.pruning.methods import METHODS as METHODS
    from mechcore.pruning.methods import PruningError as PruningError
    from mechcore.pruning.methods import Ranking as Ranking
    from mechcore.pruning.methods import Request as Request
    from mechcore.pruning.methods import prune as prune
    from mechcore.pruning.settings import PRESETS as PRESETS
    from mechcore.pruning.settings import PruneSettings as PruneSettings
    from mechcore.pruning.settings import prune_settings as prune_settings
    from mechcore.pruning.subnetwork import Method as Method
    from mechcore.pruning.subnetwork import Subnetwork as Subnetwork
    from mechcore.pruning.subnetwork import draws_of as draws_of
    from mechcore.pruning.subnetwork import subnetwork_name as subnetwork_name

attach(__name__)
