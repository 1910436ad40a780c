"""Informative scores: what the change of each component's weights does to R, to first order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.models.running import hook_resid_mid, hook_resid_pre, hook_z
from mechcore.papers.extractive.deltas import WeightDelta
from mechcore.papers.extractive.linear_maps import LinearMap
from mechcore.papers.extractive.passes import Sites, Trace
from mechcore.showing import Shown


@dataclass(frozen=True, eq=False, repr=False)
class Informative(Shown):
    """First-order effects on R of weight changes, by component and position, in logits.

    Attributes:
        heads: of the changes of W_Q, W_K, W_V (with biases) at their own positions and of W_O.
        mlps: of the changes of W_in, W_gate and W_out with their biases.
        mlps_out: the part of ``mlps`` that is of W_out's weights.
    """

    heads: Float[Tensor, "row layer head pos"]
    mlps: Float[Tensor, "row layer pos"]
    mlps_out: Float[Tensor, "row layer pos"]


def hooks_needed(sites: Sites) -> tuple[list[str], list[str]]:
    """Hook points whose gradients, and further ones whose values, `informative` reads."""
    gradients = [name for each in sites.maps for name in (each.hook, each.bias_hook)]
    layers = range(sites.shape.n_layers)
    values = [f"blocks.{layer}.mlp.hook_post" for layer in layers if sites.shape.has_mlps]
    return list(dict.fromkeys([*sites.outputs, *gradients])), [*sites.inputs, *values]


def covered_names(sites: Sites) -> set[str]:
    """The weights whose changes belong to a component: all matrices, and biases but W_O's.

    The bias of W_O is added once for all heads, so that it is no head's.
    """
    biases = {each.bias for each in sites.maps if each.bias is not None and each.part != "O"}
    return {each.weight for each in sites.maps} | biases


def informative(model: Any, sites: Sites, trace: Trace, delta: WeightDelta) -> Informative:
    """Sum over each component's matrices of (dR/dy at the old weights) . (dM x).

    The model has the old weights; the trace is of `mechcore.papers.extractive.passes.look_back`
    with ``by_head`` and `hooks_needed`.
    """
    layers = [_layer(model, layer, sites, trace, delta) for layer in range(sites.shape.n_layers)]
    heads, mlps, outs = (torch.stack(parts, dim=1) for parts in zip(*layers, strict=True))
    return Informative(heads.movedim(3, 2), mlps, outs)


def _layer(
    model: Any, layer: int, sites: Sites, trace: Trace, delta: WeightDelta
) -> tuple[Tensor, Tensor, Tensor]:
    maps, block = sites.of_layer(layer), model.blocks[layer]
    with torch.no_grad():
        pre = trace.values[hook_resid_pre(layer)]
        x = block.ln1(pre.to(sites.dtype)).to(pre)
        heads = _output_matrix(maps["O"], trace.values[hook_z(layer)], trace, delta)
        for part in "QKV":
            heads = heads + _times(x, maps[part], _of_heads(sites, maps[part], trace), delta)
        if not sites.shape.has_mlps:
            none = torch.zeros(x.shape[:2], dtype=x.dtype)
            return heads.cpu(), none, none
        mid = trace.values[hook_resid_mid(layer)]
        x = block.ln2(mid.to(sites.dtype)).to(mid)
        read = [maps[part] for part in ("in", "gate") if part in maps]
        parts = [_matrix(x, each, trace.gradients, delta) for each in read]
        post = trace.values[f"blocks.{layer}.mlp.hook_post"]
        last = _matrix(post, maps["out"], trace.gradients, delta)
        biases = [_bias(each, trace.gradients, delta) for each in (*read, maps["out"])]
        return heads.cpu(), torch.stack([*parts, last, *biases]).sum(0).cpu(), last.cpu()


def _of_heads(sites: Sites, each: LinearMap, trace: Trace) -> Float[Tensor, "row pos head d_head"]:
    gradients = trace.gradients if each.part == "Q" else trace.head_gradients
    found = gradients[each.hook]
    return found if found.ndim == 4 else found.unflatten(2, (sites.shape.n_heads, -1))


def _times(
    x: Float[Tensor, "row pos d_model"],
    each: LinearMap,
    gradient: Float[Tensor, "row pos head d_head"],
    delta: WeightDelta,
) -> Float[Tensor, "row pos head"]:
    found = gradient.new_zeros(gradient.shape[:3])
    group = gradient.shape[2] // each.n_heads
    if each.weight in delta:
        matrix = each.by_head(delta[each.weight]).to(x)
        change = torch.einsum("bpi,hio->bpho", x, matrix).repeat_interleave(group, dim=2)
        found = found + (change * gradient).sum(-1)
    if each.bias is not None and each.bias in delta:
        bias = each.bias_by_head(delta[each.bias]).to(x).repeat_interleave(group, dim=0)
        found = found + (bias * gradient).sum(-1)
    return found


def _output_matrix(
    each: LinearMap,
    z: Float[Tensor, "row pos head d_head"],
    trace: Trace,
    delta: WeightDelta,
) -> Float[Tensor, "row pos head"]:
    if each.weight not in delta:
        return z.new_zeros(z.shape[:3])
    matrix = each.by_head(delta[each.weight]).to(z)
    back = torch.einsum("hio,bpo->bphi", matrix, trace.gradients[each.hook])
    return (z * back).sum(-1)


def _matrix(
    x: Float[Tensor, "row pos d_in"],
    each: LinearMap,
    gradients: Mapping[str, Tensor],
    delta: WeightDelta,
) -> Float[Tensor, "row pos"]:
    if each.weight not in delta:
        return x.new_zeros(x.shape[:2])
    return ((x @ each.by_head(delta[each.weight])[0].to(x)) * gradients[each.hook]).sum(-1)


def _bias(
    each: LinearMap, gradients: Mapping[str, Tensor], delta: WeightDelta
) -> Float[Tensor, "row pos"]:
    gradient = gradients[each.bias_hook]
    if each.bias is None or each.bias not in delta:
        return gradient.new_zeros(gradient.shape[:2])
    return gradient @ delta[each.bias].to(gradient)
