"""Random subnetworks to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mechcore.components import Mask, ModelShape
from mechcore.pruning.discretise import discretise
from mechcore.pruning.settings import as_runs
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.session import plain_session


@plain_session()
def random_subnetworks(
    shape: ModelShape, *, target_sparsities: float | Sequence[float], seeds: int | Sequence[int]
) -> list[Subnetwork]:
    """Subnetworks of uniformly drawn components, nested from sparsity to sparsity.

    Raises:
        InputError: a sparsity or seed is out of range, or they repeat.
    """
    target_sparsities, seeds = as_runs(target_sparsities, seeds)
    subnetworks = []
    for target_sparsity in target_sparsities:
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            scores = torch.rand(shape.n_layers, shape.columns, generator=generator)
            mask = discretise(scores, target_sparsity, shape)
            subnetworks.append(Subnetwork(mask, target_sparsity, seed, scores, "random"))
    return subnetworks


@plain_session()
def layer_matched(subnetworks: Sequence[Subnetwork]) -> list[Subnetwork]:
    """For each subnetwork, a random one with as many heads, and the same MLP, in every layer."""
    matches = []
    for subnetwork in subnetworks:
        kept = {(c.layer, c.head) for c in subnetwork.mask.kept}
        shape = subnetwork.mask.shape
        generator = torch.Generator().manual_seed(subnetwork.seed)
        # Skip the first draw, which `random_subnetworks` uses, to be independent of it.
        _, scores = torch.rand(2, shape.n_layers, shape.columns, generator=generator)
        values = torch.zeros_like(scores)
        for layer in range(shape.n_layers):
            n_kept = sum((layer, head) in kept for head in range(shape.n_heads))
            ranked = scores[layer, : shape.n_heads].argsort(descending=True)
            values[layer, ranked[:n_kept]] = 1.0
            if shape.has_mlps:
                values[layer, -1] = float((layer, None) in kept)
        mask = Mask(values, has_mlps=shape.has_mlps, identity=subnetwork.mask.identity)
        target_sparsity, seed = subnetwork.target_sparsity, subnetwork.seed
        matches.append(Subnetwork(mask, target_sparsity, seed, scores, "layer-matched"))
    return matches
