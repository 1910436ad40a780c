"""Paths: the effects of cutting them between components."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.ablation.paths.dependence import Readers as Readers
    from mechcore.ablation.paths.dependence import beside_random as beside_random
    from mechcore.ablation.paths.dependence import core_dependence_table as core_dependence_table
    from mechcore.ablation.paths.dependence import random_senders as random_senders
    from mechcore.ablation.paths.dependence import readers_of as readers_of
    from mechcore.ablation.paths.tables import path_information_table as path_information_table
    from mechcore.ablation.paths.tables import path_table as path_table
    from mechcore.ablation.paths.verdict import Verdict as Verdict
    from mechcore.ablation.paths.verdict import core_dependence_verdict as core_dependence_verdict
    from mechcore.components.names import Path as Path
    from mechcore.components.names import PathSet as PathSet
    from mechcore.components.names import Receiver as Receiver
    from mechcore.masking.blinding import blind as blind

attach(__name__)
