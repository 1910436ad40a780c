"""One forward and one backward of a model, with what its hook points see of them."""

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
from mechcore.models.measuring import hooked
from mechcore.models.running import (
    Batch,
    check_hooks,
    frozen,
    hook_mlp_out,
    hook_resid_mid,
    hook_resid_pre,
    hook_z,
    named_weights,
)
from mechcore.papers.extractive.linear_maps import LinearMap, linear_maps
from mechcore.papers.extractive.ranks import option_logits, reward


@dataclass(frozen=True, eq=False)
class Sites:
    """The hook points of a model that extractive structures are read from.

    ``group`` is how many query heads each key-value head has.
    """

    shape: ModelShape
    maps: tuple[LinearMap, ...]
    group: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: Any) -> Sites:
        """Find them.

        Raises:
            InputError: the model is no decoder whose layers are an attention and then an MLP, each
                of a normalised residual stream and added to it.
        """
        shape, maps = ModelShape.of(model), linear_maps(model)
        group = shape.n_heads // next(each.n_heads for each in maps if each.part == "K")
        if getattr(model.cfg, "ungroup_grouped_query_attention", False):
            group = 1  # hooks show keys and values of every query head
        dtype = next(iter(named_weights(model).values())).dtype
        sites = cls(shape, maps, group, dtype)
        _check_layers(model, sites)
        check_hooks(model, (*sites.outputs, *(each.hook for each in maps)))
        return sites

    @property
    def inputs(self) -> list[str]:
        """What attention and MLP of every layer read."""
        layers = range(self.shape.n_layers)
        mid = [hook_resid_mid(layer) for layer in layers] if self.shape.has_mlps else []
        return [hook_resid_pre(layer) for layer in layers] + mid

    @property
    def outputs(self) -> list[str]:
        """What the components put out: z of the heads, and the MLPs' outputs."""
        layers = range(self.shape.n_layers)
        mlps = [hook_mlp_out(layer) for layer in layers] if self.shape.has_mlps else []
        return [hook_z(layer) for layer in layers] + mlps

    def of_layer(self, layer: int) -> dict[str, LinearMap]:
        """A layer's matrices by part."""
        return {each.part: each for each in self.maps if each.layer == layer}


def _check_layers(model: Any, sites: Sites) -> None:
    """Make sure that layers are an attention and then an MLP, each after one normalisation."""
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
    """What was seen in a run.

    Tensors are in float32 at least.

    Attributes:
        rewards: R of every row, in logits.
        values: by hook point.
        gradients: of R with respect to the values, by hook point.
        head_gradients: of R with respect to keys and values as each query head sees them,
            [row, pos, head, d_head], by hook point.
    """

    rewards: Float[Tensor, " row"]
    values: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    head_gradients: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Question:
    """A batch of prompts, padded on the right, and what is asked of each.

    ``points`` are the numbers of the rows in the data, to name them in errors.
    """

    batch: Batch
    option_ids: Int[Tensor, " option"]
    answers: Int[Tensor, " row"]
    points: Sequence[int] | None = None


def look(
    model: Any,
    question: Question,
    read: Sequence[str],
    write: Mapping[str, Tensor] | None = None,
) -> Trace:
    """Run a model forward only; write values to some hook points, and keep those of others."""
    seen: dict[str, Tensor] = {}
    with torch.no_grad():
        found = _rewards(model, question, _hooks(read, write or {}, seen))
    return Trace(found, _exact(seen))


def look_back(
    model: Any,
    question: Question,
    sites: Sites,
    wanted: Sequence[str],
    read: Sequence[str] = (),
    by_head: bool = False,
) -> Trace:
    """Run a model forward, and R backward: total derivatives with respect to activations.

    Args:
        model: a causal language model of TransformerLens.
        question: the prompts; rows do not touch one another.
        sites: of the model.
        wanted: hook points whose values and gradients are kept.
        read: further hook points whose values are kept.
        by_head: whether to get ``head_gradients``, too.
    """
    start = hook_resid_pre(0)
    seen: dict[str, Tensor] = {}
    names = list(dict.fromkeys([start, *wanted, *read]))
    with frozen(model):
        found = _rewards(model, question, _hooks(names, {}, seen, leaf=start))
        gradients = torch.autograd.grad(
            found.sum(),
            [seen[name] for name in wanted],
            retain_graph=by_head and sites.group > 1,
            allow_unused=True,
        )
        if unused := [n for n, each in zip(wanted, gradients, strict=True) if each is None]:
            raise InputError(
                f"model: its logits do not depend on what hook point {unused[0]} returns; "
                "extractive scores need hook points that the model goes on from"
            )
        by_name = dict(zip(wanted, gradients, strict=True))
        heads = _by_head(sites, seen, by_name) if by_head else {}
    values = {name: seen[name].detach() for name in (*wanted, *read)}
    return Trace(found.detach(), _exact(values), _exact(by_name), _exact(heads))


def rewards_with_graph(model: Any, question: Question) -> Float[Tensor, " row"]:
    """R of every row, to be differentiated with respect to weights."""
    return _rewards(model, question, [])


def _exact(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In float32 at least."""
    double = torch.float64
    return {name: each if each.dtype == double else each.float() for name, each in tensors.items()}


def _by_head(
    sites: Sites, seen: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Derivatives with respect to keys and values, one for every query head that reads them.

    Heads of a group share keys and values. What each alone contributes comes from the backward of
    its layer's attention alone, with the derivatives of all other heads' outputs set to zero.
    """
    names = [each.hook for each in sites.maps if each.part in ("K", "V")]
    if sites.group == 1:
        return {name: gradients[name] for name in names}
    found = {}
    for layer in range(sites.shape.n_layers):
        maps, z = sites.of_layer(layer), hook_z(layer)
        inputs = [maps[part].hook for part in ("K", "V")]
        parts: list[tuple[Tensor, ...]] = []
        for member in range(sites.group):
            alone = torch.zeros_like(gradients[z])
            alone[:, :, member :: sites.group] = gradients[z][:, :, member :: sites.group]
            parts.append(torch.autograd.grad(seen[z], [seen[name] for name in inputs], alone, True))
        for name, each in zip(inputs, zip(*parts, strict=True), strict=True):
            found[name] = torch.stack(each, dim=3).flatten(2, 3)
    return found


def _rewards(
    model: Any, question: Question, hooks: list[tuple[str, Callable[..., Any]]]
) -> Float[Tensor, " row"]:
    with hooked(model, hooks):
        logits = option_logits(model, question.batch, question.option_ids)
    check_finite(logits, range(len(logits)) if question.points is None else question.points)
    return reward(logits if logits.dtype == torch.float64 else logits.float(), question.answers)


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
