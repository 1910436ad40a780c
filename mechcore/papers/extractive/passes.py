"""What one forward and one backward of a model give: activations, gradients, scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.models.finite import check_finite
from mechcore.models.hooks import hooked
from mechcore.models.protocol import (
    Batch,
    check_hooks,
    frozen,
    hook_mlp_out,
    hook_resid_mid,
    hook_resid_pre,
    hook_z,
    named_weights,
)
from mechcore.papers.extractive.encoded import full, option_logits, reward
from mechcore.papers.extractive.results import Scores
from mechcore.papers.extractive.weights import LinearMap, WeightDelta, linear_maps


@dataclass(frozen=True, eq=False)
class Sites:
    """The hook points of a model to read; ``group`` is how many query heads share keys."""

    shape: ModelShape
    maps: tuple[LinearMap, ...]
    group: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: Any) -> Sites:
        """Find them; raises `InputError` where layers are not attention and then an MLP."""
        shape, maps = ModelShape.of(model), linear_maps(model)
        group = shape.n_heads // next(m.n_heads for m in maps if m.part == "K")
        if getattr(model.cfg, "ungroup_grouped_query_attention", False):
            group = 1  # hooks show keys and values of every query head
        dtype = next(iter(named_weights(model).values())).dtype
        sites = cls(shape, maps, group, dtype)
        _check_layers(model, sites)
        check_hooks(model, (*sites.outputs, *(m.hook for m in maps)))
        return sites

    @property
    def inputs(self) -> list[str]:
        """What attention and MLP of every layer read."""
        return self._of_layers(hook_resid_pre, hook_resid_mid)

    @property
    def outputs(self) -> list[str]:
        """What the components put out: z of the heads, and the MLPs' outputs."""
        return self._of_layers(hook_z, hook_mlp_out)

    def _of_layers(self, attention: Callable[[int], str], mlp: Callable[[int], str]) -> list[str]:
        hooks = (attention, mlp) if self.shape.has_mlps else (attention,)
        return [hook(layer) for hook in hooks for layer in range(self.shape.n_layers)]

    def of_layer(self, layer: int) -> dict[str, LinearMap]:
        """A layer's matrices by part."""
        return {m.part: m for m in self.maps if m.layer == layer}


def _check_layers(model: Any, sites: Sites) -> None:
    block, hooks = model.blocks[0], model.hook_dict
    problems = [f"has {name}" for name in ("ln1_post", "ln2_post") if hasattr(block, name)]
    if any(name not in hooks for name in sites.inputs):
        problems.append("has no hook_resid_mid between attention and MLP")
    # Where a bridge's second norm comes after the MLP, another module reads the residual stream.
    second = hooks.get("blocks.0.ln2.hook_in")
    if second is not None and second is not hooks.get(hook_resid_mid(0)):
        problems.append("has a norm after its MLP")
    if getattr(model.cfg, "positional_embedding_type", None) == "shortformer":
        problems.append("adds positions to what queries and keys are made of")
    if getattr(block, "residual_contribution_scale", 1) != 1:
        problems.append("scales what it adds to the residual stream")
    if problems:
        raise InputError(
            f"model: {type(block).__name__} {problems[0]}; extractive scores need layers of an "
            "attention and then an MLP, each after one normalisation, as those of GPT-2 and Llama"
        )


@dataclass(frozen=True, eq=False)
class Trace:
    """What a run shows by hook point; ``head_gradients`` are by keys and values of query heads."""

    rewards: Float[Tensor, " row"]
    values: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    head_gradients: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Question:
    """A batch of prompts, padded on the right, what is asked of each, and its row in the data."""

    batch: Batch
    option_ids: Int[Tensor, " option"]
    answers: Int[Tensor, " row"]
    points: Sequence[int]


def look(
    model: Any,
    question: Question,
    read: Sequence[str],
    write: Mapping[str, Tensor] | None = None,
) -> Trace:
    """Run a model forward only; write values to some hook points, and keep those of others."""
    seen: dict[str, Tensor] = {}
    with torch.no_grad():
        rewards = rewards_of(model, question, _hooks(read, write or {}, seen))
    return Trace(rewards, _exact(seen))


def look_back(
    model: Any,
    question: Question,
    sites: Sites,
    wanted: Sequence[str],
    read: Sequence[str] = (),
    by_head: bool = False,
) -> Trace:
    """Run a model forward, and R backward; of ``read`` only values are kept, no gradients."""
    start = hook_resid_pre(0)
    seen: dict[str, Tensor] = {}
    names = list(dict.fromkeys([start, *wanted, *read]))
    with frozen(model):
        rewards = rewards_of(model, question, _hooks(names, {}, seen, leaf=start))
        gradients = torch.autograd.grad(
            rewards.sum(),
            [seen[name] for name in wanted],
            retain_graph=by_head and sites.group > 1,
            allow_unused=True,
        )
        if unused := [n for n, g in zip(wanted, gradients, strict=True) if g is None]:
            raise InputError(
                f"model: its logits do not depend on what hook point {unused[0]} returns; "
                "extractive scores need hook points that the model goes on from"
            )
        by_name = dict(zip(wanted, gradients, strict=True))
        heads = _by_head(sites, seen, by_name) if by_head else {}
    values = {name: seen[name].detach() for name in (*wanted, *read)}
    return Trace(rewards.detach(), _exact(values), _exact(by_name), _exact(heads))


def rewards_of(
    model: Any, question: Question, hooks: Sequence[tuple[str, Callable[..., Any]]] = ()
) -> Float[Tensor, " row"]:
    """R of every row, which can be differentiated."""
    with hooked(model, hooks):
        logits = option_logits(model, question.batch, question.option_ids)
    check_finite(logits, question.points)
    return reward(full(logits), question.answers)


def _exact(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: full(tensor) for name, tensor in tensors.items()}


def _by_head(
    sites: Sites, seen: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Derivatives with respect to keys and values, one for every query head that reads them."""
    if sites.group == 1:
        return {m.hook: gradients[m.hook] for m in sites.maps if m.part in ("K", "V")}
    by_head = {}
    for layer in range(sites.shape.n_layers):
        maps, z = sites.of_layer(layer), hook_z(layer)
        inputs = [maps[part].hook for part in ("K", "V")]
        parts: list[tuple[Tensor, ...]] = []
        for member in range(sites.group):
            alone = torch.zeros_like(gradients[z])
            alone[:, :, member :: sites.group] = gradients[z][:, :, member :: sites.group]
            parts.append(torch.autograd.grad(seen[z], [seen[name] for name in inputs], alone, True))
        for name, members in zip(inputs, zip(*parts, strict=True), strict=True):
            by_head[name] = torch.stack(members, dim=3).flatten(2, 3)
    return by_head


def _hooks(
    read: Sequence[str],
    write: Mapping[str, Tensor],
    seen: dict[str, Tensor],
    leaf: str | None = None,
) -> list[tuple[str, Callable[..., Any]]]:
    """Hooks that write and then read; derivatives are taken from ``leaf`` on."""

    def hook(name: str) -> Callable[..., Tensor]:
        def at(value: Tensor, hook: Any) -> Tensor:
            del hook  # aliases report another name in it
            value = write[name].to(value) if name in write else value
            if name == leaf:
                value = value.detach().requires_grad_()
            if name in read:
                seen[name] = value
            # Returned even where unchanged: a bridge shows hooks another view of the tensor than
            # it goes on with, and derivatives are those of what is returned.
            return value

        return at

    return [(name, hook(name)) for name in dict.fromkeys([*write, *read])]


def hooks_needed(sites: Sites) -> tuple[list[str], list[str]]:
    """Hook points whose gradients, and further ones whose values, `informative` reads."""
    gradients = [name for m in sites.maps for name in (m.hook, m.bias_hook)]
    layers = range(sites.shape.n_layers)
    values = [f"blocks.{layer}.mlp.hook_post" for layer in layers if sites.shape.has_mlps]
    return list(dict.fromkeys([*sites.outputs, *gradients])), [*sites.inputs, *values]


def covered_names(sites: Sites) -> set[str]:
    """The weights whose changes belong to a component: all matrices, and biases but W_O's."""
    biases = {m.bias for m in sites.maps if m.bias is not None and m.part != "O"}
    return {m.weight for m in sites.maps} | biases


def informative(
    model: Any, sites: Sites, trace: Trace, delta: WeightDelta, *, paper: bool = False
) -> Scores:
    """First-order effects on R: the sum over a component's matrices of (dR/dy at W0) . (dM x)."""
    parts = [_layer(model, i, sites, trace, delta, paper) for i in range(sites.shape.n_layers)]
    heads, mlps = (torch.stack(of_layers, dim=1) for of_layers in zip(*parts, strict=True))
    return Scores(heads.movedim(3, 2), mlps)


@torch.no_grad()
def _layer(
    model: Any, layer: int, sites: Sites, trace: Trace, delta: WeightDelta, paper: bool
) -> tuple[Tensor, Tensor]:
    maps, block, n_heads = sites.of_layer(layer), model.blocks[layer], sites.shape.n_heads
    pre = trace.values[hook_resid_pre(layer)]
    x = block.ln1(pre.to(sites.dtype)).to(pre)
    heads = _output_effects(maps["O"], trace.values[hook_z(layer)], trace.gradients, delta)
    for part in "QKV":
        gradients = trace.gradients if part == "Q" else trace.head_gradients
        heads = heads + sum(_effects(maps[part], x, gradients, delta, n_heads))
    if not sites.shape.has_mlps:
        return heads.cpu(), torch.zeros(x.shape[:2], dtype=x.dtype)
    mid = trace.values[hook_resid_mid(layer)]
    x = block.ln2(mid.to(sites.dtype)).to(mid)
    post = trace.values[f"blocks.{layer}.mlp.hook_post"]
    effects = list(_effects(maps["out"], post, trace.gradients, delta))
    if paper:
        effects = [2 * effects[0]]
    else:
        for part in ("in", *(["gate"] if "gate" in maps else [])):
            effects += _effects(maps[part], x, trace.gradients, delta)
    return heads.cpu(), torch.stack(effects).sum(0)[..., 0].cpu()


def _effects(
    linear: LinearMap,
    x: Float[Tensor, "row pos d_in"],
    gradients: Mapping[str, Tensor],
    delta: WeightDelta,
    n_heads: int = 1,
) -> tuple[Float[Tensor, "row pos head"], Float[Tensor, "row pos head"]]:
    at, at_bias = (
        gradient if gradient.ndim == 4 else gradient.unflatten(2, (n_heads, -1))
        for gradient in (gradients[linear.hook], gradients[linear.bias_hook])
    )
    of_weight = of_bias = at.new_zeros(at.shape[:3])
    group = n_heads // linear.n_heads
    if linear.weight in delta:
        matrix = linear.by_head(delta[linear.weight]).to(x)
        change = torch.einsum("bpi,hio->bpho", x, matrix).repeat_interleave(group, dim=2)
        of_weight = (change * at).sum(-1)
    if linear.bias is not None and linear.bias in delta:
        bias = linear.bias_by_head(delta[linear.bias]).to(x).repeat_interleave(group, dim=0)
        of_bias = (bias * at_bias).sum(-1)
    return of_weight, of_bias


def _output_effects(
    linear: LinearMap,
    z: Float[Tensor, "row pos head d_head"],
    gradients: Mapping[str, Tensor],
    delta: WeightDelta,
) -> Float[Tensor, "row pos head"]:
    if linear.weight not in delta:
        return z.new_zeros(z.shape[:3])
    matrix = linear.by_head(delta[linear.weight]).to(z)
    return (z * torch.einsum("hio,bpo->bphi", matrix, gradients[linear.hook])).sum(-1)
