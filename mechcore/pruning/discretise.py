"""From scores to masks of zeros and ones; random subnetworks to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.pruning import hard_concrete
from mechcore.pruning.settings import as_runs, check_keeps_some
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.session import plain_session

STRIDE = 0.05
"""Spacing of the thresholds that `discretise_by_threshold` tries (arXiv 2403.03942, appendix)."""


def discretise(
    scores: Float[Tensor, "layer component"], target_sparsity: float, shape: ModelShape
) -> Mask:
    """Keep the components with the highest scores, ranked over the whole model.

    The number pruned is ``round(sparsity * components)``; of ties, later components are pruned
    first.

    Raises:
        InputError: the sparsity is outside [0, 1), or keeps no component; or a score is NaN.
    """
    as_runs(target_sparsity, 0)
    check_keeps_some([target_sparsity], shape)
    _check_scores(scores, shape)
    flat = scores.flatten()
    n_kept = len(flat) - round(target_sparsity * len(flat))
    kept = flat.argsort(descending=True, stable=True)[:n_kept]
    values = torch.zeros_like(flat)
    values[kept] = 1.0
    return Mask(values.reshape(scores.shape), has_mlps=shape.has_mlps)


def discretise_by_threshold(
    log_alpha: Float[Tensor, "layer component"], target_sparsity: float, shape: ModelShape
) -> Mask:
    """Keep the components whose deterministic mask value exceeds one of 0, 0.05, ..., 0.95.

    The threshold whose sparsity is closest to the target is used, the lower one if two are equally
    close (arXiv 2403.03942, appendix). The target may be missed by any distance.
    """
    _check_scores(log_alpha, shape)
    values = hard_concrete.deterministic(log_alpha)
    masks = [
        Mask((values > STRIDE * i).to(values), has_mlps=shape.has_mlps)
        for i in range(round(1 / STRIDE))
    ]
    return min(masks, key=lambda mask: round(abs(float(mask.sparsity) - target_sparsity), 9))


def discretise_by_layer(
    log_alpha: Float[Tensor, "layer component"], target_sparsity: float, shape: ModelShape
) -> Mask:
    """Prune each layer's lowest scores, as many as expect to be 0 (authors' code of 2403.03942)."""
    _check_scores(log_alpha, shape)
    n_zero = hard_concrete.probability_of_zero(log_alpha).sum(1, keepdim=True).round()
    # Ties are broken by position, later components are pruned first.
    places = log_alpha.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    kept = places < log_alpha.shape[1] - n_zero
    return Mask(kept.to(log_alpha), has_mlps=shape.has_mlps)


DISCRETISATIONS = {
    "ranking": discretise,
    "threshold": discretise_by_threshold,
    "layers": discretise_by_layer,
}


def _check_scores(scores: Float[Tensor, "layer component"], shape: ModelShape) -> None:
    missing = scores.isnan().flatten().tolist()
    without = [str(c) for c, bad in zip(shape.components, missing, strict=True) if bad]
    if without:
        raise InputError(
            f"scores: NaN for {len(without)} of {len(missing)} components, first {without[0]}; "
            "expected a number for each; check that the model's logits are finite, also in float32"
        )


@plain_session()
def random_subnetworks(
    shape: ModelShape, *, target_sparsities: float | Sequence[float], seeds: int | Sequence[int]
) -> list[Subnetwork]:
    """Subnetworks of uniformly drawn components, nested from sparsity to sparsity."""
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
